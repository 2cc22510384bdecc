"""What the first tab says of the step, and of fixes while they are tried."""

from __future__ import annotations

from diagnose.compose.journal import NOTHING_TO_CHANGE
from diagnose.model import Accounting, Decision, Diagnosis, OperatorRow, StepProfile, Steps, Verdict
from diagnose.session import PatchAccepted, RunEnded, RunStarted, State, TrialStarted, TrialState
from diagnose.tui.header import TabStrip
from diagnose.tui.panels.overview_panels import CostliestPanel
from diagnose.tui.tabs.overview import Outcome, beneath_the_bar

STARTED = TrialStarted(fixer="drop-debug", setting={}, predicted_ns=None, summary="no checks", diff="")


def said(state: State, width: int = 80) -> str:
    panel = Outcome()
    panel.state = state
    return "\n".join(line.plain for line in panel.draw(width, None))


def test_while_the_first_is_tried_none_of_none_is_not_counted() -> None:
    assert said(State(trials=(TrialState(STARTED),))) == "Fixes  ▸ trying drop-debug"


def test_what_was_kept_so_far_is_counted() -> None:
    kept = Verdict("other", Decision.KEPT, "22 % of the step saved")
    assert said(State(trials=(TrialState(STARTED),), verdicts=(kept,))) == "Fixes  1 of 1 kept   ▸ trying drop-debug"


def test_what_to_type_next_keeps_to_what_it_does_where_the_rest_has_no_room() -> None:
    state = State(
        started=RunStarted(command="fix", program="train.py", cwd="/here", version="0.1.0"),
        patch=PatchAccepted(diff="+x = 1\n", fixers=["other"]),
        ended=RunEnded(returncode=0, exit_code=0),
    )
    assert said(state, 80).splitlines()[-1] == "Next  diagnose apply  writes this diff to your files"
    assert said(state, 120).endswith("; `diagnose revert` takes it back byte for byte")


def test_a_fixer_without_an_edit_is_no_fix_in_the_tab_s_count() -> None:
    kept = Verdict("other", Decision.KEPT, "22 % of the step saved")
    idle = Verdict("idle", Decision.NOT_TRIED, NOTHING_TO_CHANGE)
    tabs = TabStrip()
    tabs.state = State(verdicts=(kept, idle), patch=PatchAccepted(diff="+x = 1\n", fixers=["other"]))
    assert "2 Fixes 1/1" in tabs.draw(80, None)[0].plain


def test_what_bounds_the_compute_is_said_where_there_is_room() -> None:
    spent = Accounting(compute=10**8, compute_by={"memory": 9 * 10**7, "matmul": 10**7})
    diagnosis = Diagnosis(1, ("rank0",), 1, "NVIDIA H200", Steps(1, 10**8), spent, has_device=True)
    bounds = "Of the compute, by what bounds it: 90 % kernels that wait for memory, 10 % matrix products."
    for tall in (True, False):
        assert (bounds in [words for words, _ in beneath_the_bar(diagnosis, tall=tall)]) == tall


def test_without_a_device_the_operators_that_take_most_stand_where_the_kernels_would() -> None:
    panel = CostliestPanel()
    operators = tuple(OperatorRow(f"aten::op{number}", 4_000_000, 0, 2) for number in range(9))
    panel.state = State(profile=StepProfile(None, step_count=2, total_ns=20_000_000, operators=operators))
    lines = [line.plain for line in panel.draw(40, 6)]
    assert lines[1].startswith("Operators that take most")
    assert lines[2:] == [f" 2.00 ms   20 %  aten::op{number}" for number in range(4)]
    assert panel.draw(40, 4) == []  # fewer than three rows tell little
