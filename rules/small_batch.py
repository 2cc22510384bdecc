"""The batch is too small to fill the device: kernels use a part of its multiprocessors, and more work would fit in.

What it finds
    Kernels with too few blocks for the device's multiprocessors, in most of the device's time, while the host keeps up.

Why it costs
    A kernel of ten blocks takes as long on a device of 132 multiprocessors as one of 132 blocks does. A batch several
    times as large would take little longer, and each sample a fraction of the time.

What proves it
    The grids of the kernels: the share of the multiprocessors that they fill, weighed by their time, optimizer and
    collectives left out. Without grids, the counter of the multiprocessors' activity on a live run. The recoverable
    time is an upper bound, per unit of work: with a batch so many times as large that nearly all kernels fill the
    device, or as the memory holds, each kernel takes, for each unit, the part of its time in which it fills the device
    now; the optimizer, the gaps between kernels and the host come once for all of them. Where the host cannot keep up,
    that is `launch-bound` or another cause, and this rule says nothing; it says nothing either where one kernel alone
    leaves the device empty (`kernel-hotspot`).

What fixes it
    A bigger microbatch (`bigger-microbatch`), fewer accumulation steps; where the batch may not grow, a smaller device.

Thresholds
    FILLED 0.7: the average fill below which a device counts as underfilled. Training runs on record that are not meant
    to be small fill 0.88 to 1.00 of their devices, small ones 0.01 to 0.60.
    NEARLY 0.9: of the kernels' time, the part that is to be full with the larger batch.
    ONE 0.75: the part of the empty device that is one kernel's, where the others together fill it.
    diagnose.measure.roofline.occupancy.FULL_WARPS: how many warps fill a multiprocessor for a kernel that waits for
    memory.
    HOST 0.25: the share of the step from which on a device that waits for its host is the host's matter.
    BUSY 0.6: the share of the step, without collectives that nothing hides, in which the device must work, whatever it
    waits for in the rest. Kernels of 3 µs in
    a CUDA graph have gaps of about 1 µs.
    ROOM 1.5: a batch that memory lets grow by less is no finding; 0.9 of the memory is taken to be usable.
    KNOWN 0.5: the share of the kernels' time whose grids must be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import gained_ns, sped_up, untraced_ns
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Measures,
    Rule,
    Symptom,
    Trace,
    drawn,
    format_count,
    format_share,
)
from diagnose.trace.schema import Int64, WorkKind

FILLED = 0.7
NEARLY = 0.9
ONE = 0.75
HOST = 0.25
BUSY = 0.6
ROOM = 1.5
KNOWN = 0.5
_USABLE_MEMORY = 0.9  # of the device's memory: fragments and libraries need the rest; chosen, not measured
_LEFT_OUT = (KernelClass.COLLECTIVE, KernelClass.OPTIMIZER)
_HOST_CAUSES = ("input", "sync", "python", "dispatch", "launch", "gc", "allocator", "compile", "io")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time of kernels, less what they would take for each unit of a larger batch's work."""
    if not measures.has_device:
        yield CannotTell("small-batch", "a recording of the device's work")
        return
    kernels = (measures.trace.device.kind == WorkKind.KERNEL) & ~np.isin(measures.classes, _LEFT_OUT)
    rows = measures.rows_within_steps(kernels)
    if len(rows) == 0:
        return
    length = (measures.trace.device.end_ns - measures.trace.device.start_ns)[rows]
    fill = measures.fill[rows]
    known = ~np.isnan(fill)
    if length[known].sum() < KNOWN * length.sum() or length.sum() == 0:
        active = _by_activity(measures)
        if active is None:
            yield CannotTell("small-batch", "grids of the kernels, or the multiprocessors' activity (a live run)")
            return
        fill, known = np.full(len(rows), active), np.ones(len(rows), np.bool_)
    filled = _filled(measures, rows[known], length[known], fill[known])
    waiting = measures.share(measures.idle_of(*_HOST_CAUSES))
    # In a collective the device may be waiting for other ranks: neither work nor idle.
    apart = measures.share(measures.comm - measures.compute)
    if filled > FILLED or waiting > HOST or measures.share(measures.busy) - apart < BUSY * (1 - apart):
        return
    room = _memory_room(measures)
    growth = min(1 / _emptiest(length[known], fill[known]), room or np.inf)
    if growth < ROOM or _is_one_kernel(measures, rows[known], length[known], fill[known]):
        return
    yield from _claim(measures, rows, np.where(known, fill, 1.0), filled, growth, room)


