"""The files of one rank's folder, decoded. A line that is no record is counted; one that was cut off is expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from diagnose.errors import NotATrace
from diagnose.model import Facts, Site, SyncSite
from diagnose.trace import StackFrame
from diagnose.trace.readers.telemetry.line_records import read_lines
from diagnose.trace.schema import MISSING, RangeKind

# `diagnose.collect.records` names the same files to those who write them; a test compares the two.
TRACE = "trace.json.gz"
WINDOW = "window.json"
LINES = "lines.json.gz"
STEPS = "steps.jsonl"
RANGES = "ranges.jsonl"
STACKS = "stacks.jsonl"
SAMPLES = "samples.jsonl"
SITES = "sites.jsonl"
SYNCS = "syncs.jsonl"
COUNTERS = "counters.jsonl"
MEMORY = "memory.pickle"
FACTS = "facts.json"
FILES = (TRACE, STEPS, RANGES, SAMPLES, SITES, SYNCS, COUNTERS, FACTS)


_LARGEST = 1 << 62
_Whole = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
"""What a column holds, and what the difference of two of them does not overrun."""
_Narrow = Annotated[int, Meta(ge=MISSING, lt=1 << 31)]
"""The range of a column of 32 bits."""
_LONGEST_LINE_BYTES = 16 << 20
_LONGEST_OBJECT_BYTES = 16 << 20


class _StepLine(Struct):
    t: _Whole
    w: _Whole = MISSING
    n: _Whole | None = None


class _RangeLine(Struct):
    k: str
    s: _Whole
    e: _Whole
    n: str = ""
    t: _Whole = MISSING


class _StackLine(Struct):
    i: _Whole
    f: list[tuple[str, _Whole, str]]


class _SamplesLine(Struct):
    t: list[_Whole]
    s: list[_Whole]


class _SiteLine(Struct):
    kind: str
    file: str
    line: _Whole
    function: str | None = None
    arguments: dict[str, Any] = {}


class _SyncLine(Struct):
    file: str
    line: _Whole
    function: str | None = None
    count: float = 1
    steps: float = 0


class _CountersLine(Struct):
    t: _Whole
    d: _Narrow = MISSING
    v: dict[str, float | None] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the step log."""

    end_ns: int
    input_ns: int


