"""The columns of a trace: each table once, each column with its unit and meaning.

A table is a set of equally long numpy arrays, one row an event. Readers fill what their format has; a column that a
format lacks holds its *missing* value (`-1` for ids and sizes), never zero. All times are int64 nanoseconds on one
clock (since the epoch where the format says so). Rows are sorted by `start_ns`.

Ids are held with 32 bits where those hold them all, and with 64 where they do not (streams of ROCm are addresses): most
of a table is ids, and half of them would be zeros. They are for comparing and joining, which numpy does across widths;
whoever computes with one widens it first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Ids = npt.NDArray[np.signedinteger[Any]]
"""Whole numbers with 32 or 64 bits, as `narrow` has chosen."""
IDS = np.signedinteger
UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

MISSING = -1


class WorkKind(enum.IntEnum):
    """The kind of a row of device work. `measure.views.kernel_classes` tells whether a kernel is a collective."""

    KERNEL = 0
    COPY = 1
    SET = 2


class CopyDirection(enum.IntEnum):
    """The memories between which a copy moves."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    HOST_TO_HOST = 4
    PEER_TO_PEER = 5


class Memory(enum.IntEnum):
    """The host side of a copy."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2


class RangeKind(enum.IntEnum):
    """The kind of a named range of host time."""

    USER = 0
    STEP = 1
    """One training step, as the program or the profiler marks it (`ProfilerStep#7`)."""
    OPTIMIZER = 2
    """One call of `optimizer.step`."""
    INPUT = 3
    """The training thread inside a loader's `__next__`."""
    GC = 4
    COMPILE = 5
    CHECKPOINT = 6
    BACKWARD = 7
    COLLECTIVE = 8
    """The host side of a collective call."""


class WaitKind(enum.IntEnum):
    """The kind of a wait: who waits for whom."""

    UNKNOWN = 0
    STREAM_FOR_EVENT = 1
    """Work of a stream for an event; the host goes on."""
    HOST_FOR_STREAM = 2
    HOST_FOR_EVENT = 3
    HOST_FOR_DEVICE = 4


class MemoryAction(enum.IntEnum):
    """The action on a piece of device memory."""

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    """The program gave it back; streams may still use it."""
    FREE = 3
    """The allocator has it back."""
    SEGMENT_ALLOC = 4
    """The allocator took memory from the device (`cudaMalloc`)."""
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OUT_OF_MEMORY = 8
    PREEXISTING = 9
    """The allocation was there before recording began."""
    RECATEGORIZED = 10
    """What it serves as changed: one row takes its size from the old category, one gives it to the new."""


class MemoryCategory(enum.IntEnum):
    """The category of a piece of memory, where the recording tells."""

    UNKNOWN = 0
    PARAMETER = 1
    OPTIMIZER_STATE = 2
    INPUT = 3
    TEMPORARY = 4
    ACTIVATION = 5
    GRADIENT = 6
    AUTOGRAD_DETAIL = 7


class BlockState(enum.IntEnum):
    """The state of a piece of a segment."""

    UNKNOWN = 0
    HELD = 1
    """The block is in use by a tensor."""
    WAITING = 2
    """Given back, and still waiting for a stream."""
    FREE = 3


def column(dtype: type[np.generic], unit: str, meaning: str, missing: int = MISSING) -> Any:
    """Declare a column: its dtype (`IDS` for ids), its unit, what it means, and the value of an unknown entry."""
    is_narrowed = dtype is IDS
    widest = np.int64 if is_narrowed else dtype
    described = {"dtype": widest, "is_narrowed": is_narrowed, "unit": unit, "meaning": meaning, "missing": missing}
    return field(metadata=described)


