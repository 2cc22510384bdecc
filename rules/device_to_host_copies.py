"""Results that the program pulls to the host in every step.

What it finds
    Copies from the device that the host waits for (`.cpu()`, `.numpy()`, `.tolist()`) and that are long enough to cost
    by themselves, by size and line.

Why it costs
    The host stands still until the device has done all work before the copy and the copy itself; the device stands
    still while it copies, as nothing was queued behind, and again until new work has been issued.

What proves it
    Copies from the device to ordinary host memory, which the host always waits for; their time outside compute and
    collectives, and the idle time that follows each until the next work begins. An upper bound: what the program really
    needs on the host must come over some time, though not in every step and not while the device waits.

    A copy of a few numbers costs its wait only: that is `host-sync`. Copies to pinned memory, which nobody need wait
    for, are `exposed-copies`.

What fixes it
    Computing on the device what is made of the result there (metrics, losses, arguments of the maximum), and copying
    only that, later or not in every step (`keep-on-device`).

Thresholds
    diagnose.measure.steps.idle.LATENCY_NS (20 µs): a shorter copy is latency, whatever its size.
    SMALLEST_BYTES (64 KiB): so is a smaller copy, however long it took: pageable memory takes 3 GB/s at least, which
    is 20 µs for this much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.idle import LATENCY_NS
from diagnose.model import SyncSite
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
    format_times,
)
from diagnose.trace.schema import CopyDirection, Memory, WorkKind

SMALLEST_BYTES = 64 << 10

_Rows = np.typing.NDArray[np.int64]


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Long copies to the host that it waits for, and the idle time after them."""
    if not measures.has_device:
        yield CannotTell("device-to-host-copies", "a recording of the device's work")
        return
    rows = _pulled(measures)
    if len(rows) and not (measures.rows & (measures.trace.device.kind == WorkKind.KERNEL)).any():
        yield CannotTell("device-to-host-copies", "the kernels, besides the copies")
        return
    if len(rows) == 0:
        return
    exposed = measures.time_of(rows) - measures.compute - measures.comm
    claims = exposed | (_after(measures, rows) & measures.idle_of("sync", "launch", "dispatch", "dependency"))
    gain = recoverable_ns(measures, claims)
    if gain == 0:
        return
    device, steps = measures.trace.device, measures.step_count
    alone = int(measures.per_step(exposed).sum())
    size = int(np.maximum(device.size_bytes[rows], 0).sum())
    moved = f", {format_bytes(size / steps)}" if size else ""
    often = format_times(len(rows) / steps)
    yield Claim(
        summary=f"the program pulls results to the host {often} per step{moved}: the device "
        f"copies for {format_ns(alone / steps)} and does nothing else meanwhile",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("exposed copy time", alone // steps, "ns", tuple(rows.tolist())),
            Evidence("idle after the copies", (claims - exposed).total_ns // steps, "ns"),
            Evidence("copied per step", size // steps, "bytes"),
            *_sizes(measures, rows),
        ],
        where=_where(measures, rows),
        confirm="a trial that computes on the device what is made of the results",
    )


def _pulled(measures: Measures) -> _Rows:
    """Copies to host memory that the host waits for, without those that are mere latency."""
    device = measures.trace.device
    to_host = (device.kind == WorkKind.COPY) & (device.direction == CopyDirection.DEVICE_TO_HOST)
    long = device.end_ns - device.start_ns >= LATENCY_NS
    large = (device.size_bytes < 0) | (device.size_bytes >= SMALLEST_BYTES)
    return measures.rows_within_steps(to_host & (device.host_memory != Memory.PINNED) & long & large)


def _after(measures: Measures, rows: _Rows) -> Intervals:
    """Return the stretches from the end of each copy with which the device runs dry until it works again."""
    ends = measures.trace.device.end_ns[rows]
    ends = ends[np.isin(ends, measures.busy.ends)]
    following = np.searchsorted(measures.busy.starts, ends, side="left")
    inside = following < len(measures.busy)
    return Intervals.of(ends[inside], measures.busy.starts[following[inside]])


def _sizes(measures: Measures, rows: _Rows) -> list[Evidence]:
    """The sizes that move most in total: how often per step each is copied."""
    sizes = Counter(measures.trace.device.size_bytes[rows].tolist())
    weighty = sorted(((size * count, size, count) for size, count in sizes.items() if size > 0), reverse=True)[:2]
    return [
        Evidence(f"copies of {format_bytes(size)} per step", count / measures.step_count, "count")
        for _, size, count in weighty
    ]


def _where(measures: Measures, rows: _Rows) -> list[Place]:
    """Lines that were followed, else those in the copying calls; where none was sampled there, the lines known to
    wait, the most frequent first."""
    linked = rows[measures.launches.linked[rows]]
    calls = Intervals.of_rows(measures.launches, linked)
    followed = places_of_ops(measures, measures.op_of_work[rows]) if measures.followed else ()
    places = followed or measures.places(calls & measures.waits) or measures.places(calls)
    if places:
        return list(places)
    waiting = sorted(measures.trace.sync_sites or (), key=lambda site: (-site.per_step, site.file, site.line))
    return [Place.at(site) for site in waiting]


_FIRES = (
    # Logits are pulled over for a metric; then the device waits for new work.
    drawn(
        """
        host: ol cccccccccccc  ol
        gpu :   kkkkkkkkddddd    kkk
        line:    mmmmmmmmmmmm
        step:                       |
        """,
        repeat=4,
        unit_ns=100_000,
        stacks={"m": [("train.py", 60, "accuracy")]},
        sync_sites=(SyncSite("train.py", 60, "accuracy", 1.0),),
    ),
)

_SILENT = (
    # A single number: its copy is latency, the wait is host-sync's.
    drawn(
        """
        host: ol ccccccccc ol
        gpu :   kkkkkkkkd    kkk
        step:                   |
        """,
        repeat=4,
        unit_ns=10_000,
    ),
    # Results leave through pinned memory, on a stream of their own, under compute.
    drawn(
        """
        host  : olc
        gpu   :   kkkkkkkkkkkk
        gpu 7 :     DDDD
        step  :               |
        """,
        repeat=4,
    ),
    # Long, but another stream computes meanwhile.
    drawn(
        """
        host  : ololcccccc
        gpu   :   kkKKKKKKKKKK
        gpu 7 :     ddddd
        step  :               |
        """,
        kernels={"K": "other_kernel"},
        repeat=4,
    ),
)

RULE = Rule(
    "device-to-host-copies",
    check,
    fixers=("keep-on-device", "defer-item"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=18,
    symptom=Symptom.DATA,
)
