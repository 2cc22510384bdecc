"""Reads the run folder of a watched program: what each rank left in `rank<k>/`, as one trace a rank.

Any file may be missing, and any may end in the middle of a line: the program may have been killed at any moment.
`diagnose.collect.records` documents the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from diagnose.errors import InputError, NotATrace
from diagnose.model import Facts
from diagnose.trace import Thread, Trace
from diagnose.trace.readers.kineto import torch_profiler
from diagnose.trace.readers.memory import memory_snapshot
from diagnose.trace.readers.telemetry.rank_records import (
    COUNTERS,
    FACTS,
    FILES,
    MEMORY,
    RANGES,
    STEPS,
    TRACE,
    RankRecords,
)
from diagnose.trace.schema import Counters, RangeKind, Ranges, Samples, StepLog

ReadProfile = Callable[[Path], list[Trace]]

_RANK_FOLDER = re.compile(r"rank(\d+)")


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds `rank<k>/` folders that a watched program wrote, or is one of them."""
    return bool(_rank_folders(folder))


def profiles_of(folder: Path) -> list[Path]:
    """Return the files that torch.profiler wrote into the ranks' folders."""
    return [path for rank in _rank_folders(folder) if (path := rank / TRACE).is_file()]


def recorded_ranks(folder: Path) -> list[Path]:
    """The ranks' folders in which anything was recorded. Raises NotATrace when there are none."""
    ranks = [rank for rank in _rank_folders(folder) if _is_recorded(rank)]
    if not ranks:
        raise NotATrace(folder, "is a run folder, but nothing was recorded in it; run the program again")
    return ranks


def read_run_folder(folder: Path, read_profile: ReadProfile = torch_profiler.read) -> list[Trace]:
    """One trace for each rank's folder. Raises NotATrace when none of them holds a record."""
    return [_read_rank(rank, read_profile) for rank in recorded_ranks(folder)]


def _rank_folders(folder: Path) -> list[Path]:
    if _RANK_FOLDER.fullmatch(folder.name) and _has_records(folder):
        return [folder]
    ranks = [child for child in folder.iterdir() if _RANK_FOLDER.fullmatch(child.name) and child.is_dir()]
    return sorted(filter(_has_records, ranks), key=lambda child: _number(child))


def _has_records(folder: Path) -> bool:
    # A folder of ranks that torch.profiler alone wrote has no facts.
    return any((folder / name).is_file() for name in (FACTS, STEPS, RANGES, COUNTERS)) or (folder / TRACE).is_file()


def _number(folder: Path) -> int:
    match = _RANK_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else 0


def _is_recorded(folder: Path) -> bool:
    return any((folder / name).is_file() and (folder / name).stat().st_size for name in FILES)


def _read_rank(folder: Path, read_profile: ReadProfile) -> Trace:
    records = RankRecords.read(folder)
    trace, warnings = _profiled(folder, read_profile)
    warnings = [*trace.warnings, *warnings, *records.warnings]
    names = _Names(trace.names)
    ranges, threads = _with_ranges(trace, records, names)
    counters = _counters(records, names)
    facts = records.facts
    trace = replace(
        trace,
        source=str(folder),
        names=tuple(names.known),
        threads=threads,
        stacks=records.stacks,
        rank=records.rank if records.rank is not None else trace.rank if trace.rank is not None else _number(folder),
        world_size=records.world_size if records.world_size is not None else trace.world_size,
        device_names=trace.device_names or ((facts.device_name,) if facts.device_name else ()),
        window_ns=records.window_ns if records.window_ns and trace.window_ns else trace.window_ns,
        ranges=ranges,
        samples=Samples.build({"time_ns": records.sample_times, "stack": records.sample_stacks}).sorted_by_start(),
        lines=Samples.build({"time_ns": records.line_times, "stack": records.line_stacks}),
        counters=counters,
        step_log=StepLog.build(
            {
                "end_ns": [step.end_ns for step in records.steps],
                "input_ns": [step.input_ns for step in records.steps],
            }
        ).sorted_by_start(),
        sites=records.sites,
        sync_sites=records.sync_sites,
        facts=_completed(facts, trace.facts),
        warnings=tuple(warnings),
    )
    return _with_memory(trace, folder / MEMORY)


def _with_memory(trace: Trace, path: Path) -> Trace:
    """The trace with the allocator's snapshot, or with the reason why there is none of it."""
    if not path.is_file():
        return trace
    try:
        return memory_snapshot.with_snapshot(trace, memory_snapshot.read(path)[0])
    except InputError as error:
        return replace(trace, warnings=(*trace.warnings, str(error)))


def _profiled(folder: Path, read_profile: ReadProfile) -> tuple[Trace, list[str]]:
    """The profiler's window, or an empty trace with the reason why there is none."""
    path = folder / TRACE
    if not path.is_file():
        return Trace(source=str(folder)), []
    try:
        return read_profile(path)[0], []
    except InputError as error:
        return Trace(source=str(folder)), [str(error)]


class _Names:
    """The trace's names, with those that the records add."""

    def __init__(self, names: Sequence[str]) -> None:
        self.known = {name: i for i, name in enumerate(names)}

    def number(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


def _with_ranges(trace: Trace, records: RankRecords, names: _Names) -> tuple[Ranges, tuple[Thread, ...]]:
    """The profiler's ranges and the recorded ones, on the same threads where their ids are the same."""
    threads = list(trace.threads)
    by_id = {thread.tid: i for i, thread in reversed(list(enumerate(threads)))}
    numbers, recorded = [], records.ranges
    for one in recorded:
        if one.thread not in by_id:
            by_id[one.thread] = len(threads)
            threads.append(Thread(records.pid, one.thread))
        numbers.append(by_id[one.thread])
    added = Ranges.build(
        {
            "start_ns": [one.start_ns for one in recorded],
            "end_ns": [max(one.start_ns, one.end_ns) for one in recorded],
            "kind": [one.kind for one in recorded],
            "name": [names.number(one.name) for one in recorded],
            "thread": numbers,
        }
    )
    return Ranges.concatenate([_without_torn_step(trace, records.window_ns), added]), tuple(threads)


def _without_torn_step(trace: Trace, window_ns: tuple[int, int] | None) -> Ranges:
    """The profiler's ranges, without the mark of a step that had begun when the program ended: it is no whole step.

    The window ends with the last whole one, so a mark that lies for the greater part behind it belongs to no step.
    """
    ranges = trace.ranges
    if window_ns is None:
        return ranges
    middle = ranges.start_ns + (ranges.end_ns - ranges.start_ns) // 2
    return ranges.where((ranges.kind != RangeKind.STEP) | (middle < window_ns[1]))


def _counters(records: RankRecords, names: _Names) -> Counters:
    rows = [
        (one.time_ns, names.number(name), one.device, value) for one in records.counters for name, value in one.values
    ]
    if not rows:
        return Counters.build()
    times, numbers, devices, values = zip(*rows, strict=True)
    table = Counters.build({"time_ns": times, "name": numbers, "device": devices, "value": np.asarray(values)})
    return table.sorted_by_start()


def _completed(facts: Facts, of_trace: Facts) -> Facts:
    """Merge the facts that the process wrote with those that only the trace holds."""
    return replace(
        facts,
        device_name=facts.device_name or of_trace.device_name,
        device_capability=facts.device_capability or of_trace.device_capability,
        device_memory_bytes=facts.device_memory_bytes or of_trace.device_memory_bytes,
    )