@dataclass(frozen=True, slots=True)
class Range:
    """One recorded stretch of host time."""

    kind: RangeKind
    start_ns: int
    end_ns: int
    name: str
    thread: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Values that were read at one moment."""

    time_ns: int
    device: int
    values: tuple[tuple[str, float], ...]


@dataclass
class RankRecords:
    """The records in one rank's folder beside the profiler's trace."""

    rank: int | None = None
    world_size: int | None = None
    pid: int = MISSING
    facts: Facts = field(default_factory=Facts)
    window_ns: tuple[int, int] | None = None
    steps: Sequence[Step] = ()
    ranges: Sequence[Range] = ()
    stacks: tuple[tuple[StackFrame, ...], ...] = ()
    sample_times: Sequence[int] = ()
    sample_stacks: Sequence[int] = ()
    line_times: Sequence[int] = ()
    line_stacks: Sequence[int] = ()
    sites: tuple[Site, ...] = ()
    sync_sites: tuple[SyncSite, ...] | None = None
    counters: Sequence[Reading] = ()
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> RankRecords:
        """Everything that can be read in `folder`; what cannot is named in `warnings`."""
        records = cls()
        said = records._object(folder / FACTS)
        window = records._object(folder / WINDOW)
        records._take_facts(said, window)
        owned = Ownership.of(said.get("owned_roots"))
        records.steps = [Step(line.t, line.w) for line in records._lines(folder / STEPS, _StepLine) if line.n is None]
        records.ranges = [
            Range(_range_kind(line.k), line.s, line.e, line.n or line.k, line.t)
            for line in records._lines(folder / RANGES, _RangeLine)
        ]
        records._take_samples(folder, owned)
        records._take_lines(folder / LINES)
        records.sites = tuple(
            Site(line.kind, line.file, line.line, line.function, _scalars(line.arguments), owned(line.file))
            for line in records._lines(folder / SITES, _SiteLine)
        )
        if (folder / SYNCS).is_file():
            records.sync_sites = tuple(
                SyncSite(line.file, line.line, line.function, line.count / line.steps if line.steps else line.count)
                for line in records._lines(folder / SYNCS, _SyncLine)
            )
        records.counters = [
            Reading(line.t, line.d, tuple((name, value) for name, value in line.v.items() if value is not None))
            for line in records._lines(folder / COUNTERS, _CountersLine)
        ]
        return records

    def _take_facts(self, said: Mapping[str, Any], window: Mapping[str, Any]) -> None:
        self.rank, self.world_size = _whole(said.get("rank")), _whole(said.get("world_size"))
        self.pid = _whole(said.get("pid")) or MISSING
        steady = window.get("steady")
        told = {"steady": steady if isinstance(steady, str) else None, **said}
        known: dict[str, Any] = {}
        for spec in fields(Facts):
            value = told.get(spec.name)
            try:
                known[spec.name] = getattr(msgspec.convert({spec.name: value}, Facts), spec.name)
            except msgspec.ValidationError:
                self.warnings.append(f"{FACTS}: {spec.name} is not what it should be and was left out")
        self.facts = Facts(**known)
        failures = said.get("watcher_failures")
        for failure in failures if isinstance(failures, list) else ():
            self.warnings.append(f"the watcher itself failed in part, so something may be missing: {failure}")
        begin, end = _whole(window.get("start_ns")), _whole(window.get("end_ns"))
        if begin is not None and end is not None and begin < end:
            self.window_ns = (begin, end)

    def _take_samples(self, folder: Path, owned: Ownership) -> None:
        """Stacks by their number, and the samples of those that are there."""
        numbers: dict[int, int] = {}
        stacks: list[tuple[StackFrame, ...]] = []
        for stack in self._lines(folder / STACKS, _StackLine):
            numbers[stack.i] = len(stacks)
            stacks.append(tuple(StackFrame(file, line, function, owned(file)) for file, line, function in stack.f))
        times: list[int] = []
        used: list[int] = []
        for line in self._lines(folder / SAMPLES, _SamplesLine):
            for time_ns, stack_id in zip(line.t, line.s, strict=False):
                if stack_id in numbers:
                    times.append(time_ns)
                    used.append(numbers[stack_id])
        self.stacks, self.sample_times, self.sample_stacks = tuple(stacks), times, used

    def _take_lines(self, path: Path) -> None:
        """The lines that were followed, their stacks added to those of the samples."""
        if not path.is_file():
            return
        try:
            followed = read_lines(path)
        except NotATrace as error:
            self.warnings.append(str(error))
            return
        self.line_times = followed.times
        self.line_stacks = [len(self.stacks) + stack for stack in followed.places]
        self.stacks = (*self.stacks, *followed.stacks)

    def _object(self, path: Path) -> dict[str, Any]:
        if not path.is_file():
            return {}
        try:
            with path.open("rb") as file:
                value = msgspec.json.decode(file.read(_LONGEST_OBJECT_BYTES))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError):
            value = None
        if not isinstance(value, dict):
            self.warnings.append(f"{path}: cannot be read and was left out")
            return {}
        return value

    def _lines(self, path: Path, kind: type[_Line]) -> Iterator[_Line]:
        if not path.is_file():
            return
        decoder = msgspec.json.Decoder(kind)
        unreadable = 0
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE_BYTES):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    unreadable += line.endswith(b"\n") and bool(line.strip())
        if unreadable:
            self.warnings.append(f"{path}: {unreadable} lines cannot be read and were left out")


_Line = TypeVar("_Line", bound=Struct)

_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d(?:\.\d+)?)[/\\]", re.IGNORECASE)
_OURS = re.compile(r"[/\\]diagnose[/\\](?:api|callbacks|collect[/\\]inside|kernels)[/\\]")
"""The part of this package that runs in training processes, wherever it was installed from."""
_CELL = "<ipython-input-"
"""How IPython in a terminal names the files of its cells. Other generated code is in angle brackets, too."""


@dataclass(frozen=True)
class Ownership:
    """Tells the user's own files: below one of their roots, and neither installed, nor Python's, nor ours."""

    roots: tuple[PurePath, ...] = ()

    @classmethod
    def of(cls, value: object) -> Ownership:
        """Return the ownership by `owned_roots` of the facts; without any, files not installed count as owned."""
        return cls(tuple(PurePath(root) for root in value if isinstance(root, str)) if isinstance(value, list) else ())

    def __call__(self, file: str) -> bool:
        if file.startswith(_CELL):
            return True
        if not file or file.startswith("<") or _INSTALLED.search(file) or _OURS.search(file):
            return False
        path = PurePath(file)
        return not self.roots or not path.is_absolute() or any(path.is_relative_to(root) for root in self.roots)


def _range_kind(name: str) -> RangeKind:
    try:
        return RangeKind[name.upper()]
    except KeyError:
        return RangeKind.USER


def _scalars(arguments: Mapping[str, Any]) -> dict[str, int | float | str | bool | None]:
    return {
        name: value if isinstance(value, int | float | str | bool | None) else str(value)
        for name, value in arguments.items()
    }


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        return None
    return value
