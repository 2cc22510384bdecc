"""Copies to the device from pageable memory, which the step waits for.

What it finds
    Host-to-device copies whose source is ordinary, swappable memory, as far as nothing hides them: the device copies
    while nothing computes, or idles while the host is stuck in the copy call.

Why it costs
    The device can only read pinned memory. A pageable source is staged piece by piece through a pinned buffer by the
    host, which is slower, blocks the launching thread, and cannot overlap with the host's next launches.

What proves it
    The source kind in the copy's record; copy time outside compute and collectives, beyond what a pinned copy of as
    many bytes takes; idle time from the copy's launch call until the host is ahead of the device again, which it stays
    once it does not wait for copies. An upper bound: the replay knows nothing of clocks that fall on a busier device,
    nor whether the program needs the batch at once.

What fixes it
    `pin_memory=True` in the loader (`loader-pin`, `loader-workers`) and `non_blocking=True` (`nonblocking-copies`).

Thresholds
    LINKS: bytes per ns of a pinned copy, by the device's PCI Express generation: 55 on an H200 (measured; 16 lanes of
    5.0 have 63), 25 for 4.0 and for devices that are not known, 12 for 3.0, with the same losses.
    LEAST_NS (1 µs): what any copy takes, however small.
    AHEAD (2): pieces of work in the queue from which on the host is ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import calls_in, gained_ns, sped_up
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_count,
    format_ns,
)
from diagnose.trace.schema import CopyDirection, Int64, Memory, RangeKind

LINKS = (
    (re.compile(r"GH200|H[128]00|B[12]00|MI3\d\d"), 55.0),
    (re.compile(r"V100|P100|T4\b|TITAN|RTX 20|MI[56]0"), 12.0),
)
_OTHER_LINK = 25.0  # bytes per ns: see LINKS
LEAST_NS = 1_000
AHEAD = 2

_FIXERS = ("nonblocking-copies", "loader-pin", "loader-workers", "keep-on-device")
_WITHOUT_LOADER = ("nonblocking-copies", "keep-on-device")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Exposed pageable copies and the idle time around their calls."""
    if not measures.has_device:
        yield CannotTell("pageable-copies", "a recording of the device's work")
        return
    device = measures.trace.device
    to_device = device.direction == CopyDirection.HOST_TO_DEVICE
    copies = measures.rows_within_steps(to_device)
    if len(copies) and (device.host_memory[copies] == Memory.UNKNOWN).all():
        yield CannotTell("pageable-copies", "whether the copies' host memory is pinned")
        return
    rows = measures.rows_within_steps(to_device & (device.host_memory == Memory.PAGEABLE))
    if len(rows) == 0:
        return
    exposed = measures.time_of(rows) - measures.compute - measures.comm
    left = _left_of_pinned(measures, rows)
    idle = measures.idle_of("launch", "sync", "dispatch", "python") & (
        measures.pageable_waits | _behind(measures, rows)
    )
    length = (device.end_ns - device.start_ns)[rows]
    part = float((length * (1 - left)).sum()) / max(int(length.sum()), 1)
    cut = sped_up(measures, rows, left) | Cut(waits=calls_in(measures, measures.pageable_waits))
    gain = gained_ns(measures, cut, int(exposed.total_ns * part) + (idle & measures.counted).total_ns)
    claims = exposed | idle
    if gain == 0:
        return
    size = int(device.size_bytes[rows][device.size_bytes[rows] > 0].sum())
    lengths = int((device.end_ns - device.start_ns)[rows].sum())
    yield Claim(
        summary=f"the step waits {format_ns(gain / measures.step_count)} for copies from pageable memory "
        f"({format_count(len(rows) / measures.step_count)} per step, {format_bytes(size / measures.step_count)})",
        recoverable_ns=gain,
        claims=claims,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("pageable copies per step", len(rows) / measures.step_count, "count", tuple(rows.tolist())),
            Evidence("copied per step", size // measures.step_count, "bytes"),
            Evidence("bandwidth", size / lengths if lengths else 0.0, "GB/s"),
        ],
        where=places_of_ops(measures, measures.op_of_work[rows]) or measures.places(claims),
        fixers=_FIXERS if _may_load(measures) else _WITHOUT_LOADER,
        confirm="a trial with pinned memory and non-blocking copies",
    )


def _may_load(measures: Measures) -> bool:
    """Whether batches come from a DataLoader, as far as is known: torch.profiler and live runs mark each of them."""
    trace = measures.trace
    built = any(site.kind == "DataLoader" for site in trace.sites)
    marked = bool((trace.ranges.kind == RangeKind.INPUT).any())
    return built or marked or not (len(trace.sites) or len(trace.ops))


def _left_of_pinned(measures: Measures, rows: Int64) -> np.typing.NDArray[np.float64]:
    """Per copy, the part of its time that it would take from pinned memory; 0 where its size is unknown."""
    trace = measures.trace
    name = trace.facts.device_name or (trace.device_names[0] if trace.device_names else "")
    link = next((rate for known, rate in LINKS if known.search(name)), _OTHER_LINK)
    size = trace.device.size_bytes[rows]
    needed = np.where(size > 0, np.maximum(size / link, LEAST_NS), 0)
    taken = np.maximum(trace.device.end_ns[rows] - trace.device.start_ns[rows], 1)
    return np.asarray(np.minimum(needed / taken, 1.0), np.float64)


def _behind(measures: Measures, rows: Int64) -> Intervals:
    """Return the stretches from each copy's end until work begins that had been launched well before."""
    device = measures.trace.device
    ahead = measures.rows_within_steps(measures.queue_depth >= AHEAD)
    begins = np.append(np.sort(device.start_ns[ahead]), measures.steps.end_ns[-1])
    ends = device.end_ns[rows]
    until = begins[np.minimum(np.searchsorted(begins, ends), len(begins) - 1)]
    return Intervals.of(ends, np.maximum(until, ends))


_drawn = partial(drawn, repeat=4)
_FIRES = (
    # The copy blocks its call and stands alone on the device.
    _drawn("""
        host: cccccol
        gpu :  hhhh  kkkkkkkk
        step:                |
    """),
    # The call waits for the step before, then for the copy.
    _drawn("""
        host: olccccccccccccc
        gpu :   kkkkkkkkhhhhh
        step:                |
    """),
)

_SILENT = (
    # The same copy under compute of another stream.
    drawn("""
        host : ol ccccc
        gpu  :   kkkkkkkkkk
        gpu 7:     hhhh
        step :             |
    """),
    # Exposed, but from pinned memory.
    _drawn("""
        host: c ol
        gpu :  HHHHkkkkkkkk
        step:              |
    """),
)

RULE = Rule(
    "pageable-copies",
    check,
    fixers=_FIXERS,
    fires=_FIRES,
    silent=_SILENT,
    nearness=15,
    symptom=Symptom.DATA,
)
