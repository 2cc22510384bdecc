"""Samples the training thread's Python stack about 200 times a second until it is traced, then 50 times.

A sample is one walk over the frames; stacks are interned, so that a steady loop costs a dictionary look-up each time.
The sampler measures how long it holds the interpreter and slows down rather than take more than its share.

Where the thread holds the interpreter for long, a sample waits until it lets go: samples lean towards calls that
release the interpreter (I/O, torch's operators, waits for the device). Python of less than 5 ms, which is when the
interpreter takes itself away, is charged to the call after it: there the lines of the followed step tell
(`line_log.py`).
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ...records import MOST_SAMPLES, SAMPLES, STACKS
from ..unlisted_thread import UnlistedThread
from ..writer import encode

PERIOD_S = 0.005
RESTING_S = 0.020
"""Seconds between samples after the trace, when only a live screen reads them: each one takes the interpreter away
for a moment."""
SLOWEST_S = 0.1
SHARE = 0.005
"""The share of the time that the sampler may hold the interpreter: above it the period is doubled, below a third halved
again."""
DEPTH = 64
"""Innermost frames kept of a stack."""
_REVIEW_EVERY = 64
OURS = str(Path(__file__).parent.parent) + os.sep
_WATCHING = OURS + os.path.join("modes", "watch.py")  # noqa: PTH118 - beside `OURS`, which is text
"""Below a function of this file runs the watcher's own work, such as opening its profiler, not the program's."""
_NOT_THE_PROGRAM = -1
_STACKS_KEPT = 20_000
_COLLECTS_WHILE_LOOKING = sys.version_info < (3, 12)
"""Up to Python 3.11, making the object of another thread's frame may start a garbage collection, whose callbacks let
that thread run on and return from the very frame: the interpreter then reads freed memory. Since 3.12 collections wait
for the next instruction."""


class Sampler:
    """Samples one thread; `drain` gives what has been seen since it was last asked."""

    def __init__(self, thread: int, period_s: float = PERIOD_S) -> None:
        self.period_s = self._base_s = period_s
        self.enabled = True
        self.cost_ns: int | None = None
        """The time that one sample takes; None before the first review."""
        self._watched = thread
        self._ids: dict[tuple[int, ...], int] = {}
        self._lines: dict[tuple[Any, ...], int] = {}
        self._codes: list[CodeType] = []  # kept alive: `_ids` knows them by address
        self._new_stacks: list[str] = []
        self._samples: list[tuple[int, int]] = []
        self._given = 0
        """Samples that `drain` gave."""
        self._stop = False
        self._thread = UnlistedThread(self._run)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def rest(self) -> None:
        """Sample less often from now on: the trace is there."""
        self._base_s = RESTING_S
        self.period_s = max(self.period_s, RESTING_S)

    def stop(self) -> None:
        """End sampling; returns when the thread has seen it."""
        self._stop = True
        self._thread.join(timeout=1)

    def drain(self) -> Iterator[tuple[str, str]]:
        """New stacks, then new samples, as lines of their files."""
        samples, self._samples = self._samples, []
        stacks, self._new_stacks = self._new_stacks, []
        self._given += len(samples)
        yield STACKS, "".join(stacks)
        if samples:
            yield SAMPLES, encode({"t": [time for time, _ in samples], "s": [stack for _, stack in samples]}) + "\n"

    def sample(self) -> None:
        """Look at the thread once."""
        if not (_COLLECTS_WHILE_LOOKING and gc.isenabled()):
            self._look()
            return
        gc.disable()
        try:
            self._look()
        finally:
            gc.enable()

    def _look(self) -> None:
        frame = sys._current_frames().get(self._watched)
        now = time.time_ns()
        if frame is None:
            return
        key: list[int] = []
        inner: FrameType | None = frame
        for _ in range(DEPTH):
            if inner is None:
                break
            key.append(id(inner.f_code))
            key.append(inner.f_lasti)
            inner = inner.f_back
        stack = self._ids.get(tuple(key))
        if stack is None:
            stack = self._intern(tuple(key), frame)
        if stack != _NOT_THE_PROGRAM:
            self._samples.append((now, stack))

    def _intern(self, key: tuple[int, ...], frame: FrameType) -> int:
        frames: list[tuple[str, int, str]] = []
        ours = False
        inner: FrameType | None = frame
        while inner is not None and len(frames) < DEPTH:
            code = inner.f_code
            self._codes.append(code)
            if not code.co_filename.startswith(OURS):
                frames.append((code.co_filename, inner.f_lineno or code.co_firstlineno, code.co_qualname))
            elif code.co_filename == _WATCHING:
                ours = True
            inner = inner.f_back
        lines = tuple(frames)
        stack = _NOT_THE_PROGRAM if ours else self._lines.get(lines)
        if stack is None:
            stack = self._lines[lines] = len(self._lines)
            self._new_stacks.append(encode({"i": stack, "f": frames}) + "\n")
        if len(self._ids) >= _STACKS_KEPT:
            self._ids.clear()
            self._codes.clear()
        self._ids[key] = stack
        return stack

    def _run(self) -> None:
        clock = time.perf_counter_ns
        held: list[int] = []
        while not self._stop and self._given < MOST_SAMPLES:
            time.sleep(self.period_s)
            if not self.enabled:
                continue
            begin = clock()
            try:
                self.sample()
            except (RuntimeError, ValueError, AttributeError):
                continue  # the thread ended, or a frame went away under our hands
            held.append(clock() - begin)
            if len(held) >= _REVIEW_EVERY:
                # The median: a stack seen for the first time costs more, but only once.
                self.cost_ns = sorted(held)[len(held) // 2]
                self._adapt(self.cost_ns / (self.period_s * 1e9))
                held.clear()

    def _adapt(self, share: float) -> None:
        if share > SHARE:
            self.period_s = min(SLOWEST_S, self.period_s * 2)
        elif share < SHARE / 3 and self.period_s > self._base_s:
            self.period_s = max(self._base_s, self.period_s / 2)