def narrow(values: npt.ArrayLike) -> Ids:
    """The numbers with 32 bits where those hold them all, else with 64."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32:
        return values
    wide = np.asarray(values, np.int64)
    return wide if len(wide) and not _LEAST <= wide.min() <= wide.max() <= _MOST else wide.astype(np.int32)


_LEAST, _MOST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Table:
    """Equally long columns. Build one with `build`; never change an array in place."""

    def __len__(self) -> int:
        first: npt.NDArray[Any] = getattr(self, fields(self)[0].name)
        return len(first)

    @classmethod
    def build(cls, columns: Mapping[str, Any] | None = None) -> Self:
        """A table from some of its columns; the others are filled with their missing value.

        Raises ValueError for an unknown column or for columns of different lengths.
        """
        given = dict(columns or {})
        rows = len(next(iter(given.values()))) if given else 0
        arrays = {}
        for spec in cls.columns():
            dtype, missing = spec.metadata["dtype"], spec.metadata["missing"]
            raw = given.pop(spec.name, None)
            raw = np.full(rows, missing, dtype) if raw is None else raw
            arrays[spec.name] = narrow(raw) if spec.metadata["is_narrowed"] else np.asarray(raw, dtype)
            if len(arrays[spec.name]) != rows:
                raise ValueError(f"{cls.__name__}.{spec.name} has {len(arrays[spec.name])} rows, expected {rows}")
        if given:
            raise ValueError(f"{cls.__name__} has no column {', '.join(sorted(given))}")
        return cls(**arrays)

    @classmethod
    def columns(cls) -> tuple[Field[Any], ...]:
        """The declared columns, with their metadata."""
        return fields(cls)

    def where(self, rows: Any) -> Self:
        """The rows that a mask or an index array selects, in its order."""
        return type(self)(**{spec.name: getattr(self, spec.name)[rows] for spec in self.columns()})

    def sorted_by_start(self) -> Self:
        """The rows ordered by `start_ns`; ties keep their order."""
        return self.where(np.argsort(getattr(self, self.columns()[0].name), kind="stable"))

    @classmethod
    def concatenate(cls, tables: Iterable[Self]) -> Self:
        """All rows of several tables, sorted by start."""
        parts = list(tables)
        if not parts:
            return cls.build()
        joined = {spec.name: np.concatenate([getattr(part, spec.name) for part in parts]) for spec in cls.columns()}
        return cls(**joined).sorted_by_start()


@dataclass(frozen=True, eq=False)
class DeviceWork(Table):
    """Kernels, copies and sets, as the device ran them. Overlap on one stream is legal."""

    start_ns: Int64 = column(np.int64, "ns", "the device began")
    end_ns: Int64 = column(np.int64, "ns", "the device finished; never before start_ns")
    kind: UInt8 = column(np.uint8, "WorkKind", "kernel, copy or set", missing=0)
    name: Int32 = column(np.int32, "index into Trace.names", "the kernel's name as the profiler wrote it")
    device: Int32 = column(np.int32, "ordinal", "which device of the process")
    stream: Ids = column(IDS, "id", "the stream or queue")
    correlation: Ids = column(IDS, "id", "joins with HostCalls.correlation, the call that launched it")
    external_id: Ids = column(IDS, "id", "joins with Ops.external_id, the operator that caused it")
    size_bytes: Int64 = column(np.int64, "bytes", "moved by a copy or a set")
    direction: UInt8 = column(np.uint8, "CopyDirection", "of a copy", missing=0)
    host_memory: UInt8 = column(np.uint8, "Memory", "pageable or pinned, of a copy's host side", missing=0)
    collective: Int32 = column(np.int32, "index into Trace.collectives", "what the kernel communicates")
    graph: Ids = column(IDS, "id", "the CUDA graph that replayed it")
    blocks_per_sm: Float32 = column(np.float32, "blocks", "of a kernel's grid over the device's multiprocessors")
    warps_per_sm: Float32 = column(np.float32, "warps", "the same in warps; waiting ones too")


@dataclass(frozen=True, eq=False)
class HostCalls(Table):
    """Calls of the device's runtime or driver (`cudaLaunchKernel`, `hipMemcpyAsync`, …) on the host."""

    start_ns: Int64 = column(np.int64, "ns", "the call began")
    end_ns: Int64 = column(np.int64, "ns", "the call returned")
    name: Int32 = column(np.int32, "index into Trace.names", "the function")
    thread: Int32 = column(np.int32, "index into Trace.threads", "the calling thread")
    correlation: Ids = column(IDS, "id", "joins with DeviceWork.correlation")
    external_id: Ids = column(IDS, "id", "joins with Ops.external_id")


