"""The time that starting the program and writing a profiler window took while it was watched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diagnose.collect.records import TRACE
from diagnose.trace import Trace
from diagnose.units import NS_PER_S

_LONGEST_NS = 600 * NS_PER_S
"""A file that is so much later than its window has been written anew, or copied."""


def written_ns(traces: Sequence[Trace]) -> int:
    """Return the time from the end of a window until it was on disk, of the slowest rank, in ns; 0 where unknown."""
    return max((_written_ns(trace) for trace in traces), default=0)


def start_ns(traces: Sequence[Trace], began_ns: int | None) -> int:
    """Return the time from the start of the program (ns since the epoch) to the end of its slowest rank's first step,
    in ns; 0 where unknown.
    """
    ends = [int(trace.step_log.end_ns[0]) for trace in traces if len(trace.step_log)]
    return max(0, max(ends) - began_ns) if ends and began_ns is not None else 0


def _written_ns(trace: Trace) -> int:
    source = Path(trace.source)
    path = source / TRACE if source.is_dir() else source
    if trace.window_ns is None or not path.is_file():
        return 0
    took_ns = path.stat().st_mtime_ns - trace.window_ns[1]
    return took_ns if 0 < took_ns < _LONGEST_NS else 0
