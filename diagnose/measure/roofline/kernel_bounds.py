"""The bound of each piece of device work, and its time at that bound.

    bounds = measures.kernel_bounds
    bounds.kind                  # per row of trace.device: Bound.MATMUL, MEMORY, LATENCY, COMMUNICATION or UNKNOWN
    bounds.least_ns              # at the nearer ceiling; NaN where operations and bytes, or the ceilings, are unknown

By the roofline: what needs longer for its operations than for its bytes is bound by matrix products, the rest by
memory. What has too little work for the device (it is short, its grid is small, or it is one moment of a recurrent
layer) is bound by latency, whatever it computes. Where operations and bytes are unknown, the class of the kernel
decides: products are bound by products, everything that treats elements one by one or adds them up by memory. Counters
of the hardware, where they were recorded, come before all of that.

Thresholds
    SHORT_NS 2 µs: work that would take less than this at the ceiling is over before the device is full. An empty
    kernel takes 1 to 2 µs from its begin to its end on an H100 or H200 (Memset of 4 bytes: 0.7 to 1.4 µs).
    SMALL_NS 5 µs: the same for kernels whose work is unknown, by their own length.
    EMPTY 0.33: of the device filled by the grid, and less than HALF of the ceiling reached: the rest of the device
    waits. Nsight Compute saw the memory of an H200 busy for 12 % of optimizer kernels that filled 0.28 of it, and for
    35 % of a normalisation that filled 0.36.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.measure.roofline.ceilings import Ceilings
from diagnose.measure.roofline.kernel_counters import KernelCounters
from diagnose.measure.roofline.kernel_work import KernelWork, is_recurrent
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Float64, Int64, UInt8, WorkKind
from diagnose.units import NS_PER_S

SHORT_NS, SMALL_NS = 2_000, 5_000
EMPTY, HALF = 0.33, 0.5
MOMENTS = 8
"""The number of launches of one kernel within one recurrent operator from which on there is one for each moment of
its series."""
TF32_PRODUCTS = 3
"""Products in TF32 with which PyTorch's memory-efficient attention multiplies fp32 (`OpMultiplyAddFastF32`)."""


class Bound(enum.IntEnum):
    """The resource that bounds a piece of device work."""

    UNKNOWN = 0
    MATMUL = 1
    """The units that multiply matrices, in some number format."""
    MEMORY = 2
    """The device's memory."""
    LATENCY = 3
    """Bound by its own begin and end: it has too little work for the device."""
    COMMUNICATION = 4
    """Other devices."""


@dataclass(frozen=True, eq=False)
class KernelBounds:
    """Parallel arrays, one entry a row of `trace.device`.

    Rows outside the counted steps are unknown, and so are copies from or to the host.
    """

    kind: npt.NDArray[np.uint8]
    """A `Bound`."""
    format: npt.NDArray[np.uint8]
    """The place in `op_costs.FORMATS` of what is multiplied; 0 where nothing is, or nobody knows."""
    flops: Int64
    """Floating-point operations; -1 is unknown."""
    bytes: Int64
    """Read from memory and written to it; -1 is unknown."""
    compute_ns: Float64
    """What the operations take at the ceiling of their format; NaN is unknown."""
    memory_ns: Float64
    """What the bytes take at the ceiling of the memory; NaN is unknown."""

    @property
    def least_ns(self) -> Float64:
        """The least time that the ceilings allow, in ns: the larger of the two, one of which may be unknown."""
        return np.asarray(np.fmax(self.compute_ns, self.memory_ns), np.float64)

    def format_of(self, row: int) -> str:
        """The number format of a row of device work; empty where nothing is multiplied, or nobody knows."""
        return FORMATS[int(self.format[row])]


