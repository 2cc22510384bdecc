"""What counts as a regression, and what a change of the program explains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.regressions.comparison import LEAST_BYTES, LEAST_LAUNCHES, Difference, compare
from diagnose.regressions.costs import Costs, costs_of
from diagnose.regressions.lines import LineMap

STEPS = 4
UNCHANGED = LineMap({})
LOADER = {"num_workers": 4, "pin_memory": True, "persistent_workers": True, "batch_size": 8}


def step(
    *costs: tuple[str, int, int, int], peak: int = 1 << 20, live: int = 1 << 19, breaks: int = 0
) -> dict[str, Any]:
    """A counted step: kind, line, count and size of each cost."""
    rows = [[kind, "/copy/train.py", line, count, size] for kind, line, count, size in costs]
    return {"costs": rows, "peak_bytes": peak, "live_bytes": live, "graph_breaks": breaks, "recorded_tensors": 2}


def costs(*each: tuple[str, int, int, int], steps: int = STEPS, **of_step: int) -> Costs:
    """The costs of a program whose steps are all alike: 200 launches and a matrix product, and what is given."""
    usual = (("launch", 1, 200, 1 << 22), ("recorded", 1, 50, 0), ("flops bfloat16", 1, 1, 1 << 30))
    kinds = {one[0] for one in each}
    rows = [one for one in usual if one[0] not in kinds] + list(each)
    site = {"kind": "DataLoader", "file": "/copy/train.py", "line": 7, "arguments": LOADER}
    found = {
        "steps": [step(*rows, **of_step)] * steps,
        "tensors": 20,
        "elements": 1000,
        "sites": [site],
        "settings": {},
    }
    return costs_of(found, lambda file: file.removeprefix("/copy/"))


def told(base: Costs, head: Costs, lines: LineMap = UNCHANGED) -> dict[str, bool]:
    """The kinds of the differences, each with whether it is a regression."""
    return {one.kind: one.is_regression for one in compare(base, head, lines)}


def test_equal_costs_say_nothing() -> None:
    assert compare(costs(), costs(), UNCHANGED) == []


def test_costs_are_those_of_a_step_however_many_were_counted() -> None:
    assert compare(costs(), costs(steps=STEPS - 1), UNCHANGED) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [("sync", "sync"), ("copy to device", "copy"), ("copy to host", "copy"), ("blocking copy", "copy")],
)
def test_one_more_wait_or_copy_in_a_step_is_a_regression_at_its_line(kind: str, name: str) -> None:
    (found,) = compare(costs(), costs((kind, 12, 1, 4)), UNCHANGED)
    assert (found.kind, found.file, found.line, found.is_regression) == (name, "train.py", 12, True)


def test_a_wait_that_moved_to_another_line_is_none() -> None:
    moved = LineMap({}, ("train.py",), first_change=("train.py", 1))
    assert compare(costs(("sync", 12, 1, 0)), costs(("sync", 30, 1, 0)), moved) == []


def test_a_wait_now_and_then_is_none() -> None:
    rare = costs_of(
        {
            "steps": [step(), step(("sync", 12, 1, 0)), step(), step()],
            "tensors": 0,
            "elements": 0,
            "sites": [],
            "settings": {},
        }
    )
    never = costs_of({"steps": [step()] * 4, "tensors": 0, "elements": 0, "sites": [], "settings": {}})
    assert compare(never, rare, UNCHANGED) == []


def test_a_copy_that_the_host_waits_for_is_told_once() -> None:
    head = costs(("sync", 12, 1, 0), ("copy to host", 12, 1, 4096))
    assert [one.kind for one in compare(costs(), head, UNCHANGED)] == ["sync"]


def test_more_launches_are_a_regression_unless_the_model_or_the_batch_changed() -> None:
    base, head = costs(), costs(("launch", 1, 200 + LEAST_LAUNCHES, 1 << 22))
    assert told(base, head) == {"launches": True}
    assert told(base, replace(head, elements=2000)) == {"launches": False}
    (site,) = head.sites
    larger = replace(head, sites=({**site, "arguments": {**LOADER, "batch_size": 16}},))
    assert told(base, larger) == {"launches": False}


def test_a_few_more_launches_are_a_new_line_of_the_program() -> None:
    assert compare(costs(), costs(("launch", 1, 199 + LEAST_LAUNCHES, 1 << 22)), UNCHANGED) == []


def test_the_same_operators_on_larger_tensors_are_information() -> None:
    head = costs(("launch", 1, 200, 1 << 24), ("flops bfloat16", 1, 1, 1 << 32), peak=1 << 22)
    assert told(costs(), head) == {"flops": False, "memory": False}


def test_more_flops_of_the_same_model_are_a_regression_unless_they_save_memory() -> None:
    rows = ("launch", 1, 210, 1 << 22), ("flops bfloat16", 1, 2, 3 << 29)
    assert told(costs(), costs(*rows)) == {"flops": True}
    assert told(costs(), costs(*rows, peak=1 << 19)) == {"flops": False}


def test_more_bytes_in_as_many_launches_are_a_regression() -> None:
    assert told(costs(), costs(("launch", 1, 200, 1 << 23))) == {"bytes": True}


def test_operators_that_are_recorded_and_ran_before_are_a_regression() -> None:
    assert told(costs(), costs(("recorded", 1, 60, 0))) == {"recorded": True}
    assert told(costs(), costs(("recorded", 1, 60, 0), ("launch", 1, 210, 1 << 22))) == {}
    assert told(costs(), costs(("recorded", 1, 60, 0), ("launch", 1, 190, 1 << 22))) == {}


def test_a_higher_peak_is_a_regression() -> None:
    assert told(costs(), costs(peak=(1 << 20) + (1 << 18))) == {"memory": True}
    assert told(costs(peak=LEAST_BYTES), costs(peak=2 * LEAST_BYTES)) == {}


def test_steps_that_each_keep_more_are_a_leak() -> None:
    some = 1 << 15  # of a peak of 1 MiB
    assert told(costs(), replace(costs(), live_bytes=(some, 2 * some, 3 * some, 4 * some))) == {"leak": True}
    assert told(costs(), replace(costs(), live_bytes=(some, 2 * some, 2 * some, 4 * some))) == {}
    grows = replace(costs(), live_bytes=(some, 2 * some, 3 * some, 4 * some))
    assert told(grows, grows) == {}


def test_losses_kept_for_a_log_are_no_leak_unless_their_graphs_are_kept() -> None:
    assert told(costs(), replace(costs(), live_bytes=(512, 1024, 1536, 2048))) == {}
    assert told(costs(), replace(costs(), recorded_tensors=(3, 4, 5, 6))) == {"leak": True}


def test_matrix_products_that_left_autocast_are_a_regression() -> None:
    head = replace(costs(), sizes={**costs().sizes, "flops bfloat16": {}, "flops float32": {("train.py", 3): 1 << 32}})
    assert told(costs(), head) == {"precision": True}
    assert told(head, costs()) == {}


def test_a_model_that_is_compiled_no_more_is_a_regression() -> None:
    compiled = costs(("graph", 5, 1, 0))
    assert told(compiled, costs()) == {"compile": True}
    assert told(costs(), compiled) == {}
    assert told(compiled, costs(("graph", 5, 3, 0))) == {"compile": True}
    assert told(compiled, costs(("graph", 5, 1, 0), ("compilation", 5, 1, 0))) == {"compile": True}
    assert told(compiled, costs(("graph", 5, 1, 0), breaks=1)) == {"compile": True}


def test_more_collectives_of_the_same_model_are_a_regression() -> None:
    assert told(costs(("collective", 3, 1, 4000)), costs(("collective", 3, 2, 4000))) == {"collectives": True}
    assert told(costs(("collective", 3, 1, 4000)), costs(("collective", 3, 1, 8000))) == {"collectives": True}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_workers", 0, "the loader has 0 workers instead of 4"),
        ("num_workers", 1, "the loader has 1 workers instead of 4"),
        ("pin_memory", False, "DataLoader: pin_memory is False instead of True"),
        ("persistent_workers", False, "DataLoader: persistent_workers is False instead of True"),
    ],
)
def test_an_option_that_was_given_up_is_a_regression_where_it_was_set(name: str, value: object, said: str) -> None:
    (site,) = costs().sites
    head = replace(costs(), sites=({**site, "arguments": {**LOADER, name: value}},))
    assert compare(costs(), head, UNCHANGED) == [Difference("option", said, "train.py", 7)]
    assert compare(head, costs(), UNCHANGED) == []


def test_half_as_many_workers_are_a_choice() -> None:
    (site,) = costs().sites
    head = replace(costs(), sites=({**site, "arguments": {**LOADER, "num_workers": 2}},))
    assert compare(costs(), head, UNCHANGED) == []


def test_a_setting_of_torch_that_was_given_up_is_told_at_the_first_change() -> None:
    fast = replace(costs(), settings={"cudnn.benchmark": True, "float32 matmul precision": "high"})
    slow = replace(costs(), settings={"cudnn.benchmark": False, "float32 matmul precision": "highest"})
    found = compare(fast, slow, LineMap({}, ("train.py",), first_change=("train.py", 4)))
    assert [(one.kind, one.line) for one in found] == [("option", 4), ("option", 4)]
    assert compare(slow, fast, UNCHANGED) == []


def test_changed_lines_are_named_before_lines_that_stayed() -> None:
    """A loss over more tensors shows at `backward` too, which nobody changed."""
    lines = LineMap({("train.py", 9): 9}, ("train.py",), first_change=("train.py", 5))
    head = costs(("launch", 5, 230, 1 << 22), ("launch", 9, 400, 1 << 22))
    (found,) = [one for one in compare(costs(), head, lines) if one.kind == "launches"]
    assert found.line == 5
