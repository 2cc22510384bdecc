"""What the benchmark of ranks says of its goals, on figures that are made up here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnose.trace import Collective
from diagnose.trace.drawn import drawn

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return loaded("rank_goals")


def row(name: str, ms: float | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "ms": ms, "quartiles_ms": ms and [ms - 0.3, ms + 0.3], "note": "", **more}


DEFAULT = row("default (25 MB)", 46.0)


def test_the_best_of_the_sweep_stands_beside_the_default(module: ModuleType) -> None:
    (said,) = module.goals("ddp", [DEFAULT, row("50 MB", 44.0), row("100 MB", 42.2), row("200 MB", None)])
    assert said.endswith("100 MB 42.20 against 46.00 ms, 1.09 x: held")


@pytest.mark.parametrize("part", ["ddp", "ddp-sockets", "fsdp", "fsdp-8", "cap"])
def test_what_had_no_turn_is_not_measured_and_not_missed(module: ModuleType, part: str) -> None:
    said = module.goals(part, [DEFAULT, row("100 MB", None)])
    assert said
    assert all("not measured" in line or "unknown" in line for line in said)


@pytest.mark.parametrize("part", ["ddp", "ddp-sockets", "fsdp", "cap"])
def test_a_part_without_a_row_is_not_measured(module: ModuleType, part: str) -> None:
    assert module.goals(part, []) == ["not measured"]


def test_sockets_are_judged_by_what_was_allowed(module: ModuleType) -> None:
    rows = [DEFAULT, row("bf16 gradients (training)", 30.0), row("PowerSGD of rank 4 (training)", 23.0)]
    rows += [row("4 micro-steps, reduced in each", 150.0), row("4 micro-steps, no_sync", 110.0)]
    training, accumulation = module.goals("ddp-sockets", rows)[-2:]
    assert training.endswith("PowerSGD of rank 4 (training) 23.00 against 46.00 ms, 2.00 x: held")
    assert accumulation.endswith("4 micro-steps, no_sync 110.00 against 150.00 ms, 1.36 x: missed")


def test_under_a_cap_the_default_has_to_fail(module: ModuleType) -> None:
    free = [row("defaults", 450.0), row("CPUOffloadPolicy", 5900.0)]
    refused = row("defaults under 10.66 GiB", None) | {"note": "out of memory"}
    others = [row("CPUOffloadPolicy under 10.66 GiB", 6000.0), row("state on the host under 10.66 GiB", 600.0)]
    fails, times = module.goals("cap", [*free, refused, *others])
    assert fails == "the default does not run under the cap: out of memory: held"
    assert times.endswith("600.00 against 6000.00 ms, 10.00 x: held")
    ran, _ = module.goals("cap", [*free, row("defaults under 10.66 GiB", 450.0), *others])
    assert ran.endswith("it ran: missed")


IN_TIME = """
    gpu   : kkkbbbvvbv        x
    gpu 20:         ggGGGGGGG
    op    :    a a   e
    bwd   :    BBBBBBB
    opt   :                   O
"""
"""8 MiB in a bucket, and 32 that are ready with the end of the backward pass: of these 7 ms lie after it."""
LATER = IN_TIME.replace("        ggGGGGGGG", "         ggGGGGGGG")


@pytest.mark.parametrize(("picture", "tail_ms"), [(LATER, 8), (IN_TIME, 7)])
def test_of_a_drawing_the_exposed_and_the_bound_are_those_that_are_drawn(
    monkeypatch: pytest.MonkeyPatch, picture: str, tail_ms: int
) -> None:
    pytest.importorskip("torch")
    recordings = loaded("ddp_trace")
    mb = 1 << 20
    ranks = [
        drawn(
            picture,
            repeat=4,
            kernels={"b": "gemm", "v": "norm_backward", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
            ops=dict.fromkeys("ae", "torch::autograd::AccumulateGrad"),
            shapes={"a": ("[[1024, 1024]]", '["float"]'), "e": ("[[8192, 1024]]", '["float"]')},
            comms={
                "g": Collective("all_reduce", 8 * mb, 2, "pg", members=(0, 1)),
                "G": Collective("all_reduce", 32 * mb, 2, "pg", members=(0, 1)),
            },
            rank=rank,
            world_size=2,
        )
        for rank in range(2)
    ]
    monkeypatch.setattr(recordings, "open_traces", lambda _files: ranks)
    found = recordings.exposed([])
    assert (found["tail_ms"], found["least_ms"], found["waiting_ms"]) == (tail_ms, 7, 0)
