"""The shortest step that this model could have on this device at this batch, however it is written.

    ceiling = practical_ceiling(measures)
    ceiling.step_ns              # no program that computes the same is expected below it

A roofline of what the model itself needs, in the device's fastest 16-bit format:

- products, convolutions and attention take the longer of their operations and their bytes, each tensor moved once.
  What the backward pass computes a second time is left out. Attention that is written out counts as one fused kernel:
  its scores never reach memory, and half of them are never computed where the mask is causal.
- Between two of these, elementwise work, normalisation and the like is one pass: it reads what the first kernel of the
  stretch reads and writes what the last one writes, both in 16 bits. The loss costs nothing: it can be taken together
  with the output layer. The optimizer and what the host does cost nothing.
- Every product, and every such pass, takes at least KERNEL_NS: the launch limit of a captured graph.

`same_training_ns` is the same for a program that trains as this one does: in the formats that it uses, with its
optimizer and its loss as they are.

Nothing overlaps with anything else, collectives cost nothing. Docs: `docs/ladder.md`.

Thresholds
    REACHED_FLOPS 0.82, REACHED_BYTES 0.92: of a data sheet's ceilings, the most that products of cuBLAS and elementwise
    kernels were measured to reach on an H200. Measured ceilings count in full.
    KERNEL_NS 1 µs: a kernel that does nothing takes 1 to 2 µs from its begin to its end on an H100 or H200.
    MODELLED 0.95: of the device time of products, whose operations must be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from diagnose.measure.kernels.device_work import DeviceWork
from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.roofline.ceilings import Ceilings
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.roofline.roofline import MATRIX_CLASSES
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.operands import NotRecorded, operands
from diagnose.model import PracticalCeiling
from diagnose.trace.schema import MISSING, Bool, Float64, Int64
from diagnose.units import NS_PER_S

REACHED_FLOPS, REACHED_BYTES = 0.82, 0.92
KERNEL_NS = 1_000
MODELLED = 0.95
_ITEM_BYTES = 2  # of a 16-bit format
_FORMAT_BYTES = np.array([{"fp64": 8, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1}.get(form, 2) for form in FORMATS])


def practical_ceiling(measures: DeviceWork) -> PracticalCeiling | None:
    """The ceiling of a mean step; None where the device is unknown or too few products have shapes."""
    work, ceilings = measures.step_work, measures.ceilings
    if work is None or ceilings is None or work.modelled < MODELLED:
        return None
    order, steps = measures.program_order, measures.step_count
    matrix = np.isin(order.kind, MATRIX_CLASSES)
    products = matrix | measures.attention_places
    again = measures.recomputations.launched(measures.launches)[order.rows]
    ops = np.unique(order.op[matrix & ~again & (order.op != MISSING)])
    rates = _Rates(ceilings)
    needed_ns, is_limited = _products_ns(measures, rates, ops)
    passes_ns = _passes_ns(order, rates, products, again, measures)
    matmul_ns = float(needed_ns[~is_limited].sum()) / steps
    memory_ns = float(passes_ns[passes_ns > KERNEL_NS].sum()) / steps
    launch_ns = KERNEL_NS * float(is_limited.sum() + (passes_ns <= KERNEL_NS).sum()) / steps
    step_ns = max(round(matmul_ns) + round(memory_ns) + round(launch_ns), 1)
    return PracticalCeiling(
        step_ns=step_ns,
        matmul_ns=round(matmul_ns),
        memory_ns=round(memory_ns),
        launch_ns=round(launch_ns),
        utilisation=work.flops_per_step / step_ns * NS_PER_S / work.ceiling_flops_per_s,
        matmul_now_ns=int(order.length_ns[products].sum()) // steps,
        other_now_ns=int(order.length_ns[~products].sum()) // steps,
        same_training_ns=_same_training_ns(measures, rates, order, ops, products, again),
    )


@dataclass(frozen=True)
class _Rates:
    """What kernels reach of a device's ceilings."""

    ceilings: Ceilings

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth of the device's memory, in bytes per second."""
        return self.ceilings.bytes_per_s * (1.0 if self.ceilings.is_measured else REACHED_BYTES)

    def flops_per_s(self, form: str) -> float:
        """Return the peak arithmetic of a number format, in FLOP/s; that of the fastest where the format has no ceiling
        of its own.
        """
        best = self.ceilings.flops_per_s[self.ceilings.best_format]
        return self.ceilings.flops_per_s.get(form, best) * (1.0 if self.ceilings.is_measured else REACHED_FLOPS)


