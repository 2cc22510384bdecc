"""A program that runs out of memory as found: the first fix with which it runs.

There is nothing to measure it against. Of each fix that the finding names, the settings are tried from the cheapest on,
and the first with which the program goes on is kept: past the step in which it died as found, and well past it, since
what only puts off the end of a program that leaks gets there too. Where the program as found takes steps enough, its
numbers are those to be kept. Where it does not, but a setting that saves more runs too, the numbers of the two are held
against each other: they are of one program, computed in two ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from diagnose.compose.answers import Answers, Variant, ask
from diagnose.compose.budget import OUT_OF_BUDGET
from diagnose.compose.candidates import Candidate, candidates
from diagnose.compose.composition import WITHOUT_ASKING
from diagnose.compose.journal import Journal, Record
from diagnose.compose.knowledge import Known
from diagnose.compose.outcome import Outcome
from diagnose.compose.preview import not_allowed
from diagnose.compose.proposals import Proposal
from diagnose.compose.stack import Stack
from diagnose.compose.trials import Trials
from diagnose.model import Decision, Diagnosis, Gate, GateResult, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import PatchAccepted, TrialStarted
from diagnose.trial.schedule import Deadline
from diagnose.trial.solo import SoloRun
from diagnose.trial.wanted import BITWISE_STEPS
from diagnose.units import format_bytes, format_ns

_WITHOUT_IT = "without it the program runs out of memory"
_PAST = 1.5
"""Times the steps that the program took as found: what it has to get through."""


def rescue(
    program: Program,
    diagnosis: Diagnosis,
    known: Known,
    catalogue: Catalogue,
    record: Record,
    bench: Trials,
    deadline: Deadline,
    allow: frozenset[Gate] = WITHOUT_ASKING,
    died_after: int = 0,
) -> Outcome:
    """Try what the findings of which the run died suggest, in the order in which they name it, until it runs.

    `died_after`: the steps that it took as found.
    """
    attempt = _Rescue(Stack.of(program, known), Journal(record), bench, deadline, allow, died_after)
    deadly = tuple(finding for finding in diagnosis.findings if finding.ends_run)
    named: dict[str, list[Candidate]] = {}
    for candidate in candidates(program, deadly, catalogue):
        named.setdefault(candidate.fixer.name, []).append(candidate)
    for some in named.values():
        stack = attempt.with_fix(Proposal(some[0].fixer, tuple(one.finding for one in some)))
        if stack is not None:
            record(PatchAccepted(diff=stack.patch.text, fixers=list(stack.names)))
            return Outcome(attempt.journal.verdicts, stack.patch, stack=stack)
    return Outcome(attempt.journal.verdicts, None)


@dataclass(frozen=True)
class _Rescue:
    stack: Stack
    journal: Journal
    bench: Trials
    deadline: Deadline
    allow: frozenset[Gate]
    died_after: int

    def with_fix(self, proposal: Proposal) -> Stack | None:
        """The program with the first setting of a fixer with which it runs; None where none does."""
        name = proposal.fixer.name
        try:
            found = ask(self.stack, proposal)
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            self.journal.tell_of(Verdict(name, Decision.FAILED, f"the fixer itself failed: {error!r}"), proposal)
            return None
        for _, text in found.advice:
            self.journal.tell_of(Verdict(name, Decision.ADVICE, text), proposal)
        allowed = [variant for variant in found.variants if variant.fixer.gate in self.allow]
        if found.variants and not allowed:
            diff = self.stack.diff(found.variants[0].answer)
            self.journal.tell_of(Verdict(name, Decision.NOT_TRIED, not_allowed(found.variants), diff=diff), proposal)
        return self._first_that_runs(found, allowed)

    def _first_that_runs(self, found: Answers, variants: Sequence[Variant]) -> Stack | None:
        proposal = found.proposal
        for number, variant in enumerate(variants):
            if self.deadline.passed:
                diff = self.stack.diff(variant.answer)
                early = Verdict(variant.fixer.name, Decision.NOT_TRIED, OUT_OF_BUDGET, dict(variant.setting), diff=diff)
                self.journal.tell_of(early, proposal)
                return None
            verdict = self._begun(proposal, variant)
            copy = self._copy(variant, number)
            seen = self.bench.alone(copy, f"{variant.fixer.name}-{number}", math.ceil(_PAST * self.died_after))
            if seen.failure is not None:
                self.journal.tell_of(
                    replace(verdict, decision=seen.failure.decision, summary=seen.failure.summary), proposal
                )
                continue
            gate = self._gate(variant, copy, variants[number + 1 :])
            if gate.passed is False:
                changed = replace(verdict, decision=Decision.CHANGES_NUMBERS, summary=gate.detail, gate=gate)
                self.journal.tell_of(changed, proposal)
                return None
            self.journal.tell_of(
                replace(verdict, decision=Decision.KEPT, summary=f"{self._how(seen)}; {gate.detail}", gate=gate),
                proposal,
            )
            return self.stack.with_fix(variant.fixer, proposal.findings, variant.setting, variant.answer)
        return None

    def _begun(self, proposal: Proposal, variant: Variant) -> Verdict:
        """Told that it is tried; its verdict as far as it is known."""
        diff = self.stack.diff(variant.answer)
        self.journal.record(
            TrialStarted(
                fixer=variant.fixer.name,
                setting=dict(variant.setting),
                predicted_ns=proposal.predicted_ns,
                summary=variant.answer.summary,
                diff=diff,
                where=list(proposal.where),
            )
        )
        return Verdict(variant.fixer.name, Decision.FAILED, "", setting=dict(variant.setting), diff=diff)

    def _gate(self, variant: Variant, copy: Program, leaner: Sequence[Variant]) -> GateResult:
        """The numbers held against those of the original, as far as that runs, or of a setting that saves more."""
        why = "the original has none"
        for against, named in self._references(leaner):
            self.journal.phase(f"checking the numbers of {variant.fixer.name}", f"against those of {named}")
            gate = self.bench.gate(variant.fixer.gate, against, copy, variant.fixer.rounds_to)
            if gate.passed is not None:
                return replace(gate, detail=f"against {named}, {gate.detail}")
            why = gate.detail
        return GateResult(variant.fixer.gate, None, f"its numbers could not be compared: {why}")

    def _references(self, leaner: Sequence[Variant]) -> Iterator[tuple[Program, str]]:
        """Programs of the same numbers, with what they are."""
        if self.died_after > BITWISE_STEPS:
            original = self.bench.copy(self.stack.edited, "rescue-original")
            yield original, f"the program as found, which takes {self.died_after} steps"
        if leaner:
            yield self._copy(leaner[-1], "leanest"), "its leanest setting"

    def _copy(self, variant: Variant, number: int | str) -> Program:
        return self.bench.copy({**self.stack.edited, **variant.answer.files}, f"rescue-{variant.fixer.name}-{number}")

    def _how(self, seen: SoloRun) -> str:
        """That it runs, and how, and how far."""
        peak = f" with a peak of {format_bytes(seen.peak_bytes)}" if seen.peak_bytes else ""
        step = f", {format_ns(seen.step_ns)} a step" if seen.step_ns else ""
        if not seen.steps or not self.died_after:
            return f"the program runs{peak}{step}; {_WITHOUT_IT}"
        return f"the program runs{peak}{step}, for {seen.steps} steps; {_WITHOUT_IT} after {self.died_after}"
