"""The processes of one A/B trial: those of the generation that runs, and those of the next one that started early."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from diagnose.trial.ab.arm_protocol import ArmProtocol, Starter
from diagnose.trial.ab.result import ORIGINAL
from diagnose.trial.process.arm import ArmFailed, Ready, Trouble
from diagnose.trial.schedule import Deadline

Answer = TypeVar("Answer")


class SideFailure(Exception):
    """One side of a trial failed. Raised by whatever waits for an arm."""

    def __init__(self, side: int, reason: ArmFailed) -> None:
        super().__init__(str(reason))
        self.side = side
        self.reason = reason
        self.starting = False
        self.cut_short = False
        """Whether it was given less time than the schedule allows it."""

    def crowd(self, *, control: bool) -> str | None:
        """Return what processes beside the arm may have done to it; None where they have nothing to do with its
        failure.

        Both sides of a `control` are the original, which runs.
        """
        if self.reason.trouble is Trouble.OUT_OF_MEMORY:
            return "memory ran out"
        runs = self.side == ORIGINAL or control
        if runs and self.starting and self.reason.trouble is Trouble.CRASHED:
            return "the program did not start"  # another process of it may have its file, or its port
        return None


@dataclass
class LiveArms:
    """Starts arms and ends them. Close it in the end, whatever happened."""

    starters: tuple[Starter, Starter]
    deadline: Deadline
    start_limit_ns: int
    """The time limit of a start for which there is time enough."""
    early: dict[int, ArmProtocol] = field(default_factory=dict)
    """The arms of the next generation, by side."""
    _started: int = 0
    _limits_ns: dict[int, int] = field(default_factory=dict)
    """The time limits of starts, by the arm's id: arms that start together have the same time, whichever is waited
    for first."""
    _closes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _closes_early: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self, side: int) -> ArmProtocol:
        """Start an arm of this generation."""
        return self._start(side, self._closes)

    def start_early(self, sides: Sequence[int]) -> None:
        """Start the arms of the next generation."""
        for side in sides:
            self.early[side] = self._start(side, self._closes_early)

    def ready(self, side: int, arm: ArmProtocol) -> Ready:
        """Wait until an arm rests after its warm-up. Raises SideFailure."""
        limit_ns = self._limits_ns[id(arm)]
        try:
            return answer_of(side, lambda: arm.ready(limit_ns))
        except SideFailure as failure:
            failure.starting, failure.cut_short = True, limit_ns < self.start_limit_ns
            raise

    def take_early(self) -> dict[int, ArmProtocol]:
        """The arms that started early, which are this generation's from now on; empty where there are none."""
        arms, self.early = self.early, {}
        self._closes.enter_context(self._closes_early.pop_all())
        return arms

    def drop_early(self) -> None:
        """End them: the next generation starts when it is its turn."""
        self.early = {}
        self._closes_early.close()

    def end_generation(self) -> None:
        """End the arms of this generation."""
        self._closes.close()

    def close(self) -> None:
        """End all."""
        with self._closes_early:
            self._closes.close()

    def _start(self, side: int, closes: contextlib.ExitStack) -> ArmProtocol:
        limit_ns = self.deadline.half_ns(self.start_limit_ns)
        arm = self.starters[side](self._started)
        self._limits_ns[id(arm)] = limit_ns
        self._started += 1
        closes.callback(arm.close)
        return arm


def answer_of(side: int, ask: Callable[[], Answer]) -> Answer:
    """Return what an arm of this side answers. Raises SideFailure."""
    try:
        return ask()
    except ArmFailed as failure:
        raise SideFailure(side, failure) from failure
