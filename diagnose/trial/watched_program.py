"""A program as its watched run showed it, before any trial: its memory, and the time that it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.collect.records import TRACE
from diagnose.model import Diagnosis
from diagnose.trace import Trace
from diagnose.trial.process.capacity import Memory, while_watched
from diagnose.units import NS_PER_S

_LONGEST_NS = 600 * NS_PER_S
"""A file that is so much later than its window has been written anew, or copied."""
_NARROW = ("tf32", "bf16", "fp16", "fp8")
_NEARLY_ALL = 0.9
"""The share of a step's operations in narrow formats from which all its numbers are rounded by them. Chosen; the gate
sees where it is not so."""


@dataclass(frozen=True)
class WatchedProgram:
    """The facts of a program that its watched run showed. Times are nanoseconds; zero is not known."""

    memory: Memory = field(default_factory=Memory)
    """The memory of one process."""
    window_ns: int = 0
    """The time to write its profiler window."""
    start_ns: int = 0
    step_ns: int = 0
    ranks: int = 1
    """The number of ranks of one run."""
    compiles: bool = False
    """Whether it was seen to compile something."""
    mortal: bool = False
    """Whether it was seen to hold more from step to step, until memory runs out."""
    narrow: bool = False
    """Whether it multiplies in formats narrower than float32, TF32 among them."""
    searches: bool = False
    """Whether the program lets cuDNN search for the fastest convolutions, which takes most of a first step."""

    @classmethod
    def of(
        cls,
        traces: Sequence[Trace],
        began_ns: int | None = None,
        step_ns: int = 0,
        *,
        compiles: bool = False,
        mortal: bool = False,
        narrow: bool = False,
    ) -> WatchedProgram:
        """Return what the traces of all ranks tell of a run that was started at `began_ns`, in ns since the epoch."""
        memory, ranks = while_watched(traces), max(1, len(traces))
        searches = any(trace.facts.cudnn_benchmark for trace in traces)
        return cls(
            memory, written_ns(traces), start_ns(traces, began_ns), step_ns, ranks, compiles, mortal, narrow, searches
        )


def multiplies_in_narrow_formats(diagnosis: Diagnosis) -> bool:
    """Whether nearly all products of the recorded steps are in formats narrower than float32."""
    shares = diagnosis.work.in_use if diagnosis.work is not None else {}
    return sum(shares.get(form, 0.0) for form in _NARROW) >= _NEARLY_ALL


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
