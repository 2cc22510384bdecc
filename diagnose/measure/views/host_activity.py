"""The activity of host threads as sets of time: the loader, garbage collection, a wait for the device, …"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

from diagnose.measure.views.loader_functions import batch_frames, not_launching
from diagnose.measure.views.names import named
from diagnose.measure.views.stacks import making_batches, sampled_causes
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, CopyDirection, Int32, Int64, Memory, RangeKind

# Calls that return only once the device has got somewhere: CUDA's runtime and driver, HIP, Level Zero and SYCL.
WAITS = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize|^cu(Stream|Ctx|Event)Synchronize|^(cuda|hip)Memcpy(_ptsz|WithStream)?$"
    r"|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)$|^cuMemcpy(DtoH|HtoD)_v2$|^(cuda|hip)ThreadSynchronize"
    r"|^ze(EventHost|CommandQueue|Fence)(Synchronize|HostSynchronize)|^ur(QueueFinish|EventWait)$|^zeEventHostSynchronize"
)
_CAPTURE_BEGINS = re.compile(r"^(cuda|hip|cu)StreamBeginCapture")
_CAPTURE_ENDS = re.compile(r"^(cuda|hip|cu)StreamEndCapture")
ALLOCATIONS = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostMalloc|HostRegister|HostUnregister|HostGetDevicePointer)"
    r"|^cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)"
)


def waits_of(trace: Trace) -> Bool:
    """Per host call: whether it waits for the device. A pageable copy to the host does, though it is called async."""
    waits = named(trace.names, trace.calls.name, WAITS)
    to_host = (trace.device.direction == CopyDirection.DEVICE_TO_HOST) & (trace.device.host_memory != Memory.PINNED)
    pageable = trace.device.correlation[to_host & (trace.device.correlation > 0)]
    return np.asarray(waits | ((trace.calls.correlation > 0) & np.isin(trace.calls.correlation, pageable)), np.bool_)


def pageable_waits_of(trace: Trace, thread: int) -> Intervals:
    """Calls of one thread that copy pageable memory to the device, each with the wait that directly follows it."""
    pageable = (trace.device.direction == CopyDirection.HOST_TO_DEVICE) & (trace.device.host_memory == Memory.PAGEABLE)
    rows = np.flatnonzero((trace.calls.thread == thread) | (trace.calls.thread == MISSING))
    rows = rows[np.lexsort((trace.calls.end_ns[rows], trace.calls.start_ns[rows]))]
    correlation = trace.calls.correlation[rows]
    copies = np.isin(correlation, trace.device.correlation[pageable]) & (correlation > 0)
    starts, ends = trace.calls.start_ns[rows], trace.calls.end_ns[rows]
    waits = waits_of(trace)[rows]
    then_waits = np.append(waits[1:], False)[: len(rows)]
    until = np.where(then_waits, np.append(ends[1:], 0)[: len(rows)], ends)
    return Intervals.of(starts[copies], until[copies])


def on_threads(column: Int32, threads: Collection[int]) -> Bool:
    """A mask over a thread column; a row of unknown thread counts as any."""
    # Threads are numbered from zero, so a table answers at once; np.isin would look at every row several times.
    asked = np.zeros(int(column.max(initial=MISSING)) + 2, np.bool_)
    asked[[thread for thread in (*threads, MISSING) if thread < len(asked) - 1]] = True  # MISSING is the last entry
    return asked[column]


def threads_in(column: Int32 | Int64) -> list[int]:
    """The different threads of a column, in order, `MISSING` first where it is there."""
    return (np.flatnonzero(np.bincount(column - MISSING)) + MISSING).tolist()


def ranges_of(trace: Trace, kind: RangeKind, threads: Collection[int] | None = None) -> Intervals:
    """The time in ranges of one kind, on some threads or (None) on any."""
    mask = trace.ranges.kind == kind
    if threads is not None:
        mask &= on_threads(trace.ranges.thread, threads)
    return Intervals.of_rows(trace.ranges, mask)


def ops_of(trace: Trace, threads: Collection[int]) -> Intervals:
    """The time in framework operators on some threads."""
    mask = on_threads(trace.ops.thread, threads)
    return Intervals.of_rows(trace.ops, mask)


def calls_of(trace: Trace, threads: Collection[int], chosen: Bool) -> Intervals:
    """The time in those runtime calls that a mask chooses, on some threads."""
    mask = chosen & on_threads(trace.calls.thread, threads)
    return Intervals.of_rows(trace.calls, mask)


def capturing(trace: Trace) -> Intervals:
    """The time in which a graph is captured: what is launched then does not run before the graph does."""
    calls = trace.calls
    begins = np.sort(calls.start_ns[named(trace.names, calls.name, _CAPTURE_BEGINS)])
    ends = np.sort(calls.end_ns[named(trace.names, calls.name, _CAPTURE_ENDS)])
    place = np.searchsorted(ends, begins)
    ended = place < len(ends)
    return Intervals.of(begins[ended], ends[place[ended]])


def loading(trace: Trace, threads: Collection[int] | None = None) -> Intervals:
    """The time in which some threads (None: any) wait for a batch or make it.

    The loader's marks tell, and recorded calls of functions that are named for it, but for their waits for the device.
    """
    marked = ranges_of(trace, RangeKind.INPUT, threads)
    frames, making = trace.frames, batch_frames(trace)
    chosen = threads_in(frames.thread[making]) if threads is None else sorted(threads)
    if not making.any():
        return marked
    waiting = waits_of(trace)
    for thread in chosen:
        rows = np.flatnonzero(making & on_threads(frames.thread, {thread}))
        starts, ends = frames.start_ns[rows], frames.end_ns[rows]
        waits = calls_of(trace, {thread}, waiting)
        kept = not_launching(trace, starts, ends, waits, thread)
        marked = marked | (Intervals.of(starts[kept], ends[kept]) - waits)
    return marked


def activity(trace: Trace, threads: Collection[int]) -> list[tuple[str, Intervals]]:
    """Causes with their time on `threads`, the most telling first: where two overlap, the first one is the cause.

    What none of them covers is Python. Samples come last: they are read every few milliseconds and only refine what
    the exact records leave open. Operators that make a batch are the exception: they look like any others.
    """
    everything = np.ones(len(trace.calls), np.bool_)
    return [
        ("input", loading(trace, threads)),
        ("gc", ranges_of(trace, RangeKind.GC)),  # on whatever thread: it holds the interpreter
        ("compile", ranges_of(trace, RangeKind.COMPILE, threads)),
        ("io", ranges_of(trace, RangeKind.CHECKPOINT, threads)),
        ("sync", calls_of(trace, threads, waits_of(trace))),
        ("allocator", calls_of(trace, threads, named(trace.names, trace.calls.name, ALLOCATIONS))),
        ("input", making_batches(trace)),
        ("dispatch", ops_of(trace, threads) | calls_of(trace, threads, everything)),
        *sampled_causes(trace),
    ]
