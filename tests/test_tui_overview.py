"""What the first tab says of fixes while they are tried."""

from __future__ import annotations

from diagnose.model import Decision, Verdict
from diagnose.session import State, TrialStarted, TrialState
from diagnose.tui.overview import Outcome

STARTED = TrialStarted(fixer="drop-debug", setting={}, predicted_ns=None, summary="no checks", diff="")


def said(state: State) -> str:
    panel = Outcome()
    panel.state = state
    return "\n".join(line.plain for line in panel.draw(80, None))


def test_while_the_first_is_tried_none_of_none_is_not_counted() -> None:
    assert said(State(trials=(TrialState(STARTED),))) == "Fixes  ▸ trying drop-debug"


def test_what_was_kept_so_far_is_counted() -> None:
    kept = Verdict("other", Decision.KEPT, "22 % of the step saved")
    assert said(State(trials=(TrialState(STARTED),), verdicts=(kept,))) == "Fixes  1 of 1 kept   ▸ trying drop-debug"
