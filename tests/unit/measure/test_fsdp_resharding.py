"""Which sharded blocks are kept whole between the passes: most time per byte first, as many as there is room for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.fixer import Edits, Request, example_request
from diagnose.measure.comm.fsdp_modules import ROOT, ShardedModule
from diagnose.measure.comm.fsdp_resharding import by_worth, to_keep
from diagnose.model import Evidence, Facts
from diagnose.plugins import load

MIB = 1 << 20
FIXER = load().fixers["fsdp-keep"]
LOOP = """from torch.distributed.fsdp import fully_shard

for block in model.transformer.h:
    fully_shard(block)
fully_shard(model)
"""


def module(name: str, mib: int = 100, again_late_ns: int = 1_000, again: float = 1) -> ShardedModule:
    return ShardedModule(
        name=name,
        gather_bytes=mib * MIB,
        gathers=2,
        again=again,
        gather_ns=4_000,
        late_ns=2_000,
        waited_ns=0,
        early_ns=0,
        reduce_ns=4_000,
        reduce_exposed_ns=0,
        again_late_ns=again_late_ns,
    )


def names(*modules: ShardedModule) -> list[str]:
    return [one.name for one in by_worth(modules)]


def test_what_costs_most_for_its_bytes_comes_first() -> None:
    assert names(module("wide", 400), module("narrow", 50), module("costly", 200, 9_000)) == [
        "costly",
        "narrow",
        "wide",
    ]


def test_of_modules_that_are_alike_the_later_come_first_whatever_noise_says() -> None:
    assert names(module("h.0", again_late_ns=1_100), module("h.1"), module("h.2", again_late_ns=900)) == [
        "h.2",
        "h.1",
        "h.0",
    ]


def test_what_is_hidden_altogether_is_compared_by_the_time_it_takes() -> None:
    hidden = [replace(module(name, mib), again_late_ns=0) for name, mib in (("wide", 400), ("narrow", 50))]
    assert names(*hidden) == ["narrow", "wide"]


def test_what_is_gathered_once_or_belongs_to_the_root_is_not_in_question() -> None:
    assert names(module("h.0", again=0), module(ROOT), module("h.1")) == ["h.1"]


def found(peak_mib: int | None, device_mib: int = 1000, container: str = "transformer.h", text: str = LOOP) -> Request:
    """Four blocks of 100 MiB, the later worth more."""
    order = [f"{container}.{at}".strip(".") for at in (3, 2, 1, 0)]
    told = [Evidence(f"to keep {at} of 4: {name}", 100 * MIB, "bytes") for at, name in reversed([*enumerate(order, 1)])]
    facts = Facts(peak_memory_bytes=peak_mib and peak_mib * MIB, device_memory_bytes=device_mib * MIB)
    request = example_request("regathering-parameters", text, facts=facts)
    return replace(request, finding=replace(request.finding, evidence=tuple(told)))


@pytest.mark.parametrize(
    ("peak_mib", "settings"),
    [
        (500, [{"kept": "all"}]),
        (501, [{"kept": "1-3", "of": 4}]),  # nine tenths of the device may be planned with
        (650, [{"kept": "2-3", "of": 4}]),
        (799, [{"kept": "3", "of": 4}]),
        (801, []),
        (None, [{"kept": "all"}, {"kept": "half"}]),
    ],
)
def test_as_many_as_fit_beside_the_peak(peak_mib: int | None, settings: list[object]) -> None:
    assert list(FIXER.settings(found(peak_mib))) == settings


def test_one_that_does_not_fit_does_not_stand_in_the_way_of_a_smaller_one() -> None:
    finding = replace(
        found(None).finding,
        evidence=(Evidence("to keep 1 of 2: big", 300, "bytes"), Evidence("to keep 2 of 2: small", 100, "bytes")),
    )
    assert to_keep(finding, 200) == ("small",)
    assert to_keep(finding, None) == ("big", "small")


def test_the_source_keeps_the_chosen_blocks() -> None:
    answer = FIXER.rewrite(replace(found(650), setting=FIXER.settings(found(650))[0]))
    assert isinstance(answer, Edits)
    assert "fully_shard(block, reshard_after_forward=place < 2)" in answer.files["train.py"]


@pytest.mark.parametrize(
    ("container", "blocks"),
    [
        ("", "model"),
        ("", "model.children()"),
        ("", "list(model)"),
        ("layers", "list(model.layers)"),
        ("h", "self.net.h"),
    ],
)
def test_names_are_matched_with_what_a_loop_goes_through(container: str, blocks: str) -> None:
    text = LOOP.replace("model.transformer.h", blocks)
    assert list(FIXER.settings(found(650, container=container, text=text))) == [{"kept": "2-3", "of": 4}]


def test_blocks_of_another_name_are_not_taken_for_them() -> None:
    assert list(FIXER.settings(found(650, container="encoder.layers"))) == [{"kept": "all"}, {"kept": "half"}]
