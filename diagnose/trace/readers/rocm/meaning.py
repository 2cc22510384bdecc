"""The meaning of names that AMD's profilers write: kernels, domains of calls, copies, RCCL's calls."""

from __future__ import annotations

import enum
import re
from functools import cache, lru_cache

from diagnose.trace.readers.kineto.meaning import collective_kind
from diagnose.trace.schema import CopyDirection, WorkKind


class Domain(enum.Enum):
    """The domain of a recorded host call."""

    CALL = "call"
    """HIP, HSA, and libraries that drive the device."""
    MARKER = "marker"
    """ROCTX: the program's own annotations."""
    RCCL = "rccl"


def domain_of(category: str) -> Domain:
    """The domain of `HIP_RUNTIME_API_EXT`, `hip_api`, `MARKER_CORE_API`, `RCCL_API`, …"""
    lowered = category.lower()
    if "marker" in lowered or "roctx" in lowered:
        return Domain.MARKER
    return Domain.RCCL if "rccl" in lowered else Domain.CALL


_SUFFIX = re.compile(r"(?:\s*\[clone \.kd\]|\.kd)+$")


@lru_cache(maxsize=1 << 16)
def kernel_name(name: str) -> str:
    """A kernel's name without what the code object adds: `gemm [clone .kd]` and `"gemm.kd"` are `gemm`."""
    name = name.strip()
    if len(name) >= 2 and name.startswith('"') and name.endswith('"'):
        name = name[1:-1]
    return _SUFFIX.sub("", name)


_DIRECTIONS = tuple(
    (re.compile(pattern, re.IGNORECASE), direction)
    for pattern, direction in (
        (r"host_?to_?device|H2D|HtoD", CopyDirection.HOST_TO_DEVICE),
        (r"device_?to_?host|D2H|DtoH", CopyDirection.DEVICE_TO_HOST),
        (r"device_?to_?device|D2D|DtoD", CopyDirection.DEVICE_TO_DEVICE),
        (r"host_?to_?host|H2H|HtoH", CopyDirection.HOST_TO_HOST),
        (r"peer|P2P|PtoP", CopyDirection.PEER_TO_PEER),
    )
)
_SET = re.compile(r"fill|memset", re.IGNORECASE)


@cache
def direction_of(name: str) -> CopyDirection:
    """The direction in `MEMORY_COPY_HOST_TO_DEVICE`, `CopyDeviceToHost`, `HtoD`."""
    return next((direction for pattern, direction in _DIRECTIONS if pattern.search(name)), CopyDirection.UNKNOWN)


@cache
def copy_kind(name: str) -> WorkKind:
    """Whether what the copy engine did was a set (`FillBuffer`) or a copy."""
    return WorkKind.SET if _SET.search(name) else WorkKind.COPY


_RCCL_KINDS = {
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "send_recv",
    "reduce",
    "gather",
    "scatter",
    "alltoallv",
    "bcast",
}


@cache
def rccl_kind(function: str) -> str | None:
    """Return the collective of an RCCL call (`ncclAllReduce` → `all_reduce`); None for one that moves no data."""
    kind = collective_kind(re.sub(r"^(?:p?nccl|mscclpp_nccl)", "", function, flags=re.IGNORECASE))
    if kind == "bcast":
        return "broadcast"
    return kind if kind in _RCCL_KINDS else None


_RCCL_TYPES = (
    ("int8", "char", 1),
    ("uint8", "uint8", 1),
    ("int32", "int", 4),
    ("uint32", "uint32", 4),
    ("int64", "int64", 8),
    ("uint64", "uint64", 8),
    ("float16", "half", 2),
    ("float32", "float", 4),
    ("float64", "double", 8),
    ("bfloat16", "bfloat16", 2),
)
"""The types in the order of `ncclDataType_t`, whose numbers are part of RCCL's binary interface."""


@cache
def rccl_type(text: str) -> tuple[str, int] | None:
    """The name and bytes of an element, from `ncclFloat32`, `ncclHalf` or the number of the enumerator."""
    word = text.strip().lower().removeprefix("nccl")
    for number, (name, alias, size) in enumerate(_RCCL_TYPES):
        if word in (name, alias, str(number)):
            return name, size
    return None