@dataclass(frozen=True, eq=False)
class Ops(Table):
    """Framework operators (`aten::mm`) on the host, nested per thread."""

    start_ns: Int64 = column(np.int64, "ns", "the operator began")
    end_ns: Int64 = column(np.int64, "ns", "the operator returned")
    name: Int32 = column(np.int32, "index into Trace.names", "the operator")
    thread: Int32 = column(np.int32, "index into Trace.threads", "the calling thread")
    external_id: Ids = column(IDS, "id", "joins with DeviceWork.external_id")
    sequence: Ids = column(IDS, "number", "autograd sequence number: joins forward with backward")
    forward_thread: Ids = column(IDS, "id", "of a backward operator: the thread that ran the forward")
    shapes: Int32 = column(np.int32, "index into Trace.texts", "`Input Dims` as JSON text")
    dtypes: Int32 = column(np.int32, "index into Trace.texts", "`Input type` as JSON text")
    values: Int32 = column(
        np.int32, "index into Trace.texts", "`Concrete Inputs` as JSON text, of convolutions and attention"
    )


@dataclass(frozen=True, eq=False)
class Frames(Table):
    """Python calls that the profiler recorded (`with_stack`), nested per thread."""

    start_ns: Int64 = column(np.int64, "ns", "the call began")
    end_ns: Int64 = column(np.int64, "ns", "the call returned")
    name: Int32 = column(np.int32, "index into Trace.names", "`file.py(41): function`, `nn.Module: Linear_0`, …")
    thread: Int32 = column(np.int32, "index into Trace.threads", "the calling thread")


@dataclass(frozen=True, eq=False)
class Ranges(Table):
    """Named stretches of host time: annotations, optimizer steps, loader waits, garbage collections."""

    start_ns: Int64 = column(np.int64, "ns", "the range began")
    end_ns: Int64 = column(np.int64, "ns", "the range ended")
    kind: UInt8 = column(np.uint8, "RangeKind", "what it is", missing=0)
    name: Int32 = column(np.int32, "index into Trace.names", "as annotated")
    thread: Int32 = column(np.int32, "index into Trace.threads", "the thread")


@dataclass(frozen=True, eq=False)
class DeviceWaits(Table):
    """Waits for the device, as its driver reports them beside the calls that ask for them."""

    start_ns: Int64 = column(np.int64, "ns", "the wait was asked for")
    end_ns: Int64 = column(np.int64, "ns", "the call returned")
    kind: UInt8 = column(np.uint8, "WaitKind", "what waits for what", missing=0)
    device: Int32 = column(np.int32, "ordinal", "the device")
    stream: Ids = column(IDS, "id", "the stream that waits, or that the host waits for")
    correlation: Ids = column(IDS, "id", "joins with HostCalls.correlation, the call that asked")
    wait_on_stream: Ids = column(IDS, "id", "the stream on which the awaited event was recorded")
    wait_on_correlation: Ids = column(IDS, "id", "joins with HostCalls.correlation, the event's record")


@dataclass(frozen=True, eq=False)
class Samples(Table):
    """Python stacks of the training thread of a live run, sampled at about 200 Hz or noted at each of its lines."""

    time_ns: Int64 = column(np.int64, "ns", "when the stack was read, or began to hold")
    stack: Int32 = column(np.int32, "index into Trace.stacks", "the stack, innermost frame first")


@dataclass(frozen=True, eq=False)
class Counters(Table):
    """Values that samplers read beside the run (NVML, host, allocator)."""

    time_ns: Int64 = column(np.int64, "ns", "when the value was read")
    name: Int32 = column(np.int32, "index into Trace.names", "the metric, for example `gpu.sm_activity`")
    device: Int32 = column(np.int32, "ordinal", "the device; -1 for the host")
    value: Float64 = column(np.float64, "the metric's own", "the value as read")


