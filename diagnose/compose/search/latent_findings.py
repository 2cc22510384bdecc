"""Findings too small to report in the program as found that become large once other fixes have shortened the step.

Such a fix has no trial of its own, which would find nothing in a step that is still slow. It rides along in the common
trial of those whose savings bring it to light, where it costs no time: only fixes of few lines that bring no compiler
where there is none, and promise no less of the numbers than what is tried anyway. What changes the training rides along
only where the training is judged in any case, and only for a clear saving or to complete another that rides along
(`Fixer.completes`); what changes loading, which takes processes and memory, only for what would be kept alone. Whether
it was worth its lines is asked in the end, as of all the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diagnose.compose.journal import listed
from diagnose.compose.proposals.candidates import Candidate, candidates, followed
from diagnose.compose.proposals.constraints import excluded_by
from diagnose.compose.proposals.proposals import next_up
from diagnose.compose.search.bundle import Bundle, Gathering
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Fixer
from diagnose.model import Finding, Gate
from diagnose.plugins import Catalogue
from diagnose.program import Program, patch
from diagnose.units import format_share
from diagnose.verdict import CLEAR_SAVING, LEAST_SAVING
from diagnose.what_if import StepWithout

LEAST_SHARE = 0.0025
"""A share of the step that is left, for all that a fix treats: half of what makes a finding. A replay takes causes out
and is blind to what else fixes do: of 77 ms that it foresaw of a GPT of 385 ms on an H200, trials left 41."""
MOST_LINES = 16
"""The most lines that an edit may write: a saving of less than a percent is not worth more to review."""


def with_foreseen(
    bundle: Bundle,
    base: Stack,
    foresight: StepWithout,
    program: Program,
    catalogue: Catalogue,
    waiting: Sequence[Fixer],
    done: Collection[str] = (),
) -> Bundle:
    """The bundle, gathered on `base`, with what is foreseen beside it, but for fixers that have a turn of their own:
    that wait for it, or are `done` with it.

    Nothing that is small takes the place of a finding's fix that is still to be tried.
    """
    own_turn = {*done, *(fixer.name for fixer in waiting)}
    later = [fixer for fixer in waiting if fixer.name not in bundle.names]
    found = [
        one
        for one in candidates(program, foresight.findings, catalogue)
        if one.fixer.name not in own_turn and excluded_by(one.fixer, later) is None
    ]
    left = followed(found, base.texts, bundle.stack.texts)
    while left:
        proposal = next_up(left)
        own = [one for one in left if one.fixer.name == proposal.fixer.name]
        left = [one for one in left if one.fixer.name != proposal.fixer.name]
        grown = _with_one(bundle, base, own)
        if grown is not None:
            left = followed(left, bundle.stack.texts, grown.stack.texts)
            bundle = grown
    return bundle


def _with_one(bundle: Bundle, base: Stack, own: Sequence[Candidate]) -> Bundle | None:
    """The bundle with one more fix in it, also without what changes the training; None where that has no place."""
    fixer = own[0].fixer
    completes = not bundle.foreseen.isdisjoint(fixer.completes)
    brings_compiler = fixer.compiles and not any(one.compiles for one in bundle.fixers)
    if brings_compiler or fixer.gate not in _allowed(bundle):
        return None
    whole = Gathering(base, _allowed(bundle), bundle.stack, bundle.members)
    whole.put_on(own, trains=None, foreseen=True)
    if whole.stack is bundle.stack or _written(bundle.stack, whole.stack) > MOST_LINES:
        return None
    trains = whole.members[-1].variants[0].fixer.gate is Gate.TRAINING
    least = CLEAR_SAVING if trains else LEAST_SAVING if fixer.changes_loading else LEAST_SHARE
    if not completes and _share(whole.members[-1].proposal.findings) < least:
        return None
    harmless = whole.stack if not bundle.trains else bundle.harmless
    if bundle.trains and not trains:
        part = Gathering(base, _allowed(bundle), bundle.harmless, bundle.without_training.members)
        part.put_on(followed(own, bundle.stack.texts, bundle.harmless.texts), trains=False, foreseen=True)
        if part.stack is bundle.harmless:
            return None
        harmless = part.stack
    return Bundle(tuple(whole.members), whole.stack, harmless)


def in_words(findings: Sequence[Finding], gone: Collection[str]) -> str:
    """Why a fix rides along."""
    rules = " and ".join(dict.fromkeys(finding.rule for finding in findings))
    are = "is" if len(gone) == 1 else "are"
    return f"{rules} would be {format_share(_share(findings))} of the step once {listed(sorted(gone))} {are} gone"


def _allowed(bundle: Bundle) -> frozenset[Gate]:
    """No bolder promise than the others make."""
    boldest = max(fixer.gate.boldness for fixer in bundle.fixers)
    return frozenset(gate for gate in Gate if gate.boldness <= boldest)


def _written(before: Stack, after: Stack) -> int:
    """Return how many lines an edit writes in all files, in the place of others or not."""
    diff = patch.diff(before.texts, after.texts, after.program.root)
    return sum(line.startswith("+") and not line.startswith("+++ ") for line in diff.splitlines())


def _share(findings: Sequence[Finding]) -> float:
    return sum(finding.share for finding in findings)
