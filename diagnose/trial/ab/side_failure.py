"""One side of a duel that failed, and what other processes beside it may have to do with it."""

from __future__ import annotations

from diagnose.trial.ab.result import ORIGINAL
from diagnose.trial.process.arm import ArmFailed, Trouble


class SideFailure(Exception):
    """Raised by whatever waits for an arm."""

    def __init__(self, side: int, reason: ArmFailed) -> None:
        super().__init__(str(reason))
        self.side = side
        self.reason = reason
        self.starting = False
        self.cut_short = False
        """It was given less time than the schedule allows it."""

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
