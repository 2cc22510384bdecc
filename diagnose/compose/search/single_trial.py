"""One fix in a trial of its own: the first of its settings that holds.

The first setting is the one that is predicted to pay, or the cheapest. Where it holds, the fix is kept at once, and the
others are compared with it in the end (tuning.py). Where it does not, they are compared with each other, and the best
of them has a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.compose.journal import Journal
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import ProposedEdits, Variant
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.tuning import outcome
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Edits, Fixer
from diagnose.model import Decision, Interval, Scalar, Verdict
from diagnose.program import Program
from diagnose.session import TrialStarted
from diagnose.trial.ab.knob_search import is_scale
from diagnose.trial.bench import Bench, Trial
from diagnose.units import format_bytes, format_setting
from diagnose.verdict import LEAST_SAVING

BREAKS_DOWN = frozenset({Decision.FAILED, Decision.OUT_OF_MEMORY, Decision.CHANGES_NUMBERS})
"""The decisions that one setting, or one fix of many, may lead to and another not."""
_DEPENDS_ON_SETTING = BREAKS_DOWN | {Decision.NO_CHANGE, Decision.SLOWER, Decision.UNEXPLAINED}
"""The decisions of a trial that may hold for one setting of a fix and not for another."""
_ATTEMPTS = 2
"""Settings of one fixer that have a full trial at most, once the first did not hold."""
_LEAST_FREED = 0.05
"""A share of the peak: where memory is short, freeing less is not worth a line of anyone's source. Allocators round by
less."""


@dataclass(frozen=True)
class Held:
    """A fix that held, with the copy of the program that has it in."""

    variant: Variant
    trial: Trial
    patched: Program
    tuned: bool
    """Whether nothing is left to ask of its other settings."""


@dataclass(frozen=True)
class SingleTrials:
    """Trials of single fixes on top of a stack."""

    bench: Bench
    copy: Callable[[Stack, str, Edits | None], Program]
    """A copy of the program with a stack in it, and perhaps one answer more."""
    journal: Journal
    budget: Budget

    def run(self, ready: ProposedEdits, stack: Stack, original: Program, baseline: Program) -> Held | None:
        """Run the trial of the first setting on top of the stack, which `baseline` has in it; where that does not hold,
        of the best of the others.

        Where the chosen setting breaks down in its trial, the next best has one: what breaks in one mode of a compiler
        may hold in another.
        """
        name, proposal = ready.proposal.fixer.name, ready.proposal

        def attempt(variant: Variant, patched: Program) -> tuple[Trial, bool]:
            return self._trial(proposal, variant, stack, patched, original, baseline)

        first, others = ready.variants[0], ready.variants[1:]
        patched = self.copy(stack, name, first.answer)
        trial, in_time = attempt(first, patched)
        if trial.verdict.decision is Decision.KEPT:
            return Held(first, trial, patched, tuned=not in_time)
        if trial.verdict.decision not in _DEPENDS_ON_SETTING:
            return None
        others = tuple(others[at] for at in self.budget.choices(proposal.fixer, len(others)))
        copies = [self.copy(stack, name, variant.answer) for variant in others]
        ranking = self._choose(proposal.fixer, [variant.setting for variant in others], copies)
        for chosen in ranking[:_ATTEMPTS]:
            if self.budget.refused(proposal.fixer) is not None:
                return None
            trial, _ = attempt(others[chosen], copies[chosen])
            if trial.verdict.decision is Decision.KEPT:
                return Held(others[chosen], trial, copies[chosen], tuned=True)
            if trial.verdict.decision not in BREAKS_DOWN:
                return None
        return None

    def _trial(
        self,
        proposal: Proposal,
        variant: Variant,
        stack: Stack,
        patched: Program,
        original: Program,
        baseline: Program,
    ) -> tuple[Trial, bool]:
        """One variant against the stack as it stands, and whether time alone decided; told."""
        fixer, diff = variant.fixer, stack.diff(variant.answer)
        self.journal.record(
            TrialStarted(
                fixer=fixer.name,
                setting=dict(variant.setting),
                predicted_ns=proposal.predicted_ns,
                summary=variant.answer.summary,
                diff=diff,
                where=list(proposal.where),
            )
        )
        # With only bitwise fixes below it, the original has the numbers of the baseline, and is captured already.
        numbers = original if stack.bitwise else baseline
        # Where time is counted, what saves far less than it promised leaves its time to others.
        promised = proposal.share if self.budget.deadline.at_ns is not None else 0.0
        telling = self.journal.telling(fixer.name)
        sure = self.journal.telling_sure(proposal, setting=dict(variant.setting), diff=diff)
        trial = self.bench.attempt(
            fixer,
            baseline,
            patched,
            telling,
            numbers,
            promised=promised,
            on_sure=sure,
            may_wait=True,
        )
        judged = self._beside_time(trial.verdict, proposal, fixer, numbers, patched)
        self.journal.tell_of(replace(judged, setting=dict(variant.setting), diff=diff), proposal)
        return replace(trial, verdict=judged), judged.decision is trial.verdict.decision

    def _beside_time(
        self, verdict: Verdict, proposal: Proposal, fixer: Fixer, numbers: Program, patched: Program
    ) -> Verdict:
        """The verdict on a fix that takes no time off a step; kept for another reason to have it, if it harms none."""
        reason = _reason(verdict, proposal) if verdict.decision is Decision.NO_CHANGE else None
        if reason is None:
            return verdict
        loading = fixer.changes_loading
        gate = self.bench.gate(fixer.gate, numbers, patched, fixer.rounds_to, loading=loading)
        if gate.passed is not True:
            return replace(verdict, gate=gate)
        said = f"the step takes as long as before, but {reason}; {gate.detail}"
        return replace(verdict, decision=Decision.KEPT, summary=said, gate=gate)

    def _choose(self, fixer: Fixer, settings: Sequence[Mapping[str, Scalar]], copies: Sequence[Program]) -> list[int]:
        if len(copies) < 2:
            return list(range(len(copies)))
        phase = f"choosing the setting of {fixer.name}"
        self.journal.phase(phase, ", ".join(map(format_setting, settings)))

        def tried(number: int, against: int, saving: Interval | None) -> None:
            self.journal.phase(phase, outcome(settings[number], settings[against], saving))

        return self.bench.choose(copies, tried, scale=is_scale(settings))


def _reason(verdict: Verdict, proposal: Proposal) -> str | None:
    """Why to have a fix that saves no time: what it mends ends the run, or memory is short and it frees some.

    A leak costs nothing until memory runs out: a trial of some hundred steps cannot see it do so.
    """
    deadly = next((finding for finding in proposal.findings if finding.ends_run), None)
    if deadly is not None:
        return f"the run would end of {deadly.rule}"
    if verdict.peak_memory_bytes is None or not any(finding.short_of_memory for finding in proposal.findings):
        return None
    before, after = verdict.peak_memory_bytes
    allowed = max(LEAST_SAVING, verdict.resolution or 0.0)
    slower = verdict.saving is None or verdict.saving.estimate < -allowed
    if slower or before - after < _LEAST_FREED * before:
        return None
    return f"memory is short, and its peak falls from {format_bytes(before)} to {format_bytes(after)}"
