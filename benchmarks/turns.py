"""Several versions of a training script in turns on one device: A B C A B C …, each in a process that rests in between.

All warm up at the same time, which leaves compiling and tuning out of what is timed; then every round runs a block of
each, the same steps in all. A resting process is stopped with all its workers, so that none of them fills its queues
meanwhile. Versions that do not fit in memory together run one after the other, in a fresh process each round.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from diagnose.trial.process.stderr_tail import where_it_crashed

CHILD = Path(__file__).resolve().parent / "turns_child.py"
WARM_UP = 20
DROP = 3
"""Unmeasured steps at the head of each block: caches and clocks recover from the rest."""
PERIOD = 20
"""Whatever happens every so often in the programs has a period that divides this; a block has a multiple of it."""
BLOCK_S = 0.5
"""A block of the fastest version takes at least this long."""
LIMIT_S = 240
"""For the start of one process, compiling included, and for one block."""
_LACK = re.compile(r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)


class VersionFailed(Exception):
    """A version gave no answer; `lack` says that memory ran out."""

    def __init__(self, message: str, *, lack: bool = False) -> None:
        super().__init__(message)
        self.lack = lack


@dataclass(frozen=True)
class Version:
    """One script to time."""

    name: str
    script: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path


@dataclass
class Timing:
    """Mean steps in ns by version, one a round."""

    steps: int = 0
    """Of a block."""
    rounds: dict[str, list[float]] = field(default_factory=dict)
    together: bool = True


class Standby:
    """A process that has imported torch and waits for its script. Use it as a context manager."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.environment = dict(environment)
        self._log = log
        self._received = b""
        with log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, str(CHILD)],
                env={"PYTHONFAULTHANDLER": "1", **self.environment},  # else a crash is silent
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=log.parent,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def fileno(self) -> int:
        """The file descriptor of the child's answers, to wait for."""
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def begin(self, version: Version, warm_up: int) -> None:
        """Start the script; `answer` tells of its warm-up."""
        self._send({"script": str(version.script), "arguments": list(version.arguments), "warm_up": warm_up})

    def run(self, steps: int, drop: int) -> int:
        """One block, in ns. Raises VersionFailed."""
        self._signal(signal.SIGCONT)
        self._send({"steps": steps, "drop": drop})
        return self.answer("block_ns")

    def answer(self, name: str) -> int:
        """The next answer; the process rests after it. Raises VersionFailed."""
        end = time.monotonic() + LIMIT_S
        while b"\n" not in self._received:
            ready, _, _ = select.select([self], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.fileno(), 1 << 16) if ready else b""
            if not part:
                raise self._failure("ended" if ready else f"gave no answer in {LIMIT_S} s")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        self._signal(signal.SIGSTOP)
        return int(json.loads(line)[name])

    def end(self) -> None:
        """End the process and all that it has started."""
        self._signal(signal.SIGKILL)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # that it is gone shows when its answer is read
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _failure(self, how: str) -> VersionFailed:
        self.end()
        text = self._log.read_text(errors="replace")
        crash = where_it_crashed(text, lines=2)
        last = [" ".join(crash.split())] if crash else text.strip().splitlines()[-1:] or ["in silence"]
        return VersionFailed(f"{how}: {last[0]}", lack=bool(_LACK.search(text)))


def take_turns(versions: Sequence[Version], rounds: int, waiting: Iterable[Standby] = ()) -> Timing:
    """Time all versions. `waiting` are used where their environment is a version's. Raises VersionFailed."""
    with contextlib.ExitStack() as stack:
        ready = [stack.enter_context(standby) for standby in waiting]
        try:
            return _together(versions, rounds, ready, stack)
        except VersionFailed as failure:
            if not failure.lack:
                raise
    return _one_by_one(versions, rounds)


def _together(versions: Sequence[Version], rounds: int, waiting: list[Standby], stack: contextlib.ExitStack) -> Timing:
    running = []
    for version in versions:
        fitting = next((one for one in waiting if one.environment == dict(version.environment)), None)
        if fitting is not None:
            waiting.remove(fitting)
        running.append(fitting or stack.enter_context(Standby(version.environment, version.log)))
    for left in waiting:
        left.end()
    for standby, version in zip(running, versions, strict=True):
        standby.begin(version, WARM_UP)
    timing = Timing(block_steps(min(warmed_up(running))), {version.name: [] for version in versions})
    for _ in range(rounds):
        for standby, version in zip(running, versions, strict=True):
            timing.rounds[version.name].append(standby.run(timing.steps, DROP) / timing.steps)
    return timing


def warmed_up(running: Sequence[Standby]) -> list[int]:
    """The step of each in ns, in the order in which they are ready: each rests from then on. Raises VersionFailed."""
    left = list(running)
    steps_ns = []
    while left:
        ready, _, _ = select.select(left, [], [], LIMIT_S)
        for standby in ready or left[:1]:
            steps_ns.append(standby.answer("step_ns"))
            left.remove(standby)
    return steps_ns


def _one_by_one(versions: Sequence[Version], rounds: int) -> Timing:
    timing = Timing(0, {version.name: [] for version in versions}, together=False)
    for _ in range(rounds):
        for version in versions:
            with Standby(version.environment, version.log) as standby:
                standby.begin(version, WARM_UP)
                step_ns = standby.answer("step_ns")
                timing.steps = timing.steps or block_steps(step_ns)
                timing.rounds[version.name].append(standby.run(timing.steps, DROP) / timing.steps)
    return timing


def block_steps(fastest_ns: int) -> int:
    """Steps of a block for versions of which the fastest takes so long a step."""
    return PERIOD * max(1, round(BLOCK_S * 1e9 / (PERIOD * max(1, fastest_ns))))
