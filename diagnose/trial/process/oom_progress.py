"""How far a program came before memory ran out: its steps, and the phase of the step in which it died.

The phase is read from the end of its traceback. A frame of the backward pass or of an optimizer tells of it; that there
is none tells nothing, since only the last lines are known.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_OPTIMIZER = re.compile(r'^\s*File ".*[/\\]torch[/\\]optim[/\\]', re.MULTILINE)
_BACKWARD = re.compile(r'^\s*File ".*", line \d+, in (?:backward|_engine_run_backward|unpack_hook)$', re.MULTILINE)


class Phase(enum.IntEnum):
    """A phase of a step, as far as a traceback tells; what comes later is larger."""

    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, slots=True)
class OomProgress:
    """Where a program died; None is unknown."""

    steps: int | None = None
    """The number of steps that had ended."""
    phase: Phase | None = None
    """The phase of the step that had not ended."""

    @classmethod
    def of(cls, steps: int | None, last_words: str) -> OomProgress:
        """Return the progress from the number of steps that ended and the end of the error stream."""
        if _OPTIMIZER.search(last_words):
            return cls(steps, Phase.OPTIMIZER)
        return cls(steps, Phase.BACKWARD if _BACKWARD.search(last_words) else None)

    @property
    def at_least(self) -> tuple[int, int]:
        """A key by which what is known to have come farther is larger."""
        return self.steps or 0, self.phase or 0

    def before(self, other: OomProgress) -> bool:
        """Whether this run is known to have died earlier than another."""
        if self.steps is None or other.steps is None:
            return False
        if self.steps != other.steps or self.phase is None or other.phase is None:
            return self.steps < other.steps
        return self.phase < other.phase
