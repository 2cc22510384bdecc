"""Programs that run by themselves: whether they do, and how long a step of theirs takes with nothing else beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from diagnose.model import Decision
from diagnose.program import Program
from diagnose.trial.ab.arm_protocol import ArmProtocol
from diagnose.trial.process.arm import Arm, ArmFailed, Trouble, Workplace
from diagnose.trial.process.oom_progress import OomProgress
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import NS_PER_S
from diagnose.verdict import Ruling

_LONGEST_NS = 300 * NS_PER_S
"""The longest time for the steps that a program has to get through; of a budget, no more than half of what is left."""


@dataclass(frozen=True)
class StandaloneRun:
    """A program that ran by itself."""

    step_ns: int | None = None
    """The mean step; None where it came to its end, or failed, before enough of them."""
    peak_bytes: int | None = None
    steps: int | None = None
    """Taken in all, the warm-up included."""
    failure: Ruling | None = None
    """The reason why it did not run; None where it ran."""
    reached: OomProgress = field(default_factory=OomProgress)
    """How far it came, where memory ran out."""


@dataclass(frozen=True)
class Standalone:
    """Starts programs of one bench by themselves."""

    place: Workplace
    schedule: Schedule
    deadline: Deadline

    def run(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun:
        """A block of steps after the warm-up, or all up to the program's own end if that comes before.

        As many more as it takes to `least_steps` in all, unless that takes long.
        """
        with Arm(self.place, program, name, self.schedule.warmup_steps) as arm:
            try:
                ready = arm.ready(self._start_limit_ns)
                steps = self._steps_to(least_steps - ready.steps, ready.step_ns)
                limit = self.deadline.limit_ns(self.schedule.block_limit_ns(steps, ready.step_ns))
                block = arm.run(steps, 0, limit)
            except ArmFailed as failure:
                return _cut_short(failure)
        return StandaloneRun(round(block.mean_ns), block.memory.peak_bytes, ready.steps + block.steps)

    def _steps_to(self, wanted: int, step_ns: int) -> int:
        """Return so many steps, or as many of them as there is time for; a block at least."""
        block = self.schedule.block_steps(step_ns)
        if wanted <= block or step_ns <= 0:
            return block
        return max(block, min(wanted, self.deadline.half_ns(_LONGEST_NS) // step_ns))

    def steps(self, programs: Sequence[tuple[Program, str]], steps: int, *, together: bool) -> list[int | None]:
        """The mean step of each program, in ns; None for one that ends or fails before.

        They run one after the other; `together`: they all start at once, and each rests while another runs.
        """
        at_once = len(programs) if together else 1
        found: list[int | None] = []
        for at in range(0, len(programs), at_once):
            with contextlib.ExitStack() as stack:
                limit_ns = self._start_limit_ns  # counts from the start, which is now
                started: list[ArmProtocol] = []
                for program, name in programs[at : at + at_once]:
                    started.append(Arm(self.place, program, name, self.schedule.warmup_steps))
                    stack.callback(started[-1].close)
                waiting = [(arm, self._ready(arm, limit_ns)) for arm in started]
                found += [self._step_ns(arm, step_ns, steps) for arm, step_ns in waiting]
        return found

    @property
    def _start_limit_ns(self) -> int:
        return self.deadline.limit_ns(self.schedule.start_limit_ns)

    @staticmethod
    def _ready(arm: ArmProtocol, limit_ns: int) -> int | None:
        """The step as the warm-up saw it; None where there was none."""
        with contextlib.suppress(ArmFailed):
            return arm.ready(limit_ns).step_ns
        return None

    def _step_ns(self, arm: ArmProtocol, step_ns: int | None, steps: int) -> int | None:
        if step_ns is None:
            return None
        # A warm-up may have lived on what a loader had in stock, and using that up takes steps too.
        limit = max(self.schedule.block_limit_ns(steps, step_ns), self.schedule.start_limit_ns)
        limit = self.deadline.limit_ns(limit)
        with contextlib.suppress(ArmFailed):
            return round(arm.run(steps, self.schedule.drops(step_ns), limit).mean_ns)
        return None


def _cut_short(failure: ArmFailed) -> StandaloneRun:
    if failure.trouble is Trouble.ENDED:
        return StandaloneRun()
    died = failure.trouble is Trouble.OUT_OF_MEMORY
    reached = OomProgress.of(failure.steps, str(failure)) if died else OomProgress()
    return StandaloneRun(failure=ruling_on_failure(failure), reached=reached)


def ruling_on_failure(failure: ArmFailed) -> Ruling:
    """The decision on a patched program that did not run."""
    lines = str(failure).strip().splitlines() or [""]
    if failure.trouble is Trouble.OUT_OF_MEMORY:
        return Ruling(Decision.OUT_OF_MEMORY, f"ran out of memory: {lines[-1]}")
    words = lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"
    return Ruling(Decision.FAILED, f"{failure.trouble.value}: {words}")
