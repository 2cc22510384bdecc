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

Nothing overlaps with anything else, collectives cost nothing. Docs: `docs/ladder.md`.

Thresholds
    REACHED_FLOPS 0.82, REACHED_BYTES 0.92: of a data sheet's ceilings, the most that products of cuBLAS and elementwise
    kernels were measured to reach on an H200. Measured ceilings count in full.
    KERNEL_NS 1 µs: a kernel that does nothing takes 1 to 2 µs from its begin to its end on an H100 or H200.
    MODELLED 0.95: of the device time of products, whose operations must be known.
"""

from __future__ import annotations

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
    products_ns, is_limited = _products_ns(measures, ceilings, order.op[matrix & ~again & (order.op != MISSING)])
    passes_ns = _passes_ns(order, ceilings, products, again, measures)
    matmul_ns = float(products_ns[~is_limited].sum()) / steps
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
    )


def _products_ns(measures: DeviceWork, ceilings: Ceilings, ops: Int64) -> tuple[Float64, Bool]:
    """Per operator that multiplies matrices, what it needs, and whether the launch limit decides."""
    work, ops = measures.op_work, np.unique(ops)
    rate = ceilings.flops_per_s[ceilings.best_format] * (1.0 if ceilings.is_measured else REACHED_FLOPS)
    bandwidth = ceilings.bytes_per_s * (1.0 if ceilings.is_measured else REACHED_BYTES)
    flops = np.maximum(work.flops[ops] - np.maximum(work.recomputed[ops], 0), 0).astype(np.float64)
    moved = np.maximum(work.bytes[ops], 0) * np.minimum(_ITEM_BYTES / _FORMAT_BYTES[work.format[ops]], 1.0)
    inside, halved = _in_written_attention(measures)
    moved[np.isin(ops, inside)] = 0.0
    flops[np.isin(ops, halved)] /= 2
    least = np.maximum(flops / rate, moved / bandwidth) * NS_PER_S
    return np.maximum(least, KERNEL_NS), np.asarray(least <= KERNEL_NS, np.bool_)


def _in_written_attention(measures: DeviceWork) -> tuple[Int64, Int64]:
    """Operators of products within attention written out, and those of them whose mask is causal."""
    op = measures.program_order.op
    inside = [op[list(one.products)] for one in measures.written_attention]
    halved = [op[list(one.products)] for one in measures.written_attention if one.causal]
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *inside]), np.concatenate([nothing, *halved])


def _passes_ns(order: LaunchOrder, ceilings: Ceilings, apart: Bool, again: Bool, measures: DeviceWork) -> Float64:
    """What one pass over memory takes for each stretch between products."""
    bandwidth = ceilings.bytes_per_s * (1.0 if ceilings.is_measured else REACHED_BYTES)
    free = again | (order.kind == KernelClass.OPTIMIZER)
    free[measures.loss_work.places] = True
    elements = _largest_tensors(order)
    found = []
    for begin, end in order.runs(~apart):
        sizes = elements[begin:end][~free[begin:end]]
        sizes = sizes[~np.isnan(sizes)]
        if len(sizes):
            found.append(float(sizes[0] + sizes[-1]) * _ITEM_BYTES / bandwidth * NS_PER_S)
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
