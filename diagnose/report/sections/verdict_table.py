"""The verdicts of a run as people want to read them: what holds first, what was not tried by its reason, advice apart.

A reason that several fixes share is said once. Words in parentheses at the end of a reason are about one fix alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.model import TOGETHER, Decision, Finding, Verdict
from diagnose.report.style.paths import place
from diagnose.report.style.vocabulary import DECISIONS, NO_EDIT, UNDECIDED, Look
from diagnose.session import State
from diagnose.units import format_ns
from diagnose.verdict import LEAST_SAVING

_ITS_OWN = re.compile(r" \([^()]*\)$")
_SAVED = " of the step saved ("
_ASKS = "--allow training"
_LATE = "the budget "
"""How every reason begins that is a lack of time (`diagnose.compose.search.budget`)."""
_IDLE = "nothing to change"
"""How the reason begins of a fixer that a finding names and that has no edit here (`diagnose.compose.journal`)."""
_RESTLESS = 0.05
"""A machine that tells no smaller changes of a step than this leaves good fixes undecided: most save less."""


@dataclass(frozen=True)
class Alike:
    """Fixes of which the same is to be said."""

    words: str
    verdicts: tuple[Verdict, ...]


def measured(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that had a trial, or failed on the way to one: the kept ones first, else in their order."""
    had = [verdict for verdict in verdicts if verdict.decision not in (Decision.NOT_TRIED, Decision.ADVICE)]
    return sorted(had, key=lambda verdict: verdict.decision is not Decision.KEPT)


def is_idle(verdict: Verdict) -> bool:
    """Whether there was nothing to try: the fixer has no edit for this program."""
    return verdict.decision is Decision.NOT_TRIED and verdict.summary.startswith(_IDLE)


def idle(verdicts: Sequence[Verdict]) -> str:
    """A sentence on the fixers that a finding names and that have no edit; empty where there are none."""
    names = [verdict.fixer for verdict in verdicts if is_idle(verdict)]
    if not names:
        return ""
    name, what = (names[0], "it") if len(names) == 1 else ("NAME", "each of them")
    nothing = f"Nothing to change in the program as it stands for {', '.join(names)}"
    return f"{nothing}. `diagnose explain {name}` says what {what} changes."


def without_edit(state: State, finding: Finding) -> list[str]:
    """Why fixers that a finding names have no edit for it, in a sentence each, those first whose reason is their own;
    empty before they were asked.
    """
    asked = {verdict.fixer: verdict for verdict in state.verdicts if verdict.fixer in finding.fixers}
    own = [f"{name}: {one.summary.split('. ')[0]}" for name, one in asked.items() if one.decision is Decision.ADVICE]
    others = [name for name, one in asked.items() if is_idle(one)]
    if not others:
        return own
    root = state.started.cwd if state.started else None
    at = f" at {place(finding.where[0], root)}" if finding.where else " in the program as it stands"
    return [*own, f"{', '.join(others)}: {_IDLE}{at}"]


def untried(verdicts: Sequence[Verdict]) -> list[Alike]:
    """Return the fixes that had an edit and no trial, grouped by reason. A reason with a single fix keeps that fix's
    own words.
    """
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.decision is Decision.NOT_TRIED and not is_idle(verdict):
            groups.setdefault(_ITS_OWN.sub("", verdict.summary), []).append(verdict)
    return [Alike(words if len(alike) > 1 else alike[0].summary, tuple(alike)) for words, alike in groups.items()]


def fell_apart(state: State) -> list[str]:
    """A sentence for each trial of many at once that kept none of them: its fixes then had trials of their own."""
    lost = [
        (trial.started.summary, trial.verdict)
        for trial in state.trials
        if trial.started.fixer == TOGETHER and trial.verdict is not None and trial.verdict.decision is not Decision.KEPT
    ]
    return [
        f"{names}: {look(state, verdict).label}, {verdict.summary}; they were then tried apart"
        for names, verdict in lost
    ]


