"""The meaning of numbers and names in Nsight Systems' files, in the terms of the schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from diagnose.trace.readers.kineto.meaning import range_kind
from diagnose.trace.schema import CopyDirection, Memory, RangeKind

_COPIES = {
    1: ("HtoD", CopyDirection.HOST_TO_DEVICE),
    2: ("DtoH", CopyDirection.DEVICE_TO_HOST),
    3: ("HtoA", CopyDirection.HOST_TO_DEVICE),
    4: ("AtoH", CopyDirection.DEVICE_TO_HOST),
    5: ("AtoA", CopyDirection.DEVICE_TO_DEVICE),
    6: ("AtoD", CopyDirection.DEVICE_TO_DEVICE),
    7: ("DtoA", CopyDirection.DEVICE_TO_DEVICE),
    8: ("DtoD", CopyDirection.DEVICE_TO_DEVICE),
    9: ("HtoH", CopyDirection.HOST_TO_HOST),
    10: ("PtoP", CopyDirection.PEER_TO_PEER),
    11: ("HtoD", CopyDirection.HOST_TO_DEVICE),  # 11 to 13 migrate managed memory
    12: ("DtoH", CopyDirection.DEVICE_TO_HOST),
    13: ("DtoD", CopyDirection.DEVICE_TO_DEVICE),
}
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_HOST_SIDE = {"Pageable": Memory.PAGEABLE, "Pinned": Memory.PINNED}


@cache
def copy_path(copy_kind: int, source: int, target: int) -> tuple[str, CopyDirection, Memory]:
    """Name (`Memcpy HtoD (Pageable -> Device)`, as torch.profiler has it), direction and host memory of a copy."""
    short, direction = _COPIES.get(copy_kind, ("", CopyDirection.UNKNOWN))
    ends = [_MEMORIES.get(kind, "Unknown") for kind in (source, target)]
    memory = next((_HOST_SIDE[end] for end in ends if end in _HOST_SIDE), Memory.UNKNOWN)
    if direction is CopyDirection.UNKNOWN:
        sides = tuple("H" if end in _HOST_SIDE else "D" if end in ("Device", "Array") else "" for end in ends)
        short = "to".join(sides) if all(sides) else ""
        direction = next((known for name, known in _COPIES.values() if name == short), CopyDirection.UNKNOWN)
    return f"Memcpy {short} ({ends[0]} -> {ends[1]})".replace("  ", " "), direction, memory


_API_VERSION = re.compile(r"_v\d{4,}$")


def call_name(text: str) -> str:
    """`cudaLaunchKernel_v7000` without the version of the runtime it came with; `cuMemcpyHtoD_v2` is a name."""
    return _API_VERSION.sub("", text)


# torch writes `aten::mm, op_id = 317177`, `AddmmBackward0, seq = 4, op_id = 9, sizes = [[2, 3]]`.
_TORCH = re.compile(r", (?:seq|op_id|sizes|stashed seq|stashed tid|input_op_ids) = ")
_SEQUENCE = re.compile(r", (?:stashed )?seq = (\d{1,18})(?!\d)")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, \w+ = |$)")
_OPERATOR = re.compile(r"[a-z_][a-z0-9_]*::[\w.]+$|autograd::engine::|\w+Backward\d*$|torch::")


@dataclass(frozen=True, slots=True)
class Mark:
    """The meaning of an NVTX range."""

    name: str
    is_operator: bool = False
    sequence: int = -1
    shapes: str | None = None


def mark_of(text: str) -> Mark:
    """The name of an NVTX range and, where torch wrote it, what it tells of the operator."""
    cut = _TORCH.search(text)
    if cut is None:
        return Mark(text)
    name, rest = text[: cut.start()], text[cut.start() :]
    if not _is_operator(name):
        return Mark(name)
    sequence, sizes = _SEQUENCE.search(rest), _SIZES.search(rest)
    return Mark(name, True, int(sequence[1]) if sequence else -1, sizes[1].replace(" ", "") if sizes else None)


@cache
def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None and range_kind(name) is RangeKind.USER


_KINDS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"(?:optimi[sz]er|optim|opt)(?:[ ._:-]*(?:step|update))?\W*$", RangeKind.OPTIMIZER),
        (r"(?:\w+\.)?backward(?:[ _-]?(?:pass|step))?\W*$", RangeKind.BACKWARD),
        (r"(?:nccl|rccl)[A-Z_:]", RangeKind.COLLECTIVE),
        (r"(?:save|write|store)[ _-]?checkpoint|checkpoint[ _-]?(?:save|write|saving|writing)", RangeKind.CHECKPOINT),
    )
)
_STEP = re.compile(
    r"(?:(?:train(?:ing)?|global|profiler?|measured?)[ _.-]*)?(?:step|iter(?:ation)?|batch)[ _.:#=-]*\d*\W*$",
    re.IGNORECASE,
)


@cache
def nvtx_kind(name: str) -> RangeKind:
    """Return the kind of range that a program's own NVTX name marks, by the words that programs use; never STEP unless
    torch wrote it.
    """
    known = range_kind(name)
    if known is not RangeKind.USER:
        return known
    return next((kind for pattern, kind in _KINDS if pattern.match(name)), RangeKind.USER)


@cache
def looks_like_a_step(name: str) -> bool:
    """Whether a name is one that programs give to a training step: `step_12`, `iteration 3`, `train_step`."""
    return _STEP.match(name) is not None


_METRICS = {
    "SMs Active": "gpu.sm_activity",
    "SM Active": "gpu.sm_activity",
    "Tensor Active": "gpu.tensor_activity",
    "SM Instructions/Tensor Active": "gpu.tensor_activity",
}


@cache
def metric_name(text: str) -> str:
    """The counter that a sampled metric is: ours where it means the same, else its own name after `nsight.`."""
    plain = re.sub(r"\s*\[.*\]$", "", text).strip()
    return _METRICS.get(plain, f"nsight.{text.strip()}")
