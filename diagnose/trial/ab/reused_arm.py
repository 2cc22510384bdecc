"""An arm that outlives its duel: one process is enough for all settings of a knob that are measured against it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from diagnose.trial.ab.arm_protocol import ArmProtocol, Starter
from diagnose.trial.process.arm import ArmFailed, Block, Ready


class ReusedArm:
    """Duels use it one after the other; it is started again when it has come to its end."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._started = 0
        self._arm: ArmProtocol | None = None
        self._ready: Ready | None = None

    def start(self, _number: int) -> Self:
        """Start it unless it still lives: it then warms up beside the other arm."""
        if self._arm is None:
            self._arm = self._starter(self._started)
            self._started += 1
        return self

    def ready(self, limit_ns: int) -> Ready:
        """Return the arm's ready message; later calls return the first answer."""
        assert self._arm is not None  # `start` comes first
        if self._ready is None:
            self._ready = self._arm.ready(limit_ns)
        return self._ready

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        """Run a block of steps. An arm that fails (ArmFailed) is ended, so that the next trial starts another."""
        assert self._arm is not None  # `start` comes first
        try:
            return self._arm.run(steps, drop, limit_ns)
        except ArmFailed:
            self.end()
            raise

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        """Run a profiler window, and return its traces."""
        assert self._arm is not None  # `start` comes first
        return self._arm.trace(steps, drop, limit_ns)

    def close(self) -> None:
        """Kept for the next duel, unless it is not yet of use."""
        if self._ready is None:
            self.end()

    def end(self) -> None:
        """End its program; nothing where none lives."""
        arm, self._arm, self._ready = self._arm, None, None
        if arm is not None:
            arm.close()
