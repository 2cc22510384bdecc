"""What the allocator holds of a device and cannot give back."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.collect.inside.probes.blocks.allocator_fragmentation import fragments

MIB = 1 << 20


def segment(*pieces: int, kind: str = "large", expands: bool = False) -> dict[str, Any]:
    """A segment of pieces in MiB; those below zero are free."""
    blocks = [{"size": abs(size) * MIB, "state": "inactive" if size < 0 else "active_allocated"} for size in pieces]
    total = MIB * sum(map(abs, pieces))
    return {"segment_type": kind, "is_expandable": expands, "total_size": total, "blocks": blocks}


@pytest.mark.parametrize(
    ("segments", "size"),
    [
        ([], 0),
        ([segment(-20)], 0),  # is given back as a whole
        ([segment(12, -8)], 8),
        ([segment(10, -30, kind="large", expands=True)], 10),  # the second page is given back
        ([segment(10, -30, 10, -10, expands=True)], 20),
        ([segment(15, -1, 4, -20, 20, expands=True)], 1),
        ([segment(1, -3, kind="small", expands=True), segment(2, -2)], 3),
    ],
)
def test_fragments_are_what_is_free_in_no_piece_that_could_be_given_back(
    segments: list[dict[str, Any]], size: int
) -> None:
    assert fragments(segments) == size * MIB
