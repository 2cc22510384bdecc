"""Arms that start before it is their turn, beside others that start anyway, and rest until then.

To start a program takes longer than to measure it where steps are short, and starts go on side by side. So whatever is
known to be needed next starts with what is needed now: the arms of the first trial with those of the control, those of
the last runs with those of a trial. All of them rest before anything is measured. One that is not ready in about the
time that the others took is ended, and has its start when it is its turn, as if this had not been tried.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.program import Program
from diagnose.trial.ab.arm_protocol import ArmProtocol
from diagnose.trial.ab.live_arms import Answer
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble
from diagnose.trial.schedule import EARLY_MORE_NS, EARLY_TIMES


class Turn(enum.StrEnum):
    """The event that an arm waits for."""

    TRIAL = "trial"
    LAST_RUN = "last run"


class EarlyArm:
    """An arm that says again what it said when it was ready, and starts anew where its program does not bear the rest.

    It may be minutes long: connections are closed meanwhile, and time limits of a program's own pass.
    """

    def __init__(self, make: Callable[[], ArmProtocol], began_ns: int, share: float) -> None:
        """`share` of the memory that was seen of the program is what it may hold."""
        self.began_ns = began_ns
        self.share = share
        self._make = make
        self._arm = make()
        self._ready: Ready | None = None
        self._woken = False

    def ready(self, limit_ns: int) -> Ready:
        """Return the arm's ready message; later calls return the first answer."""
        if self._ready is None:
            self._ready = self._arm.ready(limit_ns)
        return self._ready

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        """Run a block of steps, as an arm that started in its turn does."""
        return self._turn(lambda arm: arm.run(steps, drop, limit_ns), limit_ns)

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        """Run a profiler window, and return its traces."""
        return self._turn(lambda arm: arm.trace(steps, drop, limit_ns), limit_ns)

    def close(self) -> None:
        """End the arm."""
        self._arm.close()

    def _turn(self, take: Callable[[ArmProtocol], Answer], limit_ns: int) -> Answer:
        first, self._woken = not self._woken, True
        try:
            return take(self._arm)
        except ArmFailed as failure:
            if not first or self._ready is None or not _of_its_rest(failure, self._ready):
                raise
        self._arm.close()
        self._arm = self._make()
        self._arm.ready(limit_ns + 2 * self._ready.started_ns)
        return take(self._arm)


def _of_its_rest(failure: ArmFailed, ready: Ready) -> bool:
    """Whether a program may have failed for having rested: it crashed, or ended of itself before its next step."""
    if failure.trouble is Trouble.ENDED:
        return failure.steps is None or failure.steps <= ready.steps + 1
    return failure.trouble is Trouble.CRASHED


@dataclass
class Ahead:
    """The arms of one bench that wait for their turn."""

    make: Callable[[Program, str], ArmProtocol]
    """Starts a program; `str` goes into the names of its files."""
    clock: Callable[[], int]
    _waiting: dict[tuple[Turn, Path], list[EarlyArm]] = field(default_factory=dict)

    @property
    def shares(self) -> list[float]:
        """The memory that waiting arms hold, as shares of what was seen of the program."""
        return [arm.share for arms in self._waiting.values() for arm in arms]

    def count(self, turn: Turn, root: Path) -> int:
        """How many arms of a program wait for this."""
        return len(self._waiting.get((turn, root), ()))

    def start(self, turn: Turn, program: Program, share: float) -> None:
        """Start one more."""
        arm = EarlyArm(lambda: self.make(program, f"early-{turn.replace(' ', '-')}"), self.clock(), share)
        self._waiting.setdefault((turn, program.root), []).append(arm)

    def rest(self, left_ns: int | None = None) -> None:
        """Wait until all are ready and rest; those that take too long, longer than `left_ns`, or fail, are ended."""
        now_ns = self.clock()
        for arms in self._waiting.values():
            for arm in list(arms):
                limit_ns = round(EARLY_TIMES * (now_ns - arm.began_ns)) + EARLY_MORE_NS
                if left_ns is not None:
                    limit_ns = min(limit_ns, now_ns - arm.began_ns + left_ns)
                try:
                    arm.ready(limit_ns)
                except ArmFailed:
                    arms.remove(arm)
                    arm.close()

    def take(self, turn: Turn, root: Path) -> EarlyArm | None:
        """One whose turn has come; from now on it is the caller's."""
        arms = self._waiting.get((turn, root))
        return arms.pop(0) if arms else None

    def end(self, turn: Turn, but: Collection[Path] = ()) -> None:
        """End what waits for this, but for these programs."""
        with contextlib.ExitStack() as ending:
            for key in [key for key in self._waiting if key[0] is turn and key[1] not in but]:
                for arm in self._waiting.pop(key):
                    ending.callback(arm.close)
