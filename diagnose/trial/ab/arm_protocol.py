"""What an A/B trial needs of an arm, and what it tells: so that one is tested with arms whose clocks are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from diagnose.model import Interval
from diagnose.trial.process.arm import Block, Ready
from diagnose.verdict import Pair


class ArmProtocol(Protocol):
    """What an A/B trial needs of an arm; `diagnose.trial.process.arm.Arm` is one."""

    def ready(self, limit_ns: int) -> Ready: ...
    def run(self, steps: int, drop: int, limit_ns: int) -> Block: ...
    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]: ...
    def close(self) -> None: ...


Starter = Callable[[int], ArmProtocol]
"""Starts a fresh process of one side; its argument counts the processes, for names of folders."""
OnPair = Callable[[int, Pair, Interval | None], None]
"""Told after each pair: its number, the pair, the estimate so far."""
