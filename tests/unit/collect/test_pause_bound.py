"""A window has fewer steps where the profiler would hold up training for long when it closes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.collect.inside.window.pause_bound import MOST_PAUSE_NS, OperatorCount, steps_within
from diagnose.collect.inside.window.profiler_window import Window
from diagnose.collect.inside.window.tracing import Tracing


@pytest.mark.parametrize(
    ("operators", "steps"),
    [(0, 4), (300, 4), (5_900, 4), (6_000, 3), (8_900, 2), (11_900, 1), (1_000_000, 1)],
)
def test_a_window_keeps_one_step_however_many_operators_it_has(operators: int, steps: int) -> None:
    assert steps_within(MOST_PAUSE_NS, operators, 4) == steps


def test_operators_with_a_gradient_are_counted_step_by_step() -> None:
    count, weight = OperatorCount(), torch.ones(2, requires_grad=True)
    counted = []
    for length in (3, 5, 5):
        value = weight
        for _ in range(length):
            value = value * 2
        count.step_ended(torch)
        counted.append(count.per_step)
    assert counted == [0, 5, 5]  # where the first step began is not known


def test_a_torch_that_does_not_number_its_operators_leaves_the_number_unknown() -> None:
    count: Any = OperatorCount()
    count.step_ended(SimpleNamespace(_C=SimpleNamespace(_autograd=SimpleNamespace())))
    assert count.per_step == 0


@pytest.mark.parametrize(("operators", "said"), [(300, ""), (9_000, "; 3 fewer than asked for")])
def test_the_record_of_the_window_says_that_steps_were_left_out(
    operators: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for moment in ("open", "stop", "save", "mark_step"):
        monkeypatch.setattr(Window, moment, lambda *_arguments: None)
    (tmp_path / "rank0").mkdir()
    hub: Any = SimpleNamespace(torch=torch, rank=0, world_size=1, folder=tmp_path / "rank0", uses_cuda=False)
    hub.steps, hub.end_ns, hub.input_ns = SimpleNamespace(loader=None), lambda: 0, lambda: 0
    sites: Any = SimpleNamespace(ownership=None)
    allocations: Any = SimpleNamespace(end_history=lambda: None)
    tracing = Tracing({"steps": 4}, hub, sites, allocations, list)
    tracing._operators.per_step = operators
    tracing.steady.reason = "steady"
    monkeypatch.setattr(tracing.steady, "step_ended", lambda _end_ns: True)
    tracing._warming_up(5)
    tracing._finish()
    tracing._window.wait()
    assert tracing.finished is not None
    assert tracing.finished["steady"].partition(", as")[0] == f"steady{said}"