def _claim(
    measures: Measures,
    rows: Int64,
    fill: np.typing.NDArray[np.float64],
    filled: float,
    growth: float,
    room: float | None,
) -> Iterator[Claim]:
    time = measures.time_of(rows)
    optimizer = measures.rows_within_steps(measures.classes == KernelClass.OPTIMIZER)
    changed = np.concatenate((rows, optimizer))
    left = np.concatenate((np.maximum(1 / growth, fill), np.full(len(optimizer), 1 / growth)))
    device = measures.trace.device
    length = (device.end_ns - device.start_ns)[changed]
    gap = _gap_before(measures, changed)
    saved = length * (1 - left) + gap * (1 - 1 / growth)
    # The host's work, too, is that of one batch, however large.
    cut = sped_up(measures, changed, np.clip(1 - saved / np.maximum(length, 1), 0.01, 1)) | Cut(host=measures.counted)
    side_by_side = measures.time_of(changed).total_ns / max(length.sum(), 1)
    gain = gained_ns(measures, cut, int(float(saved.sum()) * min(side_by_side, 1.0)))
    if gain == 0:
        return
    length = length[: len(rows)]
    least = 1 - gain / untraced_ns(measures)
    free = "" if room is None else f"; memory has room for {format_count(room, 2)} times the batch"
    yield Claim(
        summary=f"kernels fill {format_share(filled)} of the device: with a batch {format_count(growth, 2)} times as "
        f"large, the same work would take at least {format_share(least)} of the time{free}",
        recoverable_ns=gain,
        claims=time | measures.time_of(optimizer) | (measures.idle["dependency"] & measures.counted),
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("multiprocessors filled, by kernels' time", filled, "share", tuple(rows.tolist())),
            Evidence("median kernel", int(np.median(length)), "ns"),
            Evidence("kernels per step", len(rows) / measures.step_count, "count"),
            *([] if room is None else [Evidence("device memory over the peak", room, "×")]),
        ],
        fixers=() if measures.only_infers else None,
        confirm="the time per sample with twice the batch" + ("" if room else "; whether memory holds it is not known"),
    )


def _emptiest(length: Int64, fill: np.typing.NDArray[np.float64]) -> float:
    """The fill that all but the emptiest kernels have, which take the rest of the time."""
    order = np.argsort(fill)
    time = np.cumsum(length[order])
    return max(float(fill[order][np.searchsorted(time, (1 - NEARLY) * time[-1])]), 0.01)


def _gap_before(measures: Measures, rows: Int64) -> Int64:
    """Per row, how long the device idled before it, though it had been launched."""
    idle, start = measures.idle["dependency"], measures.trace.device.start_ns[rows]
    if not len(idle):
        return np.zeros(len(rows), np.int64)
    at = np.minimum(np.searchsorted(idle.ends, start), len(idle) - 1)
    return np.where(idle.ends[at] == start, idle.lengths_ns[at], 0)


def _filled(measures: Measures, rows: Int64, length: Int64, fill: np.typing.NDArray[np.float64]) -> float:
    """The average fill while any of the kernels runs: what runs side by side adds up."""
    side_by_side = length.sum() / max(measures.time_of(rows).total_ns, 1)
    return float(min((length * fill).sum() / max(length.sum(), 1) * max(side_by_side, 1.0), 1.0))


