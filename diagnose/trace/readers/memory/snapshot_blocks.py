"""The blocks that the segments of a memory snapshot were cut into: what is held, by whom, and what it serves as.

    {"address": …, "size": …, "requested_size": …, "state": "active_allocated", "frames": […]}

Snapshots of 2023 give blocks no address: they follow each other within their segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from diagnose.trace.readers.columns import ids_of
from diagnose.trace.schema import MISSING, Blocks, BlockState, Int64, MemoryCategory, UInt8

_STATES = {
    "active_allocated": BlockState.HELD,
    "active_pending_free": BlockState.WAITING,
    "active_awaiting_free": BlockState.WAITING,
    "inactive": BlockState.FREE,
}
_ROLES = {
    "parameter": MemoryCategory.PARAMETER,
    "gradient": MemoryCategory.GRADIENT,
    "optimizer_state": MemoryCategory.OPTIMIZER_STATE,
}


def blocks_of(listed: object, number: Callable[[object], int], live: dict[Any, Any]) -> Blocks:
    """The blocks of all segments by address; `number` numbers stacks, `live` is what a live run has added.

    What has another form than torch and a live run give it is left out.
    """
    rows = [(segment, block) for segment in dicts(listed) for block in dicts(segment.get("blocks"))]

    def column(key: str) -> Int64:
        return ids_of([whole(block.get(key)) for _, block in rows])

    size, requested = column("size"), column("requested_size")
    blocks = Blocks.build(
        {
            "address": _addresses(rows),
            "size_bytes": size,
            "requested_bytes": np.where(requested > 0, requested, size),
            "state": [_STATES.get(str(block.get("state")), BlockState.UNKNOWN) for _, block in rows],
            "device": np.clip(ids_of([whole(segment.get("device")) for segment, _ in rows]), MISSING, (1 << 31) - 1),
            "stack": [number(block.get("frames")) for _, block in rows],
        }
    ).sorted_by_start()
    return replace(blocks, category=_categories(blocks, live.get("pieces")))


def _addresses(rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Int64:
    """Return the addresses of blocks; in older snapshots they follow from each block's place in its segment."""
    addresses: list[int] = []
    at, of = 0, None
    for segment, block in rows:
        if segment is not of:
            at, of = whole(segment.get("address")), segment
        addresses.append(whole(block.get("address")) if "address" in block else at)
        at = addresses[-1] + max(whole(block.get("size")), 0)
    return ids_of(addresses)


def _categories(blocks: Blocks, pieces: object) -> UInt8:
    """Per block what it serves as: what lies in it is listed by address."""
    found = np.zeros(len(blocks), np.uint8)
    known = [one for one in pieces if _is_piece(one)] if isinstance(pieces, list) else []
    if not known or not len(blocks):
        return found
    address = ids_of([one[0] for one in known])
    row = np.searchsorted(blocks.address, address, side="right") - 1
    inside = (row >= 0) & (address < blocks.address[row] + blocks.size_bytes[row])
    inside &= blocks.state[row] == BlockState.HELD
    found[row[inside]] = np.asarray([_ROLES[str(one[2])] for one in known], np.uint8)[inside]
    return found


def _is_piece(one: object) -> bool:
    return isinstance(one, list) and len(one) == 3 and whole(one[0]) >= 0 and str(one[2]) in _ROLES


def dicts(listed: object) -> list[dict[str, Any]]:
    """The dictionaries of a list; none where it is no list."""
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def whole(value: object) -> int:
    """A whole number as it is; -1 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else MISSING
