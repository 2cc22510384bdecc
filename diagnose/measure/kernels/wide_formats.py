"""The device work that is done in 32 bits and could be done in 16: matmuls, and the bytes around them.

    wide = measures.wide_formats
    wide.products, wide.memory   # rows of trace.device
    wide.left                    # per row of trace.device, the part of its time that 16 bits would take; 1.0 elsewhere

Products keep how near they come to their ceiling, so that they take as much less time as the ceiling of the narrower
format is higher; those that wait for memory, and elementwise work around them, take half, for half of the bytes.
Autocast leaves some operators in 32 bits: normalisation over layers and groups, softmax, losses, exponentials and sums
of many numbers (torch.amp, "CUDA Ops that can autocast to float32"). These, optimizers, and what is bound by latency
stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from diagnose.measure.kernels.device_work import DeviceWork
from diagnose.measure.roofline.kernel_bounds import TF32_PRODUCTS, Bound
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.views.kernel_classes import KernelClass, matmul_format
from diagnose.measure.views.names import named
from diagnose.measure.views.operands import NotRecorded, operands
from diagnose.trace.schema import MISSING, Bool, Float64, Int64

_HALF = 0.5  # 16 bits move half the bytes of 32
_KEPT_WIDE = re.compile(
    r"layer_?norm|group_?norm|rms_?norm|soft_?max|_loss|cross_entropy|LossBackward|cumsum|cumprod|logsumexp"
    r"|aten::(exp|expm1|log|log10|log1p|log2|pow|prod|norm|linalg_vector_norm|rsqrt|reciprocal|sinh|cosh|tan|acos|asin"
    r"|erfinv|cdist|dist|renorm)_?$",
    re.IGNORECASE,
)
_FLOAT_KERNEL = re.compile(r"OpaqueType<4u?>|[<( ]float[,>*&) ]")
_WIDE = tuple(FORMATS.index(form) for form in ("fp32", "tf32"))
_NARROW = tuple(FORMATS.index(form) for form in ("bf16", "fp16", "fp8", "int8"))


@dataclass(frozen=True, eq=False)
class WideFormats:
    """Rows of `trace.device` within the counted steps."""

    format: str
    """The 16-bit format that the device multiplies, `bf16` before `fp16`."""
    products: Int64
    """Products in fp32 or TF32 that would gain."""
    memory: Int64
    """Other work that moves tensors of 32 bits and would move half."""
    left: Float64
    wide_ns: int
    """Device time of all products in fp32 and TF32."""
    narrow_ns: int
    """The time of those in 16 bits or fewer."""


def wide_formats(measures: DeviceWork) -> WideFormats | None:
    """Return the work that 16 bits would shorten; None where the ceilings are unknown, or no such format is used."""
    ceilings, bounds, trace = measures.ceilings, measures.kernel_bounds, measures.trace
    form = next((form for form in ("bf16", "fp16") if ceilings and form in ceilings.flops_per_s), None)
    if ceilings is None or form is None:
        return None
    rates = ceilings.flops_per_s
    rows = measures.rows_within_steps(bounds.kind != Bound.UNKNOWN)
    length = trace.device.end_ns - trace.device.start_ns
    left = np.ones(len(trace.device), np.float64)
    wide = rows[np.isin(bounds.format[rows], _WIDE)]
    narrow = rows[np.isin(bounds.format[rows], _NARROW)]
    products = wide[~_plain_products(measures, wide, rates)]
    by_matmul = products[bounds.kind[products] == Bound.MATMUL]
    left[by_matmul] = np.minimum(_rates(measures, by_matmul) / rates[form], 1.0)
    by_memory = products[bounds.kind[products] == Bound.MEMORY]
    left[by_memory] = _HALF
    others = rows[(bounds.format[rows] == 0) & (bounds.kind[rows] == Bound.MEMORY)]
    memory = others[_halves(measures, others)]
    left[memory] = _HALF
    gaining = products[left[products] < 1]
    return WideFormats(form, gaining, memory, left, int(length[wide].sum()), int(length[narrow].sum()))


def _rates(measures: DeviceWork, rows: Int64) -> Float64:
    """The ceiling of each product as it is multiplied now, or once its plain fp32 has become TF32."""
    assert measures.ceilings is not None
    rates = measures.ceilings.flops_per_s
    fp32, tf32 = rates.get("fp32", np.nan), rates.get("tf32", np.nan)
    plain = measures.kernel_bounds.format[rows] == FORMATS.index("fp32")
    attention = measures.classes[rows] == KernelClass.ATTENTION
    with_tf32 = np.fmax(np.where(attention, tf32 / TF32_PRODUCTS, tf32), fp32)
    return np.nan_to_num(np.where(plain, with_tf32, tf32), nan=np.inf)


def _plain_products(measures: DeviceWork, rows: Int64, flops: Mapping[str, float]) -> Bool:
    """Products that `fp32-matmul` takes to 16 bits: where TF32 is allowed, or no faster than fp32 on this device."""
    trace = measures.trace
    allowed = trace.facts.matmul_precision in ("high", "medium")
    has_tf32 = flops.get("tf32", 0.0) > flops.get("fp32", np.inf)
    if (has_tf32 and not allowed) or "bf16" not in flops:
        return np.zeros(len(rows), np.bool_)
    plain = np.array([*(matmul_format(name).tensor_cores is False for name in trace.names), False], np.bool_)
    return np.asarray(plain[trace.device.name[rows]], np.bool_)


def _halves(measures: DeviceWork, rows: Int64) -> Bool:
    """Return which memory-bound rows move tensors of fp32 that autocast, or a model in 16 bits, would halve."""
    trace, order = measures.trace, measures.program_order
    if not len(trace.ops):
        return np.zeros(len(rows), np.bool_)
    ops = measures.op_of_work[rows]
    kept = np.append(named(trace.names, trace.ops.name, _KEPT_WIDE), False)
    node = np.full(len(trace.device), MISSING, np.int64)
    node[order.rows] = order.node
    excluded = np.zeros(len(trace.device), np.bool_)
    excluded[order.rows[measures.loss_work.places]] = True
    excluded |= np.isin(measures.classes, (KernelClass.OPTIMIZER, KernelClass.SET, KernelClass.COPY))
    is_float = _moves_floats(measures, rows)
    return np.asarray(is_float & ~kept[ops] & ~kept[node[rows]] & ~excluded[rows] & (ops != MISSING), np.bool_)


def _moves_floats(measures: DeviceWork, rows: Int64) -> Bool:
    """Whether the largest argument of a row's operator is of fp32; by the kernel's name where that is not recorded."""
    trace = measures.trace
    ops = measures.op_of_work[rows]
    by_name = np.array([*(_FLOAT_KERNEL.search(name) is not None for name in trace.names), False], np.bool_)
    result = by_name[trace.device.name[rows]]
    known = np.flatnonzero(ops != MISSING)
    texts = np.stack((trace.ops.shapes[ops[known]], trace.ops.dtypes[ops[known]])).astype(np.int64)
    pairs, which = np.unique(texts, axis=1, return_inverse=True)
    answers = [
        _largest_is_float(trace.texts[shapes], trace.texts[dtypes]) if min(shapes, dtypes) >= 0 else None
        for shapes, dtypes in pairs.T.tolist()
    ]
    recorded = np.array([answer is not None for answer in answers], np.bool_)[which.ravel()]
    floats = np.array([answer is True for answer in answers], np.bool_)[which.ravel()]
    result[known[recorded]] = floats[recorded]
    return np.asarray(result, np.bool_)


@lru_cache(maxsize=65536)
def _largest_is_float(shapes: str, dtypes: str) -> bool | None:
    try:
        given = operands(shapes, dtypes)
        places = [place for place in given.tensors if given.shape(place)]
    except NotRecorded:
        return None
    if not places:
        return None
    return given.format(max(places, key=lambda place: prod(given.shape(place)))) == "fp32"
