"""How a run that tried fixes ended, where no final figures say it."""

from __future__ import annotations

from diagnose.errors import Cancelled, ProgramFailed
from diagnose.model import Decision
from diagnose.report.sections.verdict_table import (
    Alike,
    advised,
    basis,
    is_dry,
    is_idle,
    kept_alike,
    measured,
    told_from_none,
    undecided,
    untried,
)
from diagnose.report.style.vocabulary import named_count
from diagnose.report.wording.health import is_quiet
from diagnose.report.wording.phrases import sentence
from diagnose.session import State
from diagnose.units import format_ns, format_share


def found_without_edits(state: State) -> bool:
    """Whether fixes were looked for, and no fixer had anything to try or to advise."""
    if state.started is None or state.started.command != "fix" or not all(map(is_idle, state.verdicts)):
        return False
    ended_well = state.ended is not None and state.ended.exit_code == 0
    found = state.diagnosis is not None and bool(state.diagnosis.findings) and not is_quiet(state.diagnosis)
    return ended_well and found


def nothing_kept(state: State) -> str:
    """Return a sentence about a run that tried fixes and kept none; empty for all others."""
    if found_without_edits(state):
        return "No fixer has an edit for what was found here: your program stays as it is."
    if state.ended is None or state.final is not None or is_dry(state):
        return ""
    if cut_short(state):
        return _so_far(state)
    if not state.verdicts or (state.patch is not None and state.patch.diff):
        return ""
    unsettled = len(undecided(state))
    parts = (
        (len(measured(state.verdicts)) - unsettled, "measured"),
        (unsettled, "undecided"),
        (sum(len(alike.verdicts) for alike in untried(state.verdicts)), "not tried"),
        (len(advised(state.verdicts)), "left to you"),
        (sum(map(is_idle, state.verdicts)), "with nothing to change"),
    )
    counts = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"No fix was kept ({counts}): your program stays as it is."


def kept_by_trial(state: State) -> str:
    """Return what the kept fixes save by their trials, where the patched program was not run alone. Empty for all
    others.

    Savings of several trials are not added up: what they come to together was not measured.
    """
    if state.final is not None or cut_short(state) or state.patch is None or not state.patch.diff:
        return ""
    groups = kept_alike(state.verdicts)
    savings = [saved for alike in groups if (saved := _saved_by(state, alike))]
    if not savings:
        return ""
    count = sum(len(alike.verdicts) for alike in groups)
    trial = "a trial of its own each" if len(groups) > 1 else "its trial" if count == 1 else "their trial"
    said = f"{named_count(count, 'kept fix', 'kept fixes')}: {'; '.join(savings)}, by {trial}"
    return f"{said}; the patched program was not run alone"


def _saved_by(state: State, alike: Alike) -> str:
    """Return what fixes that rest on one trial save by it; empty where that is unknown."""
    trial = basis(state, alike)
    if trial.saving is None or trial.saving_ns is None:
        return ""
    *others, last = [verdict.fixer for verdict in alike.verdicts]
    who = f"{', '.join(others)} and {last} together save" if others else f"{last} saves"
    return f"{who} {format_ns(trial.saving_ns)} or {format_share(trial.saving.estimate)} of each step"


def _so_far(state: State) -> str:
    """Return what is left of trials that did not come to their end; empty where none had begun."""
    if not (state.control or state.trials or state.verdicts):
        return ""
    how = "Interrupted" if interrupted(state) else "Ended by an error"
    kept = [verdict.fixer for verdict in state.verdicts if verdict.decision is Decision.KEPT]
    said = f"{how} before a fix was kept: your program stays as it is."
    if kept:
        held = f"all that held so far ({', '.join(kept)})"
        said = f"{how} before {held} was measured as a whole: there is no patch to apply."
    error = state.ended.message.strip() if state.ended is not None and not interrupted(state) else ""
    return f"{said} {sentence(error.splitlines()[0])}" if error else said


def restless(state: State) -> str:
    """Why fixes that were measured are neither kept nor shown to bring nothing. Empty where the machine was quiet."""
    open_still = undecided(state)
    if not open_still:
        return ""
    names = ", ".join(
        f"{verdict.fixer} (up to {format_share(min(verdict.saving.high, 1.0))})"
        for verdict in open_still
        if verdict.saving is not None
    )
    coarsest = max(told_from_none(state, verdict) for verdict in open_still)
    return (
        f"Undecided: {names}. This machine is too noisy to measure savings below {format_share(coarsest)} of a step: "
        "run the same command again with nothing else on it"
    )


def cut_short(state: State) -> bool:
    """Whether a run ended before its fixes had their last word, or goes on: a diff that it has is no patch yet."""
    return state.ended is None or state.ended.exit_code != 0


def is_failed(state: State) -> bool:
    """Whether the program failed by itself."""
    return state.ended is not None and state.ended.exit_code == ProgramFailed.exit_code and bool(state.ended.message)


def interrupted(state: State) -> bool:
    """Whether the user ended it."""
    return state.ended is not None and state.ended.exit_code == Cancelled.exit_code
