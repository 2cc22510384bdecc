"""What a journal's verdicts come to: the last word on each fix, beside the advice on it."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import Decision, Verdict
from diagnose.session import AnyEvent, State, TrialBlock, TrialStarted, VerdictReached, fold

KEPT = Verdict("a-fix", Decision.KEPT, "saves time")
DROPPED = replace(KEPT, decision=Decision.NO_CHANGE, summary="no longer needed")
OTHER = Verdict("b-fix", Decision.SLOWER, "takes time")
ADVICE = Verdict("a-fix", Decision.ADVICE, "line 9 is left alone")


def reached(*verdicts: Verdict) -> State:
    return fold(VerdictReached(verdict=verdict) for verdict in verdicts)


def started(fixer: str) -> TrialStarted:
    return TrialStarted(fixer=fixer, setting={}, predicted_ns=1, summary="", diff="")


def test_a_later_verdict_takes_the_place_of_the_earlier_one_on_the_same_fix() -> None:
    assert reached(KEPT, OTHER, DROPPED).verdicts == (DROPPED, OTHER)


def test_advice_stands_beside_what_was_measured_whichever_comes_first() -> None:
    second = replace(ADVICE, summary="line 12 is left alone")
    assert reached(ADVICE, KEPT, second, DROPPED).verdicts == (ADVICE, DROPPED, second)


def test_a_second_trial_of_a_fix_takes_its_own_blocks_and_verdict() -> None:
    block = TrialBlock(fixer="a-fix", pair=0, original_ns=2, patched_ns=1)
    more = TrialBlock(fixer="a-fix", pair=1, original_ns=2, patched_ns=1)
    events: list[AnyEvent] = [started("a-fix"), block, VerdictReached(verdict=KEPT), started("a-fix"), block, more]
    running = fold(events)
    assert [(len(trial.blocks), trial.verdict) for trial in running.trials] == [(1, KEPT), (2, None)]
    done = running.after(VerdictReached(verdict=DROPPED))
    assert [trial.verdict for trial in done.trials] == [KEPT, DROPPED]
    assert done.verdicts == (DROPPED,)


def test_pairs_of_a_trial_that_begins_anew_count_anew() -> None:
    pairs = [TrialBlock(fixer="a-fix", pair=number, original_ns=2, patched_ns=1) for number in (0, 1, 0)]
    assert fold([started("a-fix"), *pairs]).trials[0].blocks == (pairs[2],)


def test_a_verdict_without_a_trial_of_its_own_is_the_last_word_on_the_trial_there_was() -> None:
    events: list[AnyEvent] = [
        started("a-fix"),
        VerdictReached(verdict=KEPT),
        started("b-fix"),
        VerdictReached(verdict=OTHER),
    ]
    rejected = replace(KEPT, decision=Decision.CHANGES_NUMBERS)
    state = fold([*events, VerdictReached(verdict=ADVICE), VerdictReached(verdict=rejected)])
    assert [trial.verdict for trial in state.trials] == [rejected, OTHER]
    assert state.verdicts == (rejected, OTHER, ADVICE)
