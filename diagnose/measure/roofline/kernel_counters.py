"""What counters of the hardware say of kernels: the bytes they moved, and which unit was busiest.

    counters = kernel_counters(trace)
    counters.bytes               # per row of trace.device; -1 where nobody counted
    counters.kind                # a `kernel_bounds.Bound`; 0 where nobody counted

Nsight Compute and rocprof count kernels in a run of their own, so that launches are matched by the kernel's name: in
order where as many were counted as recorded, else every launch has the mean of what was counted.

Thresholds
    BUSY 0.2: a unit that is busy for less than this part of the kernel does not bound it; if neither the tensor cores
    nor the memory is that busy, and the kernel is over in SMALL_NS (`kernel_bounds`), latency does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.trace import Trace
from diagnose.trace.schema import Int64

BUSY = 0.2
SMALL_NS = 5_000
_BYTES = re.compile(r"^dram__bytes(_read|_write|_op_read|_op_write)?\.sum$")
_RDWR = re.compile(r"^(FETCH_SIZE|WRITE_SIZE|FetchSize|WriteSize)$")
_TENSOR = re.compile(r"(pipe_tensor|tensor_op|inst_executed_pipe_tensor).*pct_of_peak|^MfmaUtil$")
_MEMORY = re.compile(r"dram__throughput.*pct_of_peak|^MemUnitBusy$")
_LENGTH = re.compile(r"^gpu__time_duration\.sum$")
_UNITS = {
    **{f"{prefix}{word}": factor for word in ("byte", "b") for prefix, factor in
       (("", 1), ("k", 1e3), ("m", 1e6), ("g", 1e9))},
    **{f"{prefix}{word}": factor for word in ("second", "s") for prefix, factor in
       (("", 1e9), ("m", 1e6), ("u", 1e3), ("n", 1))},
}  # fmt: skip
"""What one unit of Nsight Compute's is in bytes, or in nanoseconds."""
_KILOBYTES = 1024
"""rocprof's derived FETCH_SIZE and WRITE_SIZE are in kilobytes."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch of a kernel; None is not counted."""

    bytes: float | None = None
    tensor: float | None = None
    """How busy the units that multiply matrices were (0 to 1)."""
    memory: float | None = None
    """How busy the memory was (0 to 1)."""
    length_ns: float | None = None

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


def counted_launches(trace: Trace) -> Mapping[str, list[Counted]]:
    """What was counted, by the kernel's name, in the order of launch."""
    table = trace.kernel_metrics
    found: dict[tuple[int, int], dict[str, float]] = {}
    for kernel, launch, metric, unit, value in zip(
        table.kernel.tolist(),
        table.launch.tolist(),
        table.metric.tolist(),
        table.unit.tolist(),
        table.value.tolist(),
        strict=True,
    ):
        if kernel < 0 or metric < 0:
            continue
        word = trace.texts[unit].strip().lower() if unit >= 0 else ""
        found.setdefault((kernel, launch), {})[trace.names[metric]] = value * _UNITS.get(word, 1)
    launches: dict[str, list[Counted]] = {}
    for (kernel, _), metrics in sorted(found.items()):
        launches.setdefault(trace.names[kernel], []).append(_counted(metrics))
    return launches


def _counted(metrics: Mapping[str, float]) -> Counted:
    whole = metrics.get("dram__bytes.sum")
    parts = [value for name, value in metrics.items() if _BYTES.match(name) and name != "dram__bytes.sum"]
    kilobytes = [value for name, value in metrics.items() if _RDWR.match(name)]
    moved = whole if whole is not None else sum(parts) if parts else _KILOBYTES * sum(kilobytes) if kilobytes else None
    return Counted(moved, _percent(metrics, _TENSOR), _percent(metrics, _MEMORY), _first(metrics, _LENGTH))


def _percent(metrics: Mapping[str, float], pattern: re.Pattern[str]) -> float | None:
    found = [value / 100 for name, value in metrics.items() if pattern.search(name)]
    return max(found, default=None)


def _first(metrics: Mapping[str, float], pattern: re.Pattern[str]) -> float | None:
    return next((value for name, value in metrics.items() if pattern.search(name)), None)


def kernel_counters(trace: Trace) -> KernelCounters:
    """What was counted, for each row of device work."""
    moved = np.full(len(trace.device), -1, np.int64)
    kind = np.zeros(len(trace.device), np.uint8)
    if not len(trace.kernel_metrics) or not len(trace.device):
        return KernelCounters(moved, kind)
    launches = {short_name(name): counted for name, counted in counted_launches(trace).items()}
    names = trace.device.name
    for name in np.unique(names[names >= 0]).tolist():
        counted = launches.get(short_name(trace.names[name]))
        if counted is None:
            continue
        rows = np.flatnonzero(names == name)
        each = counted if len(counted) == len(rows) else [_mean(counted)] * len(rows)
        moved[rows] = [-1 if one.bytes is None else int(one.bytes) for one in each]
        kind[rows] = [one.kind for one in each]
    return KernelCounters(moved, kind)


def _mean(counted: list[Counted]) -> Counted:
    return Counted(*(_mean_of([getattr(one, field) for one in counted]) for field in Counted.__slots__))


def _mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def short_name(name: str) -> str:
    """A kernel's name as Nsight Compute and the profilers agree on it: without return type, arguments and spaces."""
    head = name.removeprefix("void ").replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    depth = 0
    for at, letter in enumerate(head):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0:
            head = head[:at]
            break
    return head.replace(" ", "")
