"""The meaning of Kineto's category names, event names and arguments, in the terms of the schema."""

from __future__ import annotations

import enum
import re
from functools import lru_cache

from diagnose.trace import Collective
from diagnose.trace.readers.kineto.events import Args, Scalar
from diagnose.trace.schema import CopyDirection, Memory, RangeKind, WaitKind

_KNOWN = 1 << 16  # names whose meaning is remembered: a trace has thousands, a damaged one might have any number


class Lane(enum.IntEnum):
    """The table that an event belongs to. The device's three kinds share one."""

    UNUSED = 0
    """Known, and of no use: flows drawn as events, the profiler's own overhead, spans of the recording."""
    UNKNOWN = 1
    KERNEL = 2
    COPY = 3
    SET = 4
    CALL = 5
    OP = 6
    FRAME = 7
    RANGE = 8
    DEVICE_RANGE = 9
    MEMORY = 10
    """The allocator's events: instants, which no other table has."""
    WAIT = 11


_LANES = {
    "kernel": Lane.KERNEL,
    "mtia_ccp_events": Lane.KERNEL,
    "gpu_memcpy": Lane.COPY,
    "memcpy": Lane.COPY,
    "gpu_memset": Lane.SET,
    "memset": Lane.SET,
    "runtime": Lane.CALL,
    "driver": Lane.CALL,
    "cpu_op": Lane.OP,
    "operator": Lane.OP,
    "python_function": Lane.FRAME,
    "user_annotation": Lane.RANGE,
    "gpu_user_annotation": Lane.DEVICE_RANGE,
    "trace": Lane.UNUSED,
    "overhead": Lane.UNUSED,
    "cuda_sync": Lane.WAIT,
    "cuda_profiler_range": Lane.UNUSED,
    "cpu_instant_event": Lane.MEMORY,
}


@lru_cache(maxsize=1024)
def lane_of(category: str) -> Lane:
    """The table of a category, whichever year's spelling: `Kernel`, `kernel`; `cuda_runtime`, `mtia_runtime`."""
    lowered = category.lower()
    return _LANES.get(lowered, _LANES.get(lowered.rpartition("_")[2], Lane.UNKNOWN))


_RANGE_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"ProfilerStep#", RangeKind.STEP),
        (r"Optimizer\.step#", RangeKind.OPTIMIZER),
        (r"enumerate\(DataLoader\)#", RangeKind.INPUT),
        # A program's own words for the same, with `record_function` or as NVTX ranges.
        (
            r"(?i:\W*(?:data[ _-]?load(?:er|ing)?|(?:load|get|fetch|next)[ _-]?(?:data|batch|input)"
            r"|(?:data|batch|input)[ _-]?(?:load(?:ing)?|fetch(?:ing)?))\W*\d*$)",
            RangeKind.INPUT,
        ),
        (r"(?:nccl|rccl|gloo|xccl|hccl|mpi|ucc):|c10d::", RangeKind.COLLECTIVE),
        # `## Call CompiledFxGraph …` and `Torch-Compiled Region` run what was compiled: they are not compilation.
        (
            r".*\(dynamo_timed\)|_compile\.|compile_inner|entire_frame_compile|backend_compile|compile_fx|inductor_compile"
            r"|dynamo$",
            RangeKind.COMPILE,
        ),
        (r"\W*backward\W*$", RangeKind.BACKWARD),
    )
)


@lru_cache(maxsize=_KNOWN)
def range_kind(name: str) -> RangeKind:
    """Return the kind of range that an annotation's name marks."""
    return next((kind for pattern, kind in _RANGE_KINDS if pattern.match(name)), RangeKind.USER)


@lru_cache(maxsize=_KNOWN)
def is_mark(name: str) -> bool:
    """Whether an event filed as an operator is an annotation: old profilers made no difference, the compiler of new
    releases reports its phases that way."""
    return range_kind(name) in (RangeKind.STEP, RangeKind.OPTIMIZER, RangeKind.INPUT, RangeKind.COMPILE)


_WAITS = (
    ("stream wait event", WaitKind.STREAM_FOR_EVENT),
    ("stream sync", WaitKind.HOST_FOR_STREAM),
    ("event sync", WaitKind.HOST_FOR_EVENT),
    ("context sync", WaitKind.HOST_FOR_DEVICE),
    ("device sync", WaitKind.HOST_FOR_DEVICE),
)


