"""One fix in a trial of its own, with the best of its settings."""

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
"""What one setting, or one fix of many, may do and another not."""
_ATTEMPTS = 2
"""Settings of one fixer that have a full trial at most."""
_LEAST_FREED = 0.05
"""A share of the peak: where memory is short, freeing less is not worth a line of anyone's source. Allocators round by
less."""


@dataclass(frozen=True)
class Held:
    """A fix that held, with the copy of the program that has it in."""

    variant: Variant
    trial: Trial
    patched: Program


@dataclass(frozen=True)
class SingleTrials:
    """Trials of single fixes on top of a stack."""

    bench: Bench
    copy: Callable[[Stack, str, Edits | None], Program]
    """A copy of the program with a stack in it, and perhaps one answer more."""
    journal: Journal
    budget: Budget

    def run(self, ready: ProposedEdits, stack: Stack, original: Program, baseline: Program) -> Held | None:
        """Choose the setting and run its trial on top of the stack, which `baseline` has in it.

        Where the chosen setting breaks down in its trial, the next best has one: what breaks in one mode of a compiler
        may hold in another.
        """
        name, variants = ready.proposal.fixer.name, ready.variants
        copies = [self.copy(stack, name, variant.answer) for variant in variants]
        ranking = self._choose(ready.proposal.fixer, [variant.setting for variant in variants], copies)
        for chosen in ranking[:_ATTEMPTS]:
            trial = self._trial(ready.proposal, variants[chosen], stack, copies[chosen], original, baseline)
            if trial.verdict.decision is Decision.KEPT:
                return Held(variants[chosen], trial, copies[chosen])
            if trial.verdict.decision not in BREAKS_DOWN or self.budget.affordable(ready)[1] is not None:
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
    ) -> Trial:
        """One variant against the stack as it stands; told."""
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
        trial = replace(trial, verdict=self._beside_time(trial.verdict, proposal, fixer, numbers, patched))
        self.journal.tell_of(replace(trial.verdict, setting=dict(variant.setting), diff=diff), proposal)
        return trial

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
        if len(copies) == 1:
            return [0]
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