def kernel_bounds(
    trace: Trace,
    rows: Int64,
    classes: UInt8,
    op_of_work: Int64,
    work: KernelWork,
    fill: Float64,
    ceilings: Ceilings | None,
    counters: KernelCounters,
) -> KernelBounds:
    """The bounds of some rows of device work. `classes` and `fill` have an entry for every row of `trace.device`."""
    flops, moved = work.flops.copy(), work.bytes.copy()
    counted = rows[counters.bytes[rows] >= 0]
    moved[counted] = counters.bytes[counted]
    attention = classes == KernelClass.ATTENTION
    compute_ns = _compute_ns(flops, work.format, attention, ceilings.flops_per_s if ceilings else {})
    rate = ceilings.bytes_per_s if ceilings else np.inf
    memory_ns = np.where((moved >= 0) & np.isfinite(rate), moved / rate * NS_PER_S, np.nan)
    kind = np.zeros(len(trace.device), np.uint8)
    kind[rows] = np.where(work.product[rows], np.uint8(Bound.MATMUL), _BY_CLASS[classes[rows]])
    by_memory = work.product & (memory_ns > compute_ns)  # False where either is unknown
    kind[rows[by_memory[rows]]] = Bound.MEMORY
    result = KernelBounds(kind, work.format, flops, moved, compute_ns, memory_ns)
    waiting = _is_small(trace, rows, result.least_ns, fill) | _is_moment(trace, rows, op_of_work)
    kind[rows[waiting]] = Bound.LATENCY
    settled = rows[counters.kind[rows] != Bound.UNKNOWN]
    kind[settled] = counters.kind[settled]
    kind[rows[classes[rows] == KernelClass.COLLECTIVE]] = Bound.COMMUNICATION
    return result


def _compute_ns(
    flops: Int64, formats: npt.NDArray[np.uint8], attention: Bool, flops_per_s: Mapping[str, float]
) -> Float64:
    """Return what operations take at the ceilings of their formats. What multiplies nothing takes no time there."""
    rates = np.array([flops_per_s.get(form, np.nan) for form in FORMATS])[formats]
    fp32, tf32 = FORMATS.index("fp32"), flops_per_s.get("tf32")
    if tf32 is not None:
        rates[attention & (formats == fp32)] = tf32 / TF32_PRODUCTS
    return np.asarray(np.where(flops >= 0, flops / rates * NS_PER_S, np.nan), np.float64)


_CLASSES = {
    KernelClass.OTHER: Bound.UNKNOWN,
    KernelClass.COLLECTIVE: Bound.COMMUNICATION,
}
_BY_CLASS = np.array([_CLASSES.get(kind, Bound.MEMORY) for kind in KernelClass], np.uint8)

"""What prepares a product or adds up its parts is as memory-bound as what treats elements one by one."""


def _is_small(trace: Trace, rows: Int64, least_ns: Float64, fill: Float64) -> Bool:
    """Return which rows are too small for the device: by their work, else by their length; or by their grid."""
    length = (trace.device.end_ns - trace.device.start_ns)[rows]
    least = least_ns[rows]
    is_known = ~np.isnan(least)
    short = np.where(is_known, least < SHORT_NS, length < SMALL_NS)
    far = np.where(is_known, least < HALF * length, True)
    empty = (np.nan_to_num(fill[rows], nan=1.0) < EMPTY) & far
    return np.asarray(short | (empty & (trace.device.kind[rows] == WorkKind.KERNEL)), np.bool_)


def _is_moment(trace: Trace, rows: Int64, op_of_work: Int64) -> Bool:
    """Return which rows are one moment of a recurrent layer: each waits for the one before, and multiplies little."""
    result = np.zeros(len(rows), np.bool_)
    ops = op_of_work[rows]
    recurrent = np.flatnonzero(ops != MISSING)
    names = np.array([is_recurrent(name) for name in trace.names] or [False], np.bool_)
    recurrent = recurrent[names[trace.ops.name[ops[recurrent]]]] if len(trace.ops) else recurrent[:0]
    if len(recurrent):
        keys = np.stack((ops[recurrent], trace.device.name[rows[recurrent]].astype(np.int64)))
        _, which, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
        result[recurrent] = count[which.ravel()] >= MOMENTS
    return result