def _same_training_ns(
    measures: DeviceWork, rates: _Rates, order: LaunchOrder, ops: Int64, products: Bool, again: Bool
) -> int:
    """The ceiling of a program that trains as this one does: in its own formats, its optimizer and loss as they are."""
    formats = _formats_in_use(measures, order, ops)
    own = np.array([rates.flops_per_s(form) for form in FORMATS])[formats]
    needed_ns, _ = _products_ns(measures, rates, ops, own, _FORMAT_BYTES[formats])
    weights = np.maximum(needed_ns, 1.0)
    item_bytes = float((_FORMAT_BYTES[formats] * weights).sum() / weights.sum()) if len(ops) else _ITEM_BYTES
    passes_ns = np.maximum(_passes_ns(order, rates, products, again, measures, item_bytes), KERNEL_NS)
    stays = order.kind == KernelClass.OPTIMIZER
    stays[measures.loss_work.places] = True
    as_they_are = float(order.length_ns[stays & ~products].sum())
    return round((float(needed_ns.sum()) + float(passes_ns.sum()) + as_they_are) / measures.step_count)


def _formats_in_use(measures: DeviceWork, order: LaunchOrder, ops: Int64) -> Int64:
    """Per operator, the number format in which its kernels multiply, as their names tell: no tensor is of TF32."""
    formats = measures.op_work.format.astype(np.int64)
    by_kernel = measures.kernel_bounds.format[order.rows]
    told = np.flatnonzero((by_kernel != 0) & (order.op != MISSING))
    formats[order.op[told]] = by_kernel[told]
    return formats[ops]


def _products_ns(
    measures: DeviceWork, rates: _Rates, ops: Int64, flops_per_s: Float64 | None = None, item_bytes: Int64 | None = None
) -> tuple[Float64, Bool]:
    """Per operator that multiplies matrices, what it needs, and whether the launch limit decides.

    In the fastest 16-bit format, unless each has its own rate and size of a number.
    """
    work = measures.op_work
    rate = rates.flops_per_s(rates.ceilings.best_format) if flops_per_s is None else flops_per_s
    size = _ITEM_BYTES if item_bytes is None else item_bytes
    flops = np.maximum(work.flops[ops] - np.maximum(work.recomputed[ops], 0), 0).astype(np.float64)
    moved = np.maximum(work.bytes[ops], 0) * np.minimum(size / _FORMAT_BYTES[work.format[ops]], 1.0)
    inside, halved = _in_written_attention(measures)
    moved[np.isin(ops, inside)] = 0.0
    flops[np.isin(ops, halved)] /= 2
    least = np.maximum(flops / rate, moved / rates.bytes_per_s) * NS_PER_S
    return np.maximum(least, KERNEL_NS), np.asarray(least <= KERNEL_NS, np.bool_)


def _in_written_attention(measures: DeviceWork) -> tuple[Int64, Int64]:
    """Operators of products within attention written out, and those of them whose mask is causal."""
    op = measures.program_order.op
    inside = [op[list(one.products)] for one in measures.written_attention]
    halved = [op[list(one.products)] for one in measures.written_attention if one.causal]
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *inside]), np.concatenate([nothing, *halved])


def _passes_ns(
    order: LaunchOrder, rates: _Rates, apart: Bool, again: Bool, measures: DeviceWork, item_bytes: float = _ITEM_BYTES
) -> Float64:
    """Return what one pass over memory takes for each stretch between products, with numbers of that size."""
    free = again | (order.kind == KernelClass.OPTIMIZER)
    free[measures.loss_work.places] = True
    elements = _largest_tensors(order)
    found = []
    for begin, end in order.runs(~apart):
        sizes = elements[begin:end][~free[begin:end]]
        sizes = sizes[~np.isnan(sizes)]
        if len(sizes):
            found.append(float(sizes[0] + sizes[-1]) * item_bytes / rates.bytes_per_s * NS_PER_S)
    return np.asarray(found, np.float64)


def _largest_tensors(order: LaunchOrder) -> Float64:
    """Per place, the elements of the largest tensor among its operator's arguments; NaN where none is recorded."""
    ops, result = order.trace.ops, np.full(len(order), np.nan)
    for place in np.flatnonzero(order.op != MISSING).tolist():
        shapes, dtypes = int(ops.shapes[order.op[place]]), int(ops.dtypes[order.op[place]])
        if shapes >= 0 and dtypes >= 0:
            result[place] = _largest(order.trace.texts[shapes], order.trace.texts[dtypes])
    return result


@lru_cache(maxsize=65536)
def _largest(shapes: str, dtypes: str) -> float:
    try:
        given = operands(shapes, dtypes)
        return float(max((prod(given.shape(place)) for place in given.tensors), default=np.nan))
    except NotRecorded:
        return np.nan