@lru_cache(maxsize=_KNOWN)
def wait_kind(name: str) -> WaitKind:
    """Return the kind of wait by the name of a `cuda_sync` event: `Stream Sync`, `Stream Synchronize`, …"""
    lowered = name.lower()
    return next((kind for prefix, kind in _WAITS if lowered.startswith(prefix)), WaitKind.UNKNOWN)


_DEPENDS = re.compile(r"conv|attention", re.IGNORECASE)


@lru_cache(maxsize=_KNOWN)
def depends_on_values(name: str) -> bool:
    """Whether an operator's work depends on numbers among its arguments: strides and padding, causal or not."""
    return _DEPENDS.search(name) is not None


_SIDES = {"H": "HOST", "D": "DEVICE", "A": "DEVICE"}
_DIRECTION = re.compile(r"\b(?:mem(?:ory)?cpy\w*\s+)?([HDAP])to([HDAP])\b", re.IGNORECASE)
_LONG_DIRECTION = re.compile(r"(Host|Device)\s*(?:To|->)\s*(Host|Device)", re.IGNORECASE)


@lru_cache(maxsize=_KNOWN)
def copy_path(name: str, kind: Scalar) -> tuple[CopyDirection, Memory]:
    """Direction and host memory of a copy, from `Memcpy HtoD (Pageable -> Device)` or an argument `DtoH`."""
    memory = Memory.UNKNOWN
    if "ageable" in name:
        memory = Memory.PAGEABLE
    elif "inned" in name:
        memory = Memory.PINNED
    for text in (name, str(kind)):
        match = _DIRECTION.search(text)
        if match:
            source, target = match[1].upper(), match[2].upper()
            if "P" in (source, target):
                return CopyDirection.PEER_TO_PEER, memory
            return CopyDirection[f"{_SIDES[source]}_TO_{_SIDES[target]}"], memory
        match = _LONG_DIRECTION.search(text)
        if match:
            return CopyDirection[f"{match[1].upper()}_TO_{match[2].upper()}"], memory
    return CopyDirection.UNKNOWN, memory


_RANKS = re.compile(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]")
_RANK = re.compile(r"\d+")

_COLLECTIVE_KINDS = (
    ("all_reduce", "allreduce"),
    ("reduce_scatter", "reducescatter"),
    ("all_gather", "allgather"),
    ("all_to_all", "alltoall"),
    ("broadcast", "broadcast"),
    ("send_recv", "send"),
    ("send_recv", "recv"),
    ("send_recv", "sendrecv"),
)

_ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_MOST_ELEMENTS, _MOST_RANKS = 1 << 48, 1 << 31
"""No device holds as many, and no job has: such a number is not what its name says."""


def collective_of(args: Args) -> Collective | None:
    """Return the collective that a kernel's arguments name; None when they name none."""
    if not isinstance(args.collective, str) or not args.collective:
        return None
    kind = collective_kind(args.collective)
    elements = args.elements_out if kind == "all_gather" else args.elements_in
    element_bytes = _ELEMENT_BYTES.get(str(args.dtype), 0)
    known = isinstance(elements, int) and 0 <= elements < _MOST_ELEMENTS and element_bytes > 0
    group = args.group_description or args.group
    return Collective(
        kind=kind,
        size_bytes=int(elements or 0) * element_bytes if known else -1,
        group_size=args.group_size if isinstance(args.group_size, int) and 0 < args.group_size < _MOST_RANKS else -1,
        group=str(group) if group not in (None, "") else None,
        dtype=str(args.dtype) if args.dtype else None,
        members=_members(args.group_ranks) if isinstance(args.group_ranks, str) else None,
    )


@lru_cache(maxsize=4096)
def _members(text: str) -> tuple[int, ...] | None:
    """The ranks in `[0, 1, 2]`; None where the list is empty, cut short or none."""
    return tuple(map(int, _RANK.findall(text))) if _RANKS.fullmatch(text) else None


@lru_cache(maxsize=_KNOWN)
def collective_kind(name: str) -> str:
    """`_allgather_base`, `all_to_allv`, … in the schema's words; others as they are, in lower case."""
    squeezed = name.lower().replace("_", "")
    for kind, word in _COLLECTIVE_KINDS:
        if squeezed.startswith(word):
            return kind
    return name.lower()
