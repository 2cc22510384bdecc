"""Much of the memory that the allocator holds is in pieces that nothing fits into.

What it finds
    Memory reserved from the device far beyond what was in use at the peak: free pieces between pieces in use.

Why it costs
    The allocator cannot give back a segment of which a piece is in use. Memory looks full while much of it is free: an
    allocation is retried after everything unused was given back, or fails.

What proves it
    Where the allocator's history and segments are recorded (a snapshot, a live run): what is free at the peak in
    segments of which a part is in use. Else the peak of what was reserved against the peak of what was allocated, over
    the whole run; in a snapshot without history, what is free in such segments when it was taken. Without retries it
    costs nothing yet and is a hint; with retries in recorded steps, it is the idle time in the calls that give memory
    back and take it again.

What fixes it
    Segments that grow (`expandable-segments`: `PYTORCH_ALLOC_CONF=expandable_segments:True`).

Thresholds
    FREE (40 %): of what is reserved, the part that is not in use at the peak. Rounding up to blocks and segments
    explains a fifth at most (requests of 1 to 10 MB share segments of 20 MB, larger ones are rounded up to 2 MB).
    FEW_BYTES (1 GiB): less is no loss.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
    format_share,
)

FREE = 0.4
FEW_BYTES = 1 << 30


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Memory in pieces, with the time of retries."""
    found = _pieces(measures)
    if found is None:
        return
    free, reserved = found
    if free > reserved or free < max(FREE * reserved, FEW_BYTES):  # more than all: a recording that contradicts itself
        return
    retried = measures.has_device and measures.device_allocation.mostly_retried
    idle = measures.idle["allocator"]
    gain = recoverable_ns(measures, idle) if retried else 0
    cost = f"; retried allocations cost {format_ns(gain / measures.step_count)} per step" if gain else ""
    yield Claim(
        summary=f"{format_bytes(free)} of the {format_bytes(reserved)} that the allocator holds at its peak "
        f"({format_share(free / reserved)}) are not in use{cost}",
        recoverable_ns=gain,
        claims=idle if gain else Intervals.empty(),
        confidence=Confidence.MEASURED if gain else Confidence.HINT,
        evidence=[Evidence("free in pieces", free, "bytes"), Evidence("reserved", reserved, "bytes")],
        where=measures.places(idle) if gain else (),
        confirm=None if gain else "retried allocations: without any, it costs nothing yet",
    )


def _pieces(measures: Measures) -> tuple[int, int] | None:
    """Bytes that are free in pieces, and bytes reserved; None where nobody recorded them."""
    memory, segments, peak = measures.memory, measures.trace.segments, measures.memory_peak
    if peak is not None and peak.fragments_bytes is not None and peak.reserved_bytes is not None:
        return peak.fragments_bytes, peak.reserved_bytes
    if len(segments):
        mine = segments.where((segments.device == memory.device) | (segments.device < 0))
        # A segment of which nothing is in use is a cache, and would be given back.
        partly = mine.where((mine.active_bytes > 0) & (mine.expandable == 0))
        reserved = int(mine.size_bytes.clip(min=0).sum())
        return int((partly.size_bytes - partly.active_bytes).clip(min=0).sum()), reserved
    if memory.peak_allocated_bytes is None or memory.peak_reserved_bytes is None:
        return None
    return memory.peak_reserved_bytes - memory.peak_allocated_bytes, memory.peak_reserved_bytes


_H200 = Facts(device_name="NVIDIA H200", device_memory_bytes=150_000_000_000)
_PLAIN = """
    host: ol
    gpu :   kkkkkkkk
    step:           |
    """

_FIRES = (
    # Half of what is reserved is not in use at the peak, and allocations are retried.
    drawn(
        """
        host: oooooooo
        host:  fffmm  ol
        gpu :           kkkkkkk
        step:                  |
        """,
        repeat=4,
        facts=_H200,
        counted={
            "allocator.peak_allocated_bytes": [60_000_000_000, 70_000_000_000],
            "allocator.peak_reserved_bytes": [140_000_000_000, 145_000_000_000],
        },
    ),
    # The same without retries: a hint.
    drawn(
        _PLAIN,
        repeat=4,
        facts=_H200,
        counted={
            "allocator.peak_allocated_bytes": [20_000_000_000, 30_000_000_000],
            "allocator.peak_reserved_bytes": [60_000_000_000, 70_000_000_000],
        },
    ),
)
_SILENT = (
    # Nearly all that is reserved is in use at the peak.
    drawn(
        _PLAIN,
        repeat=4,
        facts=_H200,
        counted={
            "allocator.peak_allocated_bytes": [60_000_000_000, 100_000_000_000],
            "allocator.peak_reserved_bytes": [70_000_000_000, 115_000_000_000],
        },
    ),
    # A small program: segments are rounded up.
    drawn(
        _PLAIN,
        repeat=4,
        facts=_H200,
        counted={"allocator.peak_allocated_bytes": [30_000_000], "allocator.peak_reserved_bytes": [90_000_000]},
    ),
)

RULE = Rule(
    "fragmented-memory",
    check,
    fixers=("expandable-segments",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=12,
    symptom=Symptom.MEMORY,
)
