"""Whether what a fix claims to move did move: read from one window of each arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trial import mechanism as module
from diagnose.trial.ab.result import Comparison
from diagnose.trial.mechanism import mechanism
from diagnose.verdict import Pair

MS = 1_000_000
BUSY = drawn("gpu : kkkkkkkk..kkkkkkkk..\nstep: |         |         |")
HALF = drawn("gpu : kkkk......kkkk......\nstep: |         |         |")
HOST_LATE = drawn("host: oooooooooooooooooooo\ngpu : k...k.....k...k.....\nstep: |         |         |")
HOST_QUICK = drawn("host: oo...............\ngpu : kkkk......kkkk......\nstep: |         |         |")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> type[Compared]:
    """Windows are drawings, looked up by the name of their file."""
    monkeypatch.setattr(module, "open_traces", lambda paths: [Compared.windows[path.name] for path in paths])
    return Compared


class Compared(Comparison):
    """A fifth of a step of 10 ms was saved."""

    windows: dict[str, Trace] = {}  # noqa: RUF012 - filled anew by each

    def __init__(self, before: Trace, after: Trace) -> None:
        type(self).windows = {"before": before, "after": after}
        pairs = [Pair(generation, 10.0 * MS, 8.0 * MS) for generation in (0, 0, 1, 1)]
        super().__init__(pairs=pairs, step_ns=10 * MS, traces=([Path("before")], [Path("after")]))


def test_a_class_must_fall_by_a_quarter_of_the_time_saved(compared: type[Compared]) -> None:
    found = mechanism("compute", compared(BUSY, HALF))
    assert (found.before, found.after, found.moved) == (8 * MS, 4 * MS, True)
    assert mechanism("compute", compared(HALF, BUSY)).moved is False
    assert mechanism("compute", compared(BUSY, BUSY)).moved is False


def test_a_sum_of_classes_moves_wherever_the_gain_shows(compared: type[Compared]) -> None:
    measure = "compute+idle.dispatch+idle.launch"
    assert mechanism(measure, compared(BUSY, HALF)).moved is True
    launch_bound = compared(HOST_LATE, HOST_QUICK)
    assert mechanism("compute", launch_bound).moved is False
    assert mechanism(measure, launch_bound).moved is True


def test_a_window_of_short_steps_need_show_its_own_part_of_the_saving_only(compared: type[Compared]) -> None:
    """One step in many is far longer, and comes in no window: the mean step takes ten times the window's."""
    found = compared(BUSY, HALF)
    found.step_ns = 100 * MS
    assert mechanism("compute", found).moved is True
    found = compared(BUSY, BUSY)
    found.step_ns = 100 * MS
    assert mechanism("compute", found).moved is False


def test_waiting_for_input_is_known_of_every_measured_step(compared: type[Compared]) -> None:
    found = compared(BUSY, BUSY)
    found.input_ns = (5.0 * MS, 1.0 * MS)
    assert mechanism("idle.input", found).moved is True


def test_a_window_that_waits_for_input_longer_than_measured_steps_did_is_not_held_against_a_fix(
    compared: type[Compared],
) -> None:
    """A loader's workers rest while a window opens, and then make up for it beside those of the other arm."""
    waiting = drawn(
        """
        load: wwwwwwww   wwwwwwww
        host:         ol         ol
        gpu :          k          k
        step: |         |          |
        """
    )
    found = compared(HOST_LATE, waiting)
    measure = "compute+exposed_copy+idle"
    assert mechanism(measure, found).moved is False
    found.input_ns = (0.0, 3.0 * MS)
    seen = mechanism(measure, found)
    assert seen.moved is True
    assert seen.after == 2.5 * MS + 3 * MS  # what is no waiting, and as much waiting as measured steps have
    found.input_ns = (0.0, 8.0 * MS)  # so did the measured steps: no part of them is longer than they are
    assert mechanism(measure, found).after == 8 * MS


def test_a_window_between_two_waits_for_input_has_those_of_measured_steps(compared: type[Compared]) -> None:
    """Workers bring their batches together: a window of few steps holds a wait or none."""
    found = compared(HALF, BUSY)
    measure = "compute+exposed_copy+idle"
    assert mechanism(measure, found).moved is False
    found.step_ns = 100 * MS
    found.input_ns = (90.0 * MS, 70.0 * MS)
    seen = mechanism(measure, found)
    assert (seen.before, seen.after, seen.moved) == (97 * MS, 79 * MS, True)  # 3 and 1 of 10 ms were such waits
    found.input_ns = (70.0 * MS, 70.0 * MS)
    assert mechanism(measure, found).moved is False


def waits(count: int, length: int = 100) -> Trace:
    """A device that is hardly ever idle, and a host that waits for it so many times in a step."""
    return drawn(f"host: {'s.' * count:<{length}}\ngpu : .{'k' * (length - 2)}\nstep: {'|':>{length}}", repeat=4)


@pytest.mark.parametrize(
    ("before", "after", "moved"), [(40, 39, True), (4, 3, True), (40, 40, False), (3, 4, False), (40, 0, True)]
)
def test_a_count_must_fall_by_a_call_per_step(compared: type[Compared], before: int, after: int, moved: bool) -> None:
    found = mechanism("sync_calls", compared(waits(before), waits(after)))
    assert (found.unit, found.before, found.after, found.moved) == ("count", before, after, moved)


def test_a_measure_of_another_name_and_a_missing_window_cannot_be_told(compared: type[Compared]) -> None:
    assert mechanism("idle.typo", compared(BUSY, HALF)).moved is None
    found = compared(BUSY, HALF)
    found.traces = ([Path("before")], [])
    assert mechanism("compute", found).moved is None
