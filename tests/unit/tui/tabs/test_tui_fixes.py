"""The list of fixes on the screen: each fix once, however often it was tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from composing import ITEM, LOADER, Stage, finding

from diagnose.model import Decision
from diagnose.session import TrialStarted, VerdictReached, fold
from diagnose.tui.tabs.fixes import TRYING, fixes_of

pytestmark = pytest.mark.usefixtures("nothing_new")


def checked(folder: Path, found: Decision) -> Stage:
    """Two fixes kept, then the first of them checked once more."""
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(folder, [LOADER, ITEM], findings, dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT))
    stage.bench.left_out = {"faster-loader": found}
    stage.run()
    return stage


def test_a_fix_that_is_still_needed_is_listed_once_with_the_pairs_of_its_own_trial(tmp_path: Path) -> None:
    state = fold(checked(tmp_path, Decision.KEPT).events)
    assert len(state.trials) == 3
    first, second = fixes_of(state)
    assert (first.name, second.name) == ("faster-loader", "no-item")
    assert first.trial is state.trials[0]
    assert first.verdict is state.verdicts[0]
    assert "still needed beside no-item" in state.verdicts[0].summary


def test_a_fix_that_is_taken_out_again_shows_the_check_that_did_it(tmp_path: Path) -> None:
    state = fold(checked(tmp_path, Decision.NO_CHANGE).events)
    first, _ = fixes_of(state)
    assert (first.key, first.trial) == ("trial-0", state.trials[2])
    assert first.verdict is not None
    assert first.verdict.decision is Decision.NO_CHANGE


def test_while_it_is_checked_it_is_being_tried(tmp_path: Path) -> None:
    events = checked(tmp_path, Decision.KEPT).events
    last = max(at for at, event in enumerate(events) if isinstance(event, TrialStarted))
    assert not any(isinstance(event, VerdictReached) for event in events[last : last + 1])
    first, second = fixes_of(fold(events[: last + 1]))
    assert (first.key, first.look) == ("trial-0", TRYING)
    assert second.look is not TRYING
