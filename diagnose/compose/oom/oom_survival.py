"""Stacks of a program that runs out of memory as found, tried by themselves: whether they run, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.compose.journal import Journal, listed
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.search.bundle import as_one
from diagnose.compose.stack.stack import Kept, Stack
from diagnose.fixer import Fixer
from diagnose.model import Decision, GateResult, Scalar, Verdict
from diagnose.program import Program
from diagnose.session import TrialStarted
from diagnose.trial.bench import Bench
from diagnose.trial.gates.capture_plan import BITWISE_STEPS
from diagnose.trial.schedule import Deadline
from diagnose.trial.standalone import StandaloneRun
from diagnose.units import format_bytes, format_ns
from diagnose.verdict import Ruling

_PAST = 1.5
"""The steps that a fixed program has to get through, as a multiple of those that it took as found."""


@dataclass(frozen=True)
class Alive:
    """A stack with which the program runs."""

    stack: Stack
    seen: StandaloneRun


@dataclass
class OomSurvival:
    """The trials of one rescue."""

    journal: Journal
    bench: Bench
    deadline: Deadline
    original: Stack
    died_after: int
    """The steps that the program took as found."""
    _copies: int = 0
    _longest_ns: int = 0

    def begin(
        self, proposal: Proposal, fixer: Fixer, setting: Mapping[str, Scalar], summary: str, stack: Stack
    ) -> Verdict:
        """Tell what is tried of a fix in a stack; its verdict as far as it is known."""
        diff = stack.change(fixer.name)
        self.journal.record(
            TrialStarted(
                fixer=fixer.name,
                setting=dict(setting),
                predicted_ns=proposal.predicted_ns,
                summary=summary,
                diff=diff,
                where=list(proposal.where),
            )
        )
        return Verdict(fixer.name, Decision.FAILED, "", setting=dict(setting), diff=diff)

    def run(self, stack: Stack) -> StandaloneRun:
        """Run the program with a stack in it past where it died, and return the run.

        A run whose time is up before that tells nothing: its failure says that the fix is not tried.
        """
        began_ns = self.deadline.clock()
        program = self._copy(stack)
        seen = self.bench.run_alone(program, f"rescue-{self._copies}", math.ceil(_PAST * self.died_after))
        self._longest_ns = max(self._longest_ns, self.deadline.clock() - began_ns)
        if seen.failure is None and seen.steps is not None and seen.steps <= self.died_after:
            return replace(seen, failure=Ruling(Decision.NOT_TRIED, self._too_few(seen.steps)))
        return seen

    def _too_few(self, steps: int) -> str:
        """Say that a program still ran when its time was up, before the step in which it died as found."""
        return (
            f"the program runs for {steps} steps, for which there was time: as found, it runs out of "
            f"memory after {self.died_after}"
        )

    @property
    def has_time(self) -> bool:
        """Whether one more run, which could be left, leaves the time to look at the numbers."""
        left_ns = self.deadline.left_ns
        return left_ns is None or left_ns > 2 * self._longest_ns

    def gate(self, stack: Stack, leaner: Stack | None) -> GateResult:
        """The numbers held against those of the original, as far as that runs, or of settings that save more."""
        fixer = as_one([kept.fixer for kept in stack.kept])
        why = "the original has none"
        for against, named in self._references(leaner):
            self.journal.phase(f"checking the numbers of {listed(stack.names)}", f"against those of {named}")
            gate = self.bench.gate(fixer.gate, self._copy(against), self._copy(stack), fixer.rounds_to)
            if gate.passed is not None:
                return replace(gate, detail=f"against {named}, {gate.detail}")
            why = gate.detail
        return GateResult(fixer.gate, None, f"its numbers could not be compared: {why}")

    def _references(self, leaner: Stack | None) -> Iterator[tuple[Stack, str]]:
        """Programs of the same numbers, with what they are."""
        if self.died_after > BITWISE_STEPS:
            yield self.original, f"the program as found, which takes {self.died_after} steps"
        if leaner is not None:
            yield leaner, "its leanest setting"

    def _copy(self, stack: Stack) -> Program:
        self._copies += 1
        return self.bench.copy(stack.edited, f"rescue-{self._copies}")

    def how(self, seen: StandaloneRun) -> str:
        """Return words on how the program runs: its peak of memory, time per step, and how far it was followed."""
        peak = f" with a peak of {format_bytes(seen.peak_bytes)}" if seen.peak_bytes else ""
        step = f", {format_ns(seen.step_ns)} a step" if seen.step_ns else ""
        if not seen.steps or not self.died_after:
            return f"the program runs{peak}{step}"
        return f"the program runs{peak}{step}, for {seen.steps} steps"

    def say_without(self, what: str) -> str:
        """Return a sentence about the program as found, which ends for lack of `what`."""
        after = f" after {self.died_after}" if self.died_after else ""
        return f"without {what} the program runs out of memory{after}"


def died(verdict: Verdict, failure: Ruling, beside: Sequence[str] = ()) -> Verdict:
    """The verdict on a fix with which the program does not run."""
    words = f"beside {listed(beside)}, " if beside else ""
    return replace(verdict, decision=failure.decision, summary=words + failure.summary)


def verdict_on(kept: Kept, stack: Stack, summary: str, gate: GateResult) -> Verdict:
    """The last word on a fix of a stack with which the program runs."""
    name, changed = kept.fixer.name, gate.passed is False
    decision = Decision.CHANGES_NUMBERS if changed else Decision.KEPT
    said = gate.detail if changed else summary
    return Verdict(name, decision, said, setting=dict(kept.setting), diff=stack.change(name), gate=gate)