def _by_activity(measures: Measures) -> float | None:
    """The fill of all kernels: the multiprocessors' activity (percent of all time), while any work runs."""
    values = measures.readings(("gpu.sm_activity",))["gpu.sm_activity"]
    busy = measures.share(measures.busy)
    if not np.isfinite(values).any() or busy == 0:
        return None
    return min(float(np.nanmedian(values)) / 100 / busy, 1.0)


def _memory_room(measures: Measures) -> float | None:
    """Return how many times the memory in use the device could hold; None where either is unknown."""
    facts = measures.trace.facts
    if not facts.device_memory_bytes or not facts.peak_memory_bytes:
        return None
    return _USABLE_MEMORY * facts.device_memory_bytes / facts.peak_memory_bytes


def _is_one_kernel(measures: Measures, rows: Int64, length: Int64, fill: np.typing.NDArray[np.float64]) -> bool:
    """Whether the device is full but for one kernel, by name, and most of what is empty is that one's doing."""
    names = measures.trace.device.name[rows]
    most = np.bincount(names[names >= 0], weights=(length * (1 - fill))[names >= 0])
    others = names != int(most.argmax()) if len(most) else np.ones(len(rows), np.bool_)
    if not len(most) or most.max() < ONE * most.sum():
        return False
    return float((length * fill)[others].sum()) > FILLED * float(length[others].sum()) > 0


def _filling(trace: Trace, blocks: float) -> Trace:
    """The trace with kernels of so many blocks (of 8 warps) for each multiprocessor."""
    size = np.full(len(trace.device), blocks, np.float32)
    return replace(trace, device=replace(trace.device, blocks_per_sm=size, warps_per_sm=8 * size))


_NAMES = {
    "k": "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    "e": "void at::native::vectorized_elementwise_kernel<4>",
    "n": "void layer_norm_kernel",
}
_drawn = partial(drawn, repeat=4, unit_ns=10_000, kernels=_NAMES)
_GRAPH = _drawn("""
    host: GSSSSSSSSSSSSSSSSS
    gpu : kkkekkknkkkekkkn
    step:                 |
""")
_LAUNCHES = _drawn("""
    host: olololololol
    gpu :   k e k n k e
    step:              |
""")
_COLLECTIVE = drawn(
    """
    host: GSSSSSSSSSSSSSSSSS
    gpu : k  e  nccccccccccc
    step:                   |
    """,
    repeat=4,
    unit_ns=10_000,
    kernels={**_NAMES, "c": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
)
_FIRES = (
    _filling(_GRAPH, 0.2),
    # Counters of a live run where no grid is recorded.
    _drawn(
        """
        host: GSSSSSSSSSSSSSSSSS
        gpu : kkkekkknkkkekkkn
        step:                 |
        """,
        counted={"gpu.sm_activity": [22.0, 24.0, 23.0]},
    ),
    replace(_filling(_GRAPH, 0.2), facts=Facts(device_memory_bytes=80 << 30, peak_memory_bytes=10 << 30)),
)
_SILENT = (
    # A full device, launched once a step.
    _filling(_GRAPH, 4.0),
    # One block a multiprocessor is all that a persistent kernel has.
    _filling(_GRAPH, 2.0),
    # The host cannot launch any faster.
    _filling(_LAUNCHES, 0.2),
    # No memory is left for more.
    replace(_filling(_GRAPH, 0.2), facts=Facts(device_memory_bytes=80 << 30, peak_memory_bytes=70 << 30)),
    # Nobody recorded the grids.
    _GRAPH,
    # The device is busy because it waits for other ranks; of its own work it has little.
    _filling(_COLLECTIVE, 0.2),
)
RULE = Rule(
    "small-batch",
    check,
    fixers=("bigger-microbatch",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=70,
    symptom=Symptom.KERNELS,
)