def kept_alike(verdicts: Sequence[Verdict]) -> list[Alike]:
    """Return the kept fixes. Those that rest on one common trial alone are one entry."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.decision is Decision.KEPT:
            groups.setdefault((verdict.summary, "" if verdict.saving is None else verdict.fixer), []).append(verdict)
    return [Alike(words, tuple(alike)) for (words, _), alike in groups.items()]


def rows(state: State) -> list[Verdict]:
    """Return the rows of the table of measurements: common trials that were kept, then each fix."""
    return [*_common(state), *measured(state.verdicts)]


def basis(state: State, alike: Alike) -> Verdict:
    """Return the verdict that alike fixes rest on: that of their common trial if there was one, else their own."""
    own = alike.verdicts[0]
    if own.saving is not None:
        return own
    return next((common for common in _common(state) if own.summary.endswith(common.summary)), own)


def _common(state: State) -> list[Verdict]:
    return [
        trial.verdict
        for trial in state.trials
        if trial.verdict is not None and trial.started.fixer == TOGETHER and trial.verdict.decision is Decision.KEPT
    ]


def dropped(verdicts: Sequence[Verdict]) -> list[Alike]:
    """Return the fixes that were measured and not kept; equal outcomes are one entry."""
    groups: dict[tuple[Decision, str], list[Verdict]] = {}
    for verdict in measured(verdicts):
        if verdict.decision is not Decision.KEPT:
            groups.setdefault((verdict.decision, verdict.summary), []).append(verdict)
    return [Alike(words, tuple(alike)) for (_, words), alike in groups.items()]


def advised(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that advise the user to edit by hand."""
    return [verdict for verdict in verdicts if verdict.decision is Decision.ADVICE]


def promise(verdict: Verdict) -> str:
    """`pad-vocabulary (5.99 ms)`: a fix with what it was predicted to save."""
    return f"{verdict.fixer} ({format_ns(verdict.predicted_ns)})" if verdict.predicted_ns else verdict.fixer


def remark(verdict: Verdict) -> str:
    """The part of a verdict's sentence that its figures, shown beside it, do not say; may be empty."""
    known = verdict.gate.detail.split("; ") if verdict.gate else []
    first, *others = verdict.summary.split("; ")
    said = [] if verdict.saving is not None and _SAVED in first else [first]
    if verdict.fixer == TOGETHER:
        said = ["tried at once", *said]
    return "; ".join(said + [part for part in others if part not in known])


def is_dry(state: State) -> bool:
    """Whether the run only tells what it would try."""
    return state.started is not None and state.started.dry


def not_allowed(state: State) -> list[Verdict]:
    """Return the fixes that need the user's permission because they change the training itself."""
    return [
        verdict for verdict in state.verdicts if verdict.decision is Decision.NOT_TRIED and _ASKS in verdict.summary
    ]


def out_of_time(state: State) -> list[Verdict]:
    """Return the fixes that a longer budget would have tried."""
    return [
        verdict
        for verdict in state.verdicts
        if verdict.decision is Decision.NOT_TRIED and verdict.summary.startswith(_LATE)
    ]


def undecided(state: State) -> list[Verdict]:
    """Return the fixes that may save enough, but on a machine too noisy to tell; unlike "no change"."""
    return [verdict for verdict in state.verdicts if _is_undecided(state, verdict)]


def _is_undecided(state: State, verdict: Verdict) -> bool:
    saving = verdict.saving
    if verdict.decision is not Decision.NO_CHANGE or saving is None or saving.high <= _RESTLESS:
        return False
    # A trial that scatters more than its control leaves open only what looked faster.
    told = told_from_none(state, verdict) if saving.estimate > LEAST_SAVING else _resolution(state, verdict)
    return told > _RESTLESS


def look(state: State, verdict: Verdict) -> Look:
    """Return how a verdict of a run is shown: its decision, but for what is undecided, and for a fixer without an
    edit."""
    if is_idle(verdict):
        return NO_EDIT
    return UNDECIDED if _is_undecided(state, verdict) else DECISIONS[verdict.decision]


def told_from_none(state: State, verdict: Verdict) -> float:
    """The smallest change that its trial could tell: half of its interval, or what the machine resolves."""
    scatter = (verdict.saving.high - verdict.saving.low) / 2 if verdict.saving is not None else 0.0
    return max(_resolution(state, verdict), scatter)


def _resolution(state: State, verdict: Verdict) -> float:
    """Return what the machine resolves, by the trial itself, else by the run's control; 0: unknown."""
    control = state.control.resolution if state.control is not None else 0.0
    return control if verdict.resolution is None else verdict.resolution
