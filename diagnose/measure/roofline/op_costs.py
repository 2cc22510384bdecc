"""The operators' floating-point operations and bytes, from their shapes and formats.

    work = work_of(trace, np.unique(measures.op_of_work))
    work.flops, work.bytes       # per row of trace.ops; -1 where shapes, a format or a model is missing

A model is a function of an operator's arguments, one table of them a family: `matmul_costs` (products, convolutions),
`attention_costs`, `memory_costs` (elementwise, normalisation, softmax, reduction). An operator is modelled where it
launched device work itself, so that nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.measure.roofline import attention_costs, matmul_costs, memory_costs
from diagnose.measure.roofline.matmul_costs import UNKNOWN, Model, Work
from diagnose.measure.views.operands import NotRecorded, operands
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Int64

__all__ = ["FORMATS", "UNKNOWN", "OpWork", "Work", "model_of", "work_of", "work_of_op"]

FORMATS = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Number formats by their place in `OpWork.format`; the first is none or unknown."""
_MODELS: Mapping[str, Model] = {**matmul_costs.MODELS, **attention_costs.MODELS, **memory_costs.MODELS}
_NOTHING = Work()


@dataclass(frozen=True, eq=False)
class OpWork:
    """Per row of `trace.ops`, what it had to do; -1 is unknown, and so are operators that were not asked for."""

    flops: Int64
    bytes: Int64
    recomputed: Int64
    """How many of the operations repeat what the forward pass had computed."""
    format: npt.NDArray[np.uint8]
    """The place in `formats` of what is multiplied; 0 where nothing is, or nobody knows."""
    formats: tuple[str, ...] = FORMATS


def model_of(name: str) -> Model | None:
    """The model of an operator by its name; None where there is none."""
    return _MODELS.get(name.removeprefix("aten::")) if name.startswith("aten::") else memory_costs.inductor_model(name)


@lru_cache(maxsize=65536)
def work_of_op(name: str, shapes: str, dtypes: str, values: str | None = None) -> Work:
    """Return the work of one operator, from its name and the texts of its arguments."""
    model = model_of(name)
    if model is None:
        return _NOTHING
    try:
        return model(operands(shapes, dtypes, values))
    except NotRecorded:
        return _NOTHING


def work_of(trace: Trace, rows: Int64) -> OpWork:
    """Return the work of some operators (rows of `trace.ops`; -1 is skipped). Equal ones are modelled once."""
    count = len(trace.ops)
    flops, moved, recomputed = np.full((3, count), UNKNOWN, np.int64)
    result = OpWork(flops, moved, recomputed, np.zeros(count, np.uint8))
    ops = trace.ops
    rows = rows[(rows >= 0) & (ops.shapes[rows] != MISSING) & (ops.dtypes[rows] != MISSING)] if count else rows[:0]
    if len(rows) == 0:
        return result
    keys = np.stack([column[rows].astype(np.int64) for column in (ops.name, ops.shapes, ops.dtypes, ops.values)])
    different, which = _unique(keys)
    works = []
    for name, shapes, dtypes, values in different.T.tolist():
        texts = trace.texts[shapes], trace.texts[dtypes], trace.texts[values] if values >= 0 else None
        works.append(work_of_op(trace.names[name], *texts))
    for column, numbers in (
        (result.flops, [work.flops for work in works]),
        (result.bytes, [work.bytes for work in works]),
        (result.recomputed, [work.recomputed for work in works]),
    ):
        column[rows] = np.array([number if number < 1 << 62 else UNKNOWN for number in numbers], np.int64)[which]
    result.format[rows] = np.array([FORMATS.index(work.format or "") for work in works], np.uint8)[which]
    return result


def _unique(keys: Int64) -> tuple[Int64, Int64]:
    """The different columns, and per column which it is."""
    order = np.lexsort(keys[::-1])
    ordered = keys[:, order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new) - 1
    return ordered[:, new], which
