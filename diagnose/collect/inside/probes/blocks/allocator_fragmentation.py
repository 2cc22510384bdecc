"""The memory that the allocator holds and cannot give back: unused parts of segments and pages in use.

A limit of memory is one on what the allocator has taken of the device, not on what tensors hold. When memory is short
it gives back what is unused as a whole: a segment, or a page of one that expands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PAGE = {"small": 2 << 20, "large": 20 << 20}
"""Page sizes of segments that expand, by the kind of their pool (c10's `kSmallBuffer` and `kLargeBuffer`)."""


def fragments(segments: Iterable[Mapping[str, Any]]) -> int:
    """Bytes of `torch.cuda.memory_snapshot()` that are free, in no piece that could be given back."""
    return sum(_of_segment(segment) for segment in segments)


def _of_segment(segment: Mapping[str, Any]) -> int:
    used = [(at, at + size) for at, size, free in _pieces(segment) if not free]
    if not used:
        return 0
    held = sum(end - start for start, end in used)
    page = _PAGE.get(segment.get("segment_type", "")) if segment.get("is_expandable") else None
    if page is None:
        return int(segment["total_size"]) - held
    taken, until = 0, 0
    for start, end in used:
        first, last = max(until, start // page * page), min(-(-end // page) * page, int(segment["total_size"]))
        taken += max(0, last - first)
        until = max(until, last)
    return taken - held


def _pieces(segment: Mapping[str, Any]) -> Iterable[tuple[int, int, bool]]:
    """Offset, size, and whether it is free; in the order of the addresses."""
    at = 0
    for block in segment["blocks"]:
        yield at, int(block["size"]), block["state"] == "inactive"
        at += int(block["size"])
