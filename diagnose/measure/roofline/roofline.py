"""How near the device's ceilings each operator came, and the whole step.

    roofline = measures.roofline
    roofline.least_ns            # per operator, the time that the nearer ceiling allows
    measures.step_work           # operations of a step, per second, and the share of the ceiling

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. An operator needs at least its operations over the device's
rate for their number format, and at least its bytes over the bandwidth of the memory. Data that is still in a cache
lets an operator come out above 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure.roofline.ceilings import Ceilings
from diagnose.measure.roofline.op_costs import FORMATS, OpWork
from diagnose.measure.views.kernel_classes import KernelClass, matmul_format
from diagnose.model import StepWork
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Float64, Int64
from diagnose.units import NS_PER_S

_FP32, _TF32 = FORMATS.index("fp32"), FORMATS.index("tf32")
_ENOUGH = 0.5
"""The share of the device time of products that has to be modelled for anything to be said of a step's arithmetic."""
MATRIX_CLASSES = (KernelClass.MATMUL, KernelClass.CONVOLUTION, KernelClass.ATTENTION)


@dataclass(frozen=True, eq=False)
class Roofline:
    """Operators whose work and device time are known, in parallel arrays."""

    op: Int64
    """Rows of `trace.ops`."""
    device_ns: Int64
    """The time of the kernels that it launched itself."""
    compute_ns: Float64
    """What its arithmetic takes at the ceiling of its number format; 0.0 where that is unknown."""
    memory_ns: Float64
    """What its bytes take at the ceiling of the memory; 0.0 where they are unknown."""
    format: Int64
    """The place in `op_costs.FORMATS` of what its kernels multiplied."""

    def __len__(self) -> int:
        return len(self.op)

    @property
    def least_ns(self) -> Float64:
        """The least time that the nearer ceiling allows, in ns."""
        return np.asarray(np.maximum(self.compute_ns, self.memory_ns), np.float64)


def roofline_of(trace: Trace, rows: Int64, op_of_work: Int64, work: OpWork, ceilings: Ceilings) -> Roofline:
    """The place of every operator that launched some of the kernels in `rows` and whose work is modelled."""
    launched = rows[op_of_work[rows] != MISSING]
    of_row = op_of_work[launched]
    length = trace.device.end_ns[launched] - trace.device.start_ns[launched]
    device_ns = np.bincount(of_row, weights=length, minlength=len(trace.ops)).astype(np.int64)
    op = np.flatnonzero((device_ns > 0) & ((work.flops >= 0) | (work.bytes >= 0)))
    rates = np.array([ceilings.flops_per_s.get(form, np.inf) for form in FORMATS])
    form = formats_of(trace, launched, of_row, work)[op]
    rate = rates[form]
    return Roofline(
        op,
        device_ns[op],
        np.maximum(work.flops[op], 0) / rate * NS_PER_S,
        np.maximum(work.bytes[op], 0) / ceilings.bytes_per_s * NS_PER_S,
        form,
    )


def formats_of(trace: Trace, rows: Int64, of_row: Int64, work: OpWork) -> Int64:
    """Per operator, the place in `work.FORMATS` of what its kernels multiplied: fp32 may have become TF32."""
    result = work.format.astype(np.int64)
    names = trace.device.name[rows]
    known = np.unique(names)
    tensor = np.array([name >= 0 and matmul_format(trace.names[name]).tensor_cores is True for name in known.tolist()])
    if len(known):
        by_tensor_cores = of_row[tensor[np.searchsorted(known, names)]]
        result[by_tensor_cores[result[by_tensor_cores] == _FP32]] = _TF32
    return result


@dataclass(frozen=True)
class Arithmetic:
    """The model's floating-point operations, in all counted steps together."""

    flops: Mapping[str, int]
    """Operations by number format, the most first; without what repeats the forward pass: recomputed activations,
    and scores in the backward pass of attention."""
    least_ns: float
    """What these take at the ceilings of their formats."""
    modelled_ns: int
    """Device time of products, convolutions and attention whose operations are known."""
    matrix_ns: int
    """Device time of all products, convolutions and attention."""

    def per_step(self, total_ns: int, steps: int, ceilings: Ceilings) -> StepWork | None:
        """The arithmetic of one of `steps` that take `total_ns` together; None where nothing sound can be said."""
        flops, best = sum(self.flops.values()), ceilings.best_format
        # More than the ceiling allows: the device is not what it is said to be, or a model is wrong.
        if not flops or not 0 < self.least_ns <= total_ns or self.modelled_ns < _ENOUGH * self.matrix_ns:
            return None
        return StepWork(
            flops_per_step=flops // steps,
            flops_per_s=flops / total_ns * NS_PER_S,
            ceiling_flops_per_s=ceilings.flops_per_s[best],
            utilisation=flops / total_ns * NS_PER_S / ceilings.flops_per_s[best],
            modelled=min(self.modelled_ns / max(self.matrix_ns, 1), 1.0),
            ceiling_source=ceilings.source,
            ceiling_format=best,
            in_use={form: count / flops for form, count in self.flops.items()},
            in_use_flops_per_s=flops / self.least_ns * NS_PER_S,
        )


def arithmetic_of(
    trace: Trace, place: Roofline, work: OpWork, op_of_work: Int64, matrix: Int64, again: Bool
) -> Arithmetic:
    """The arithmetic of the operators in `place`.

    `matrix` are the rows of device work that multiply matrices; `again` says per row of device work whether it was
    launched to compute something a second time.
    """
    repeated = np.zeros(len(trace.ops), np.bool_)
    repeated[op_of_work[again & (op_of_work != MISSING)]] = True
    # What has no ceiling to be compared with is left out, as if it were unknown.
    counted = np.where(place.compute_ns > 0, work.flops[place.op] - np.maximum(work.recomputed[place.op], 0), 0)
    counted[repeated[place.op]] = 0
    share = counted / np.maximum(work.flops[place.op], 1)
    known = np.zeros(len(trace.ops) + 1, np.bool_)  # one more: the operator -1 is not known
    known[place.op[place.compute_ns > 0]] = True
    length = trace.device.end_ns[matrix] - trace.device.start_ns[matrix]
    modelled_ns = int(length[known[op_of_work[matrix]]].sum())
    by_format = {form: int(counted[place.format == at].sum()) for at, form in enumerate(FORMATS) if form}
    most_first = sorted(filter(by_format.get, by_format), key=lambda form: -by_format[form])
    flops = {form: by_format[form] for form in most_first}
    return Arithmetic(flops, float((place.compute_ns * share).sum()), modelled_ns, int(length.sum()))
