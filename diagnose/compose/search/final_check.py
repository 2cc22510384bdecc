"""The last word on all kept fixes together: their numbers against the original's, and the step of each alone.

Each kept its promise beside those before it; together they may still not. Where the numbers hold without one of them,
that one goes out, and the others stay. Where no single one is to blame, none is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diagnose.compose.journal import Journal
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.bundle import as_one
from diagnose.compose.stack.stack import Kept, Stack
from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateAnswer, GateCheck, GateResult, Interval, Verdict
from diagnose.program import Program
from diagnose.session import FinalMeasured, PatchAccepted
from diagnose.trial.bench import Bench
from diagnose.trial.planning.numerics_check import PUT_OFF, with_checks
from diagnose.trial.schedule import Schedule
from diagnose.trial.whole_run.gate import WHOLE
from diagnose.units import format_setting, format_share
from diagnose.verdict import CLEAR_SAVING


@dataclass(frozen=True)
class FinalCheck:
    """Judges the final stack of one composition."""

    bench: Bench
    copy: Callable[[Stack, str], Program]
    """A copy of the program with a stack in it."""
    journal: Journal
    budget: Budget
    schedule: Schedule

    def judge(
        self, stack: Stack, original: Program, patched: Program, sound: Stack | None = None
    ) -> tuple[Stack, Program, GateResult] | None:
        """Return the part of the stack that keeps, as a whole, the promise of its least strict fix; None where no part
        does.

        What is not kept is told. Where the whole could not be checked, it goes back to `sound`, of which the numbers
        were held before: what came on top goes, and what was taken out stays. Without that it is told, and kept.
        """
        self.journal.phase(
            "checking the numbers of all kept fixes together", f"{_whole(stack).gate.value}, against the original"
        )
        found = self._gate(stack, original, patched)
        if found.passed is None and sound is not None and sound.texts != stack.texts:
            self._fall_back(stack, sound, found)
            return self.judge(sound, original, self.copy(sound, "sound"))
        if found.passed is None:
            self.journal.warn(f"the numbers of all kept fixes together could not be checked: {found.detail}")
        if found.passed is not False:
            self._tell_of_whole_runs(stack, found)
            return stack, patched, found
        rest = self._without_one(stack, original, found)
        if rest is None:
            self._reject(stack, found)
        return rest

    def _gate(self, stack: Stack, original: Program, patched: Program) -> GateResult:
        whole = _whole(stack)
        found = self.bench.gate(whole.gate, original, patched, whole.rounds_to, loading=whole.changes_loading)
        if found.passed and whole.gate is Gate.TRAINING and self.bench.owes_whole_runs:
            return with_checks(found, self._whole_runs_put_off(stack, original))
        if found.passed and whole.gate is not Gate.TRAINING and whole.compiles:
            return self._beside(found, self.bench.gate(Gate.TRAINING, original, patched, asked=False))
        return found

    def _whole_runs_put_off(self, stack: Stack, original: Program) -> tuple[GateCheck, ...]:
        """Run the part of a stack that does not change the training whole, beside the original."""
        rest: Stack | None = stack
        for kept in reversed(stack.kept):
            if kept.fixer.gate is Gate.TRAINING:
                rest = rest and rest.leave_out(kept.fixer.name)
        if rest is None:
            why = "what changes the training cannot be taken out of the others"
            return (GateCheck(WHOLE, GateAnswer.UNVERIFIED, why),)
        if not rest.kept:
            return ()
        part, left = _whole(rest), self.copy(rest, "without-training")
        return self.bench.whole_runs(part.gate, original, left, part.rounds_to, loading=part.changes_loading)

    def _tell_of_whole_runs(self, stack: Stack, found: GateResult) -> None:
        """Tell of the whole runs that the verdicts on single fixes left to the end."""
        whole = next((check for check in found.checks if check.name == WHOLE), None)
        for verdict in map(self.journal.verdict_on, stack.names if whole is not None else ()):
            if verdict.gate is None or whole is None or PUT_OFF not in verdict.gate.detail:
                continue
            told = f"{whole.detail}, with all kept fixes together"
            checks = tuple(replace(whole, detail=told) if one.detail == PUT_OFF else one for one in verdict.gate.checks)
            gate = replace(verdict.gate, detail=verdict.gate.detail.replace(PUT_OFF, told), checks=checks)
            self.journal.tell(replace(verdict, summary=verdict.summary.replace(PUT_OFF, told), gate=gate))

    def _without_one(
        self, stack: Stack, original: Program, found: GateResult
    ) -> tuple[Stack, Program, GateResult] | None:
        """The stack without the one fix without which the numbers hold; the boldest promise is suspected first."""
        if len(stack.kept) < 2:
            return None
        boldness = [kept.fixer.gate.boldness for kept in stack.kept]
        for at in sorted(range(len(stack.kept)), key=lambda at: (boldness[at], at), reverse=True):
            kept = stack.kept[at]
            name = kept.fixer.name
            rest = stack.leave_out(name)
            if rest is None:
                continue  # what came later builds on it
            refused = self.budget.refused(kept.fixer)
            if refused is not None:
                self.journal.warn(
                    f"which of the kept fixes changes the numbers was not looked for to the end: {refused}"
                )
                return None
            self.journal.phase("looking for the fix that changes the numbers", f"the others without {name}")
            left = self.copy(rest, f"numbers-without-{name}")
            held = self._gate(rest, original, left)
            if held.passed:
                self._blame(name, rest, found)
                return rest, left, held
        return None

    def _fall_back(self, stack: Stack, sound: Stack, found: GateResult) -> None:
        for name in stack.names:
            if name not in sound.names:
                summary = f"not kept: beside {', '.join(sound.names)} its numbers could not be checked: {found.detail}"
                before = self.journal.verdict_on(name)
                self.journal.tell(replace(before, decision=Decision.UNVERIFIED, summary=summary, gate=found))
        for kept in sound.kept:
            name = kept.fixer.name
            before = self.journal.verdict_on(name)
            if name in stack.names:
                self._take_back(kept, stack, sound, found)
            else:
                why = f"without it the numbers of the others could not be checked ({found.detail}), with it they hold"
                self.journal.tell(replace(before, decision=Decision.KEPT, summary=f"kept: {why}; {before.summary}"))
        self.journal.record(PatchAccepted(diff=sound.patch.text, fixers=list(sound.names)))

    def _take_back(self, kept: Kept, stack: Stack, sound: Stack, found: GateResult) -> None:
        """Tell of a setting that was chosen since, and is not kept."""
        name, chosen = kept.fixer.name, stack.kept[stack.names.index(kept.fixer.name)].setting
        if dict(chosen) == dict(kept.setting):
            return
        before = self.journal.verdict_on(name)
        why = f"with {format_setting(chosen)} the numbers of all together could not be checked: {found.detail}"
        summary = f"{before.summary}; back at {format_setting(kept.setting)}: {why}"
        diff = sound.change(name)
        self.journal.tell(replace(before, setting=dict(kept.setting), summary=summary, diff=diff))

    def _blame(self, name: str, rest: Stack, found: GateResult) -> None:
        others = ", ".join(rest.names)
        summary = f"not kept: beside {others} it changes the numbers: {found.detail}; without it they hold"
        verdict = self.journal.verdict_on(name)
        self.journal.tell(replace(verdict, decision=Decision.CHANGES_NUMBERS, summary=summary, gate=found))
        self.journal.record(PatchAccepted(diff=rest.patch.text, fixers=list(rest.names)))

    @staticmethod
    def _beside(found: GateResult, trajectory: GateResult) -> GateResult:
        """Add the losses to a gate's answer: they alone show what compiled code does after the first steps."""
        if trajectory.passed is False:
            return trajectory
        return replace(found, detail=f"{found.detail}; {trajectory.detail}")

    def compare_alone(
        self, stack: Stack, original: Program, patched: Program, gate: GateResult
    ) -> FinalMeasured | None:
        """The patched program alone against the original alone, in turns of whole processes."""
        runs = self.schedule.final_runs
        steps = self.bench.final_steps
        often = "once" if runs == 1 else f"{runs} runs"
        self.journal.phase("running the patched program alone", f"{steps} steps, {often} each")
        befores: list[int] = []
        afters: list[int] = []
        for run in range(runs):
            began_ns = self.budget.deadline.left_ns
            sides = [(original, befores, "alone-original"), (patched, afters, "alone-patched")]
            sides = sides if run % 2 == 0 else sides[::-1]
            took = self.bench.steps_alone([(program, f"{name}-{run}") for program, _, name in sides], steps)
            for (_, found, _), step in zip(sides, took, strict=True):
                if step is not None:
                    found.append(step)
            left_ns = self.budget.deadline.left_ns
            if began_ns is not None and left_ns is not None and left_ns <= max(began_ns - left_ns, self._once_more_ns):
                break  # one more would take as long as this one or longer, or there is no time at all
        if not befores or not afters:
            self.journal.warn("the last run of the patched program alone did not come to its end")
            return None
        before_ns, after_ns = sum(befores) // len(befores), sum(afters) // len(afters)
        final = FinalMeasured(
            original_ns=before_ns,
            patched_ns=after_ns,
            interaction=None
            if any(kept.together for kept in stack.kept)
            else interaction(after_ns / before_ns, [self.journal.verdict_on(name) for name in stack.names]),
            runs=min(len(befores), len(afters)),
            how=f"each program alone, mean of {steps} steps after {self.schedule.warmup_steps} of warm-up; "
            "nothing of diagnose inside but the clock that sees steps end",
            gate=gate,
        )
        self.journal.record(final)
        self._tell_of_less(stack, final)
        return final

    def _tell_of_less(self, stack: Stack, final: FinalMeasured) -> None:
        """Warn where programs alone save well less than trials of blocks said: what the blocks did not hold counts."""
        trials = [self.journal.verdict_on(kept.fixer.name) for kept in stack.kept if not kept.together]
        trials += self.journal.together if any(kept.together for kept in stack.kept) else []
        least = least_saving([trial.saving for trial in trials])
        found = 1 - final.patched_ns / final.original_ns
        if least is not None and found < least - CLEAR_SAVING:  # two processes were never seen to differ by more
            self.journal.warn(
                f"alone, the programs differ by {format_share(found)} of a step, less than the blocks of steps in "
                f"their trials showed ({format_share(least)} at least): what comes between blocks counts here, too"
            )

    @property
    def _once_more_ns(self) -> int:
        """How long a run takes whose processes have not started while others did."""
        return self.bench.final_ns(held=True, runs=2) - self.bench.final_ns(held=True, runs=1)

    def _reject(self, stack: Stack, found: GateResult) -> None:
        for name in stack.names:
            before = self.journal.verdict_on(name)
            others = [other for other in stack.names if other != name]
            beside = f" beside {', '.join(others)}" if others else ""
            summary = f"not kept{beside}: with all kept fixes together the numbers change: {found.detail}"
            self.journal.tell(replace(before, decision=Decision.CHANGES_NUMBERS, summary=summary, gate=found))
        self.journal.record(PatchAccepted(diff="", fixers=[]))


def _whole(stack: Stack) -> Fixer:
    return as_one([kept.fixer for kept in stack.kept])


def least_saving(savings: Sequence[Interval | None]) -> float | None:
    """Return what trials, each on top of those before, say is saved at least, as a share of the original's step; None
    where one of them has no saving."""
    lows = [saving.low for saving in savings if saving is not None]
    return 1 - math.prod(1 - low for low in lows) if lows and len(lows) == len(savings) else None


def interaction(patched_share: float, verdicts: Sequence[Verdict]) -> float | None:
    """Return how far the kept fixes, measured together, are from what their own trials multiply to, as a logarithm.

    `patched_share` is the patched step over the original's. None for fewer than two fixes, or where one has no saving.
    """
    savings = [verdict.saving.estimate for verdict in verdicts if verdict.saving is not None]
    if len(savings) < 2 or len(savings) < len(verdicts) or patched_share <= 0 or max(savings) >= 1:
        return None
    return math.log(patched_share) - sum(math.log1p(-saving) for saving in savings)
