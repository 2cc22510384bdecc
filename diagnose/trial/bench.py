"""The test bench of one program: copies of it, the machine's resolution, and a verdict for each fix put on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from diagnose.errors import ProgramFailed
from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateResult, Interval, Scalar, Verdict
from diagnose.program import Program, guard, patch
from diagnose.program.copy import copy_environment, copy_program
from diagnose.trial.arms import Arm, ArmFailed, Block, Ready, Trouble, Workplace
from diagnose.trial.duel import ORIGINAL, Comparison, Duel, LiveArm, OnPair, Starter
from diagnose.trial.gatekeeper import Gatekeeper
from diagnose.trial.groups import Groups
from diagnose.trial.mechanism import mechanism
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import format_share
from diagnose.verdict import (
    LEAST_GENERATIONS,
    LEAST_PAIRS,
    Ruling,
    estimate,
    resolution,
    ruling,
    ruling_on_time,
    saved,
)

NEAR_BEST = 0.02
"""Of the settings of a knob, the cheapest whose saving is within this share of the best is taken."""


@dataclass(frozen=True)
class Control:
    """The original against itself, with the schedule of the trials."""

    interval: Interval
    resolution: float
    pairs: int
    generations: int
    step_ns: int
    alternated: bool = False


@dataclass(frozen=True)
class Trial:
    """A verdict, and what the patched arm left behind for the next look."""

    verdict: Verdict
    traces: Sequence[Path] = ()
    """Profiler windows of the patched program, a rank each."""


class Bench:
    """Use it as a context manager: leaving it ends every process that it started."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        schedule: Schedule,
        deadline: Deadline,
        python: str = sys.executable,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._program = program
        self._folder = folder
        self._schedule = schedule
        self._deadline = deadline
        self._environment = dict(environment)
        self._environments: dict[Path, dict[str, str]] = {}
        self._fits: bool | None = None
        self._control: Control | None = None
        self._started = 0
        self._groups = Groups()
        protect = {"module": str(Path(guard.__file__)), "originals": [str(program.root)], "copy": str(folder)}
        self._place = Workplace(self._groups, folder, python, self._environment_of, {"guard": protect})
        self._gatekeeper = Gatekeeper(self._place, schedule.start_limit_ns, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._groups.close()

    def copy(self, texts: Mapping[str, str], name: str) -> Program:
        """A copy of the program in which the given files have other texts. Raises InputError."""
        folder = self._folder / name
        copied = copy_program(self._program, folder)
        patch.apply_edits(texts, root=self._program.root, copy=copied.root)
        self._environments[copied.root] = copy_environment(self._program, folder, self._environment)
        return copied

    def control(self, original: Program, twin: Program, on_pair: OnPair | None = None) -> Control | None:
        """Measure what this machine can resolve; None where the program is too short or the time is up.

        Raises ProgramFailed where the original does not run in its copy.
        """
        duel = Duel(self._schedule, self._deadline, on_pair=on_pair, trace=False)
        found = self._compare(duel, original, twin, "control")
        if found.failed is not None:
            raise _original_failed(found.failed[1])
        if len(found.pairs) < LEAST_PAIRS:
            return None
        interval = estimate(found.pairs)
        self._control = Control(
            interval, resolution(interval), len(found.pairs), found.generations, found.step_ns, found.alternated
        )
        return self._control

    def choose(
        self, original: Program, candidates: Sequence[Program], on_try: Callable[[int, Interval | None], None]
    ) -> int | None:
        """The cheapest of several settings (in their order) that is near the best; None if all of them fail.

        The original's process is kept from one setting to the next, resting.
        """
        savings: list[float | None] = []
        kept = _Kept(self._starter(original, "sweep-original"))
        try:
            for number, candidate in enumerate(candidates):
                duel = Duel(self._schedule.sweep(), self._deadline, fits=self._fits, trace=False)
                found = duel.run(lambda _: kept, self._starter(candidate, f"sweep-{candidate.root.name}-{number}"))
                if found.failed is not None and found.failed[0] == ORIGINAL:
                    raise _original_failed(found.failed[1])
                usable = found.saving if found.failed is None else None
                savings.append(usable.estimate if usable else None)
                on_try(number, usable)
        finally:
            kept.end()
        best = max((saving for saving in savings if saving is not None), default=None)
        if best is None:
            return None
        return next(at for at, saving in enumerate(savings) if saving is not None and saving >= best - NEAR_BEST)

    def attempt(self, fixer: Fixer, original: Program, patched: Program, on_pair: OnPair | None = None) -> Trial:
        """Try one fix against what it was made from. Raises ProgramFailed where the original itself fails."""
        smallest = self._control.resolution if self._control else 0.0
        duel = Duel(self._schedule, self._deadline, smallest, self._fits, on_pair)
        found = self._compare(duel, original, patched, fixer.name)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            raise _original_failed(found.failed[1])
        verdict = self._judged(_measured(fixer, found, smallest), fixer, found, original, patched)
        return Trial(verdict, found.traces[1])

    def leave_out(self, fixer: Fixer, without: Program, stack: Program, on_pair: OnPair | None = None) -> Trial:
        """Whether a kept fix still saves time: the stack without it against the stack, judged by time alone.

        The verdict is `kept` where it does. Programs that fail here, on either side, make it `failed`.
        """
        smallest = self._control.resolution if self._control else 0.0
        duel = Duel(self._schedule, self._deadline, smallest, self._fits, on_pair, trace=False)
        found = self._compare(duel, without, stack, f"{fixer.name}-left-out")
        verdict = _measured(fixer, found, smallest)
        answer = self._ruling_on_time(verdict, found)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            answer = Ruling(Decision.FAILED, f"without it the program does not run: {answer.summary if answer else ''}")
        if answer is None:
            assert found.saving is not None  # or the times would have settled it
            answer = Ruling(Decision.KEPT, saved(found.saving, verdict.pairs))
        return Trial(replace(verdict, decision=answer.decision, summary=answer.summary))

    def gate(self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None) -> GateResult:
        """Whether a patched program keeps a promise about its numbers, as `attempt` asks too."""
        return self._gatekeeper.check(gate, original, patched, rounds_to)

    def step_alone(self, program: Program, name: str, steps: int) -> int | None:
        """The mean step of a program that runs alone, in ns, with nothing inside but the clock of its steps.

        None if it ends or fails before.
        """
        try:
            with Arm(self._place, program, name, self._schedule.warmup_steps) as arm:
                ready = arm.ready(self._deadline.limit_ns(self._schedule.start_limit_ns))
                limit = self._schedule.block_limit_ns(steps, ready.step_ns)
                return round(arm.run(steps, self._schedule.drop_steps, limit).mean_ns)
        except ArmFailed:
            return None

    def _judged(
        self, verdict: Verdict, fixer: Fixer, found: Comparison, original: Program, patched: Program
    ) -> Verdict:
        early = self._ruling_on_time(verdict, found)
        if early is not None:
            return replace(verdict, decision=early.decision, summary=early.summary)
        assert found.saving is not None  # or the times would have settled it
        moved = mechanism(fixer.mechanism, found)
        gate = self._gatekeeper.check(fixer.gate, original, patched, fixer.rounds_to)
        memory_bytes = found.memory.device_bytes if found.memory else None
        final = ruling(found.saving, verdict.pairs, gate, moved, found.peak_bytes, memory_bytes)
        return replace(verdict, decision=final.decision, summary=final.summary, gate=gate, mechanism=moved)

    @staticmethod
    def _ruling_on_time(verdict: Verdict, found: Comparison) -> Ruling | None:
        """The decision if how it ran, and how fast, settles it."""
        if found.failed is not None:
            return _failure(found.failed[1])
        enough = verdict.pairs >= LEAST_PAIRS and verdict.generations >= LEAST_GENERATIONS
        if found.out_of_time and not enough:
            return Ruling(Decision.NOT_TRIED, "the budget ran out during its trial")
        return ruling_on_time(
            found.saving,
            verdict.pairs,
            verdict.generations,
            verdict.resolution or 0.0,
            stopped_early=found.stopped_early,
        )

    def _compare(self, duel: Duel, original: Program, patched: Program, name: str) -> Comparison:
        starters = self._starter(original, f"{name}-original"), self._starter(patched, f"{name}-patched")
        found = duel.run(*starters)
        if found.pairs:
            self._fits = not found.alternated
        return found

    def _starter(self, program: Program, name: str) -> Starter:
        def start(_number: int) -> Arm:
            self._started += 1  # over all trials: no two processes may share a folder
            return Arm(self._place, program, f"{self._started}-{name}", self._schedule.warmup_steps)

        return start

    def _environment_of(self, program: Program) -> dict[str, str]:
        return self._environments[program.root]


class _Kept:
    """An arm that several duels use one after the other; started again when it has come to its end."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._started = 0
        self._arm: LiveArm | None = None
        self._ready: Ready | None = None

    def ready(self, limit_ns: int) -> Ready:
        if self._arm is None or self._ready is None:
            self.end()
            self._arm = self._starter(self._started)
            self._started += 1
            self._ready = self._arm.ready(limit_ns)
        return self._ready

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        assert self._arm is not None  # `ready` comes first
        try:
            return self._arm.run(steps, drop, limit_ns)
        except ArmFailed:
            self.end()
            raise

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        assert self._arm is not None  # `ready` comes first
        return self._arm.trace(steps, drop, limit_ns)

    def close(self) -> None:
        """Kept for the next duel."""

    def end(self) -> None:
        arm, self._arm, self._ready = self._arm, None, None
        if arm is not None:
            arm.close()


def _measured(fixer: Fixer, found: Comparison, smallest: float) -> Verdict:
    """The figures of a comparison; what they mean is not decided yet."""
    return Verdict(
        fixer.name,
        Decision.FAILED,
        "",
        saving=found.saving,
        saving_ns=round(found.saving.estimate * found.step_ns) if found.saving else None,
        resolution=smallest,
        pairs=len(found.pairs),
        generations=found.generations,
        peak_memory_bytes=found.peak_bytes,
    )


def _failure(failure: ArmFailed) -> Ruling:
    """The decision on a patched program that did not run."""
    lines = str(failure).strip().splitlines() or [""]
    if failure.trouble is Trouble.OUT_OF_MEMORY:
        return Ruling(Decision.OUT_OF_MEMORY, f"ran out of memory: {lines[-1]}")
    words = lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"
    return Ruling(Decision.FAILED, f"{failure.trouble.value}: {words}")


def _original_failed(failure: ArmFailed) -> ProgramFailed:
    return ProgramFailed(f"the program fails in a copy, without any fix: {failure}", 1)


def describe(setting: Mapping[str, Scalar]) -> str:
    """A setting for people: `num_workers=2`."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def describe_saving(saving: Interval | None) -> str:
    """A saving for people, where there is one."""
    return "failed" if saving is None else f"{format_share(saving.estimate)} saved"
