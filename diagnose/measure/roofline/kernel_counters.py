"""Hardware counters of kernels: the bytes they moved, and the busiest unit.

    counters = kernel_counters(trace)
    counters.bytes               # per row of trace.device; -1 where nobody counted
    counters.kind                # a `kernel_bounds.Bound`; 0 where nobody counted

Nsight Compute and rocprof count kernels in a run of their own, and each tool spells their names in its own way.
Launches are matched by what the names agree on (`kernel_key`) and, where both recorded it, the size of the grid: each
launch has the mean of what was counted of its like.

Thresholds
    BUSY 0.2: a unit that is busy for less than this part of the kernel does not bound it; if neither the units that
    multiply nor the memory is that busy, and the kernel is over in SMALL_NS (as in `kernel_bounds`), latency does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.measure.roofline.occupancy import multiprocessors
from diagnose.measure.roofline.roofline import MATRIX_CLASSES
from diagnose.measure.views.kernel_classes import class_of
from diagnose.trace import Trace
from diagnose.trace.schema import Int64

BUSY = 0.2
SMALL_NS = 5_000
_BYTES = re.compile(r"^dram__bytes(_read|_write|_op_read|_op_write)\.sum$")
_KILOBYTES = re.compile(r"^(FETCH_SIZE|WRITE_SIZE|FetchSize|WriteSize)$")
"""Metrics that rocprof derives, in units of 1024 bytes."""
_TENSOR = re.compile(r"^sm__(pipe_tensor|inst_executed_pipe_tensor)\w*\.avg\.pct_of_peak|^MfmaUtil$")
_TENSOR_INSTRUCTIONS = re.compile(r"^sm__inst_executed_pipe_tensor_op_(gmma|hmma|imma|dmma)\.(sum|avg)$")
_HALF_INSTRUCTIONS = re.compile(r"^sm__inst_executed_pipe_tensor_op_hmma_type_hfma2\.(sum|avg)$")
_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = re.compile(r"^dram__throughput\.avg\.pct_of_peak|^MemUnitBusy$")
_LENGTH, _GRID = "gpu__time_duration.sum", "launch__grid_size"
_UNITS = {
    **{f"{prefix}{word}": factor for word in ("byte", "b") for prefix, factor in
       (("", 1), ("k", 1e3), ("m", 1e6), ("g", 1e9))},
    **{f"{prefix}{word}": factor for word in ("second", "s") for prefix, factor in
       (("", 1e9), ("m", 1e6), ("u", 1e3), ("n", 1))},
}  # fmt: skip
"""What one unit of Nsight Compute's is in bytes, or in nanoseconds."""

KernelKey = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch of a kernel, or the mean of several; None is not counted."""

    bytes: float | None = None
    tensor: float | None = None
    """How busy the multiprocessors were (0 to 1) with a kernel that multiplies matrices; 0 for any other."""
    memory: float | None = None
    """How busy the memory was (0 to 1)."""
    length_ns: float | None = None
    blocks: float | None = None
    """Blocks of its grid."""

    @property
    def kind(self) -> int:
        """The place of a `kernel_bounds.Bound`: 1 products, 2 memory, 3 latency, 0 unknown."""
        if self.memory is None:
            return 0
        tensor = self.tensor or 0.0
        if max(tensor, self.memory) < BUSY:
            short = self.length_ns is not None and self.length_ns < SMALL_NS
            return 3 if short else 0
        return 1 if tensor >= self.memory else 2


@dataclass(frozen=True, eq=False)
class KernelCounters:
    """Per row of `trace.device`."""

    bytes: Int64
    kind: npt.NDArray[np.uint8]


def counted_launches(trace: Trace) -> Mapping[KernelKey, list[Counted]]:
    """Return the counted launches by the kernel's key, in the order of launch."""
    table = trace.kernel_metrics
    found: dict[tuple[int, int], dict[str, float]] = {}
    columns = (table.launch, table.kernel, table.metric, table.unit, table.value)
    for launch, kernel, metric, unit, value in zip(*(column.tolist() for column in columns), strict=True):
        if kernel >= 0 and metric >= 0:
            word = trace.texts[unit].strip().lower() if unit >= 0 else ""
            found.setdefault((launch, kernel), {})[trace.names[metric]] = value * _UNITS.get(word, 1)
    launches: dict[KernelKey, list[Counted]] = {}
    for (_, kernel), metrics in sorted(found.items()):
        launches.setdefault(kernel_key(trace.names[kernel]), []).append(_counted(trace.names[kernel], metrics))
    return launches


