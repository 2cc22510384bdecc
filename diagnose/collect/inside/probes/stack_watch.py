"""Counts at which of the user's lines the training thread is, and notices when its stack stands still.

For runs of days: a few samples a second, of which only the counts are kept.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import CodeType, FrameType

from ..source_ownership import Ownership
from .stack_sampler import DEPTH, OURS, SLOWEST_S, Sampler

Place = tuple[str, int]


class StackWatch(Sampler):
    """Samples one thread, ten times a second; `take` gives the counts since it was last asked."""

    def __init__(self, thread: int, ownership: Ownership) -> None:
        super().__init__(thread, SLOWEST_S)
        self._ownership = ownership
        self._counts: Counter[Place] = Counter()
        self._stack: list[tuple[CodeType, int]] = []
        self.moved_ns = time.time_ns()
        """The time at which the thread was last seen at another instruction than before."""

    def take(self) -> dict[Place, int]:
        """Samples by file and line."""
        counts, self._counts = self._counts, Counter()
        return counts

    def stack(self) -> list[tuple[str, int, str, bool]]:
        """Return the frames that were last seen, innermost first: file, line, function, whether the file is the
        user's.
        """
        return [
            (code.co_filename, _line(code, at), code.co_qualname, self._ownership.owns(code.co_filename))
            for code, at in self._stack
            if not code.co_filename.startswith(OURS)
        ]

    def _look(self) -> None:
        frame = sys._current_frames().get(self._watched)
        stack: list[tuple[CodeType, int]] = []
        owned: FrameType | None = None
        while frame is not None and len(stack) < DEPTH:
            stack.append((frame.f_code, frame.f_lasti))
            if owned is None and self._ownership.owns(frame.f_code.co_filename):
                owned = frame
            frame = frame.f_back
        if owned is not None:
            self._counts[owned.f_code.co_filename, owned.f_lineno or 0] += 1
        if stack != self._stack:
            self._stack, self.moved_ns = stack, time.time_ns()


def _line(code: CodeType, instruction: int) -> int:
    """The line of an instruction, that of the function where it has none."""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return next(lines, None) or code.co_firstlineno
