"""Reads what a running program has done since the last poll, as plain records to show or to journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.collect.counters import claims
from diagnose.collect.records import CLOSING, FACTS, STEPS, TRACE, WINDOW


@dataclass(frozen=True)
class PhaseBegan:
    """A phase of the run began; `phase` is in the user's words."""

    phase: str
    detail: str = ""


@dataclass(frozen=True)
class StepsEnded:
    """Steps of one rank that ended since the last record."""

    rank: int
    ends_ns: tuple[int, ...]
    input_ns: tuple[int, ...]
    """Per step: time inside the loader's `__next__`."""
    skipped: tuple[int, ...] = ()
    """Per step: those before it of which only the number is known, as the log of a long run thins out; empty: none."""
    anew: bool = False
    """The log has begun again with these: what was taken for steps before were none."""

    @property
    def count(self) -> int:
        """All of them, those that are skipped as well."""
        return len(self.ends_ns) + sum(self.skipped)


@dataclass(frozen=True)
class CounterValues:
    """The newest value of each counter of one rank."""

    rank: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class WindowWritten:
    """A rank's trace lies on disk, whole."""

    rank: int
    path: Path
    steps: int
    steady: str
    """Why the window began when it did, in words."""


@dataclass(frozen=True)
class FactsWritten:
    """The facts of a rank's process were written: the contents of its facts.json."""

    rank: int
    facts: Mapping[str, Any]


Progress = PhaseBegan | StepsEnded | CounterValues | WindowWritten | FactsWritten


class Tail:
    """Follows the files of a run folder; `new` gives what has come since it was last asked."""

    def __init__(self, folder: Path, traced_steps: int) -> None:
        self._folder = folder
        self._traced_steps = traced_steps
        self._offsets: dict[int, int] = {}
        self._torn: dict[int, bytes] = {}
        self._anew: set[int] = set()
        self._windows: set[int] = set()
        self._facts: dict[int, tuple[int, int]] = {}
        self._phase = ""

    @property
    def all_traced(self) -> bool:
        """Whether every rank that has been seen has its window on disk."""
        return bool(self._offsets) and self._windows == set(self._offsets)

    @property
    def phase(self) -> str:
        """The phase of the run at the last poll; empty before the first."""
        return self._phase

    def new(self) -> Iterator[Progress]:
        """Records in the order in which a screen wants them: phase, facts, steps, windows."""
        yield from self._phases()
        for rank in claims(self._folder):
            self._offsets.setdefault(rank, 0)
            yield from self._new_facts(rank)
            yield from self._new_steps(rank)
            yield from self._new_window(rank)
        yield from self._phases()

    def _phases(self) -> Iterator[PhaseBegan]:
        if self._phase != (phase := self._current_phase()):
            self._phase = phase
            yield PhaseBegan(phase)

    def _current_phase(self) -> str:
        if not self._offsets:
            return "waiting for the first step"
        if not self.all_traced:
            if any(self._is_closing(rank) for rank in self._offsets):
                return "writing the trace: steps wait until it is written"
            return f"watching until steps are steady, then tracing {self._traced_steps}"
        return "watching"

    def _is_closing(self, rank: int) -> bool:
        return rank not in self._windows and (self._folder / f"rank{rank}" / CLOSING).exists()

    def _new_steps(self, rank: int) -> Iterator[StepsEnded]:
        path = self._folder / f"rank{rank}" / STEPS
        try:
            with path.open("rb") as file:
                if path.stat().st_size < self._offsets[rank]:
                    self._offsets[rank], self._torn[rank] = 0, b""  # begun again: see Hub.on_restart
                    self._anew.add(rank)
                file.seek(self._offsets[rank])
                text = file.read()
        except OSError:
            return
        self._offsets[rank] += len(text)
        *lines, self._torn[rank] = (self._torn.get(rank, b"") + text).split(b"\n")
        steps = [step for line in lines if line and (step := _record(line)) is not None]
        if steps:
            ends_ns, input_ns = tuple(step["t"] for step in steps), tuple(step["w"] for step in steps)
            skipped = tuple(step.get("n", 0) for step in steps) if any("n" in step for step in steps) else ()
            yield StepsEnded(rank, ends_ns, input_ns, skipped, rank in self._anew)
            self._anew.discard(rank)

    def _new_window(self, rank: int) -> Iterator[WindowWritten]:
        folder = self._folder / f"rank{rank}"
        if rank not in self._windows and (window := _read_json(folder / WINDOW)) is not None:
            self._windows.add(rank)
            steady = str(window.get("steady") or "")
            yield WindowWritten(rank, folder / TRACE, int(window.get("steps", 0)), steady)

    def _new_facts(self, rank: int) -> Iterator[FactsWritten]:
        path = self._folder / f"rank{rank}" / FACTS
        try:
            status = path.stat()
        except OSError:
            return
        version = (status.st_mtime_ns, status.st_ino)
        if self._facts.get(rank) != version and (facts := _read_json(path)) is not None:
            self._facts[rank] = version
            yield FactsWritten(rank, facts)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return _record(path.read_bytes())
    except OSError:
        return None


def _record(text: bytes) -> dict[str, Any] | None:
    """None for what is no record, such as a line that a full disk cut off."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
