"""The last word on all kept fixes together: their numbers against the original's, and the step of each alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.compose.journal import Journal
from diagnose.compose.stack import Stack
from diagnose.compose.together import COMPILING, as_one
from diagnose.compose.trials import Trials
from diagnose.model import Decision, Gate, GateResult, Verdict
from diagnose.program import Program
from diagnose.session import FinalMeasured, PatchAccepted
from diagnose.trial.costs import FINAL_BLOCKS
from diagnose.trial.schedule import Schedule


@dataclass(frozen=True)
class Final:
    """Judges the final stack of one composition."""

    bench: Trials
    journal: Journal
    schedule: Schedule

    def gate(self, stack: Stack, original: Program, patched: Program) -> GateResult:
        """Whether all kept fixes together keep the promise of the boldest of them.

        Where they do not, it is told that none of them is kept; where it cannot be checked, that is told.
        """
        whole = as_one([kept.fixer for kept in stack.kept])
        self.journal.phase(
            "checking the numbers of all kept fixes together", f"{whole.gate.value}, against the original"
        )
        found = self.bench.gate(whole.gate, original, patched, whole.rounds_to, fewer=whole.fewer_parameters)
        if found.passed and whole.gate is not Gate.TRAINING and whole.order in COMPILING:
            found = self._beside(found, self.bench.gate(Gate.TRAINING, original, patched, asked=False))
        if found.passed is False:
            self._reject(stack, found)
        elif found.passed is None:
            self.journal.warn(f"the numbers of all kept fixes together could not be checked: {found.detail}")
        return found

    @staticmethod
    def _beside(found: GateResult, trajectory: GateResult) -> GateResult:
        """What compiled code does later than in the first steps shows in its losses only."""
        if trajectory.passed is False:
            return trajectory
        return replace(found, detail=f"{found.detail}; {trajectory.detail}")

    def alone(
        self, stack: Stack, original: Program, patched: Program, step_ns: int, gate: GateResult
    ) -> FinalMeasured | None:
        """The patched program alone against the original alone, in turns of whole processes."""
        runs = self.schedule.final_runs
        steps = FINAL_BLOCKS * self.schedule.block_steps(step_ns)
        self.journal.phase("running the patched program alone", f"{steps} steps, {runs} runs each")
        befores: list[int] = []
        afters: list[int] = []
        for run in range(runs):
            sides = [(original, befores, "alone-original"), (patched, afters, "alone-patched")]
            sides = sides if run % 2 == 0 else sides[::-1]
            took = self.bench.steps_alone([(program, f"{name}-{run}") for program, _, name in sides], steps)
            for (_, found, _), step in zip(sides, took, strict=True):
                if step is not None:
                    found.append(step)
        if not befores or not afters:
            self.journal.warn("the last run of the patched program alone did not come to its end")
            return None
        before_ns, after_ns = sum(befores) // len(befores), sum(afters) // len(afters)
        final = FinalMeasured(
            original_ns=before_ns,
            patched_ns=after_ns,
            interaction=None
            if any(kept.together for kept in stack.kept)
            else self._interaction(stack, after_ns / before_ns),
            runs=min(len(befores), len(afters)),
            how=f"each program alone, mean of {steps} steps after {self.schedule.warmup_steps} of warm-up; "
            "nothing of diagnose inside but the clock that sees steps end",
            gate=gate,
        )
        self.journal.record(final)
        return final

    def _interaction(self, stack: Stack, patched_share: float) -> float | None:
        return interaction(patched_share, [self.journal.verdict_on(name) for name in stack.names])

    def _reject(self, stack: Stack, found: GateResult) -> None:
        for name in stack.names:
            before = self.journal.verdict_on(name)
            others = [other for other in stack.names if other != name]
            beside = f" beside {', '.join(others)}" if others else ""
            summary = f"not kept{beside}: with all kept fixes together the numbers change: {found.detail}"
            self.journal.tell(replace(before, decision=Decision.CHANGES_NUMBERS, summary=summary, gate=found))
        self.journal.record(PatchAccepted(diff="", fixers=[]))


def interaction(patched_share: float, verdicts: Sequence[Verdict]) -> float | None:
    """How far the kept fixes, measured together, are from what their own trials multiply to, as a logarithm.

    `patched_share` is the patched step over the original's. None for fewer than two fixes, or where one has no saving.
    """
    savings = [verdict.saving.estimate for verdict in verdicts if verdict.saving is not None]
    if len(savings) < 2 or len(savings) < len(verdicts) or patched_share <= 0 or max(savings) >= 1:
        return None
    return math.log(patched_share) - sum(math.log1p(-saving) for saving in savings)