@dataclass(frozen=True, eq=False)
class StepLog(Table):
    """Every step that the watcher saw end on a live run, traced or not."""

    end_ns: Int64 = column(np.int64, "ns", "`optimizer.step` returned on the host")
    input_ns: Int64 = column(np.int64, "ns", "spent in the loader's `__next__` since the step before")


@dataclass(frozen=True, eq=False)
class MemoryEvents(Table):
    """The events of the device's allocator, in order. A history is a ring buffer: frees of older allocations are
    normal.
    """

    time_ns: Int64 = column(np.int64, "ns", "when; rows without times keep the recorded order")
    action: UInt8 = column(np.uint8, "MemoryAction", "what happened", missing=0)
    address: Int64 = column(np.int64, "address", "where the piece begins, the 64 bits read as signed")
    size_bytes: Int64 = column(np.int64, "bytes", "of the piece; a change of category may be negative")
    device: Int32 = column(np.int32, "ordinal", "the device")
    stream: Ids = column(IDS, "id", "the stream that the piece belongs to")
    stack: Int32 = column(np.int32, "index into Trace.stacks", "who asked, innermost frame first")
    category: UInt8 = column(np.uint8, "MemoryCategory", "what it serves as", missing=0)


@dataclass(frozen=True, eq=False)
class Segments(Table):
    """The segments that the allocator held when a snapshot was taken."""

    address: Int64 = column(np.int64, "address", "where the segment begins, the 64 bits read as signed")
    size_bytes: Int64 = column(np.int64, "bytes", "reserved from the device")
    allocated_bytes: Int64 = column(np.int64, "bytes", "in use by tensors")
    active_bytes: Int64 = column(np.int64, "bytes", "in use, or given back and still waiting for a stream")
    device: Int32 = column(np.int32, "ordinal", "the device")
    stream: Ids = column(IDS, "id", "the stream that it serves")
    expandable: UInt8 = column(np.uint8, "flag", "1 where the segment can grow", missing=0)


@dataclass(frozen=True, eq=False)
class Blocks(Table):
    """The blocks that the allocator's segments were divided into when a snapshot was taken."""

    address: Int64 = column(np.int64, "address", "where the block begins, the 64 bits read as signed")
    size_bytes: Int64 = column(np.int64, "bytes", "of the block")
    requested_bytes: Int64 = column(np.int64, "bytes", "that were asked for, before they were rounded up")
    state: UInt8 = column(np.uint8, "BlockState", "held, waiting or free", missing=0)
    device: Int32 = column(np.int32, "ordinal", "the device")
    stack: Int32 = column(np.int32, "index into Trace.stacks", "who asked, innermost frame first")
    category: UInt8 = column(
        np.uint8, "MemoryCategory", "what it serves as, as the program's optimizers tell", missing=0
    )


@dataclass(frozen=True, eq=False)
class KernelMetrics(Table):
    """Hardware counters of single kernels, taken apart from the timeline: counting replays kernels and slows them."""

    launch: Int64 = column(np.int64, "number", "the counted launch, as the file numbers them")
    kernel: Int32 = column(np.int32, "index into Trace.names", "the kernel's name")
    metric: Int32 = column(np.int32, "index into Trace.names", "the metric, for example `gpu__time_duration.sum`")
    unit: Int32 = column(np.int32, "index into Trace.texts", "the value's unit as the file gives it")
    value: Float64 = column(np.float64, "the metric's own", "the value as measured")


TABLES: tuple[type[Table], ...] = (
    DeviceWork,
    HostCalls,
    Ops,
    Frames,
    Ranges,
    DeviceWaits,
    Samples,
    Counters,
    StepLog,
    MemoryEvents,
    Segments,
    Blocks,
    KernelMetrics,
)