def _counted(name: str, metrics: Mapping[str, float]) -> Counted:
    whole = metrics.get("dram__bytes.sum")
    if whole is None:
        parts = [value for name, value in metrics.items() if _BYTES.match(name)]
        parts += [1024 * value for name, value in metrics.items() if _KILOBYTES.match(name)]
        whole = sum(parts) if parts else None
    busy = [value / 100 for name, value in metrics.items() if _MEMORY.match(name)]
    return Counted(whole, _tensor(name, metrics), max(busy, default=None), metrics.get(_LENGTH), metrics.get(_GRID))


def _tensor(name: str, metrics: Mapping[str, float]) -> float | None:
    """Return how busy the units that multiply are; of the whole multiprocessor, if it multiplies and only that was
    counted.

    Arithmetic on pairs of float16 (`hfma2`) runs on the same units and is no product. Where no instructions were
    counted, the kernel's name says whether it multiplies.
    """
    known = [value / 100 for metric, value in metrics.items() if _TENSOR.match(metric)]
    if known:
        return max(known)
    issued = [value for metric, value in metrics.items() if _TENSOR_INSTRUCTIONS.match(metric)]
    halves = sum(value for metric, value in metrics.items() if _HALF_INSTRUCTIONS.match(metric))
    multiplies = sum(issued) > halves if issued else class_of(name) in MATRIX_CLASSES
    return metrics.get(_SM, 0.0) / 100 if multiplies else 0.0


def kernel_counters(trace: Trace) -> KernelCounters:
    """Return the counters of each row of device work."""
    moved = np.full(len(trace.device), -1, np.int64)
    kind = np.zeros(len(trace.device), np.uint8)
    if not len(trace.kernel_metrics) or not len(trace.device):
        return KernelCounters(moved, kind)
    launches, sms = counted_launches(trace), multiprocessors(trace) or 0
    names, blocks = trace.device.name, np.rint(trace.device.blocks_per_sm.astype(np.float64) * sms).astype(np.int64)
    for name in np.unique(names[names >= 0]).tolist():
        counted = launches.get(kernel_key(trace.names[name]))
        if counted is None:
            continue
        rows = np.flatnonzero(names == name)
        for grid in np.unique(blocks[rows]).tolist():
            like = [one for one in counted if one.blocks is None or grid <= 0 or one.blocks == grid]
            one, mine = mean_of(like), rows[blocks[rows] == grid]
            kind[mine] = one.kind
            moved[mine] = -1 if one.bytes is None else int(one.bytes)
    return KernelCounters(moved, kind)


def mean_of(counted: Sequence[Counted]) -> Counted:
    """The mean of several launches, of what was counted."""

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    return Counted(*(mean([getattr(one, field) for one in counted]) for field in Counted.__slots__))


_OWN_NAME = re.compile(r"(\w+)\s*(?:[<(]|$)")
_TELLING = re.compile(r"\b(\w*Functor\w*|\w*KernelImpl|\w+_kernel_cuda|\w+Ops|\w+Op|cutlass_\w*(?:tensorop|simt)\w*)\b")
_NUMBERS = re.compile(r"\b(BFloat16|Half|double|float|long|int)\b")


@lru_cache(maxsize=65536)
def kernel_key(name: str) -> KernelKey:
    """Return the part of a kernel's name that the tools agree on: its own name, the functions it is made of, and its
    number formats.

    They differ in namespaces, in lambdas, in how they write constants, and in whether arguments are named.
    """
    plain = re.sub(r"\(anonymous namespace\)|<unnamed>", "", name.removeprefix("void "))
    own = _OWN_NAME.search(plain)
    head = plain.split("(", 1)[0] if own and "<" not in plain[: own.end()] else plain
    first = own[1] if own else plain
    return (first, *sorted({*_TELLING.findall(head), *_NUMBERS.findall(head)} - {first, "int", "long"}))
