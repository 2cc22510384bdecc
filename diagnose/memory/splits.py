"""Ways to compute only a part of a block again, from what its operators were seen to do.

Every choice among the few operators that take longest is priced: what their results hold, and which part of the forward
pass remains. Of these stay the ones that nothing else beats, a mixture of whole blocks included: the corners of the
convex hull of bytes over time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from diagnose.memory.chain import Block, Split
from diagnose.model import Scalar

MOST = 6
"""Operators that are combined: 63 choices."""
LEAST = 0.05
"""A share of a block's time; what takes less is not worth a line of source."""
PAGE_BYTES = 20 << 20
"""The page that torch's allocator maps and gives back at once. A result that stays among others that go holds parts of
two pages or more beside its own bytes, about one in all: on an H200 plans with 130 MB to spare for 14 of them did not
run."""
LARGE_BYTES = 10 << 20
"""Results of which the allocator lays on pages of their own; smaller ones share theirs."""


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    held_bytes: int
    kept_bytes: int
    share: float
    """The share of the block's time."""


def splits(told: Mapping[str, Scalar], block: Block) -> tuple[Split, ...]:
    """Return the ways to keep a part of a block's operators that a site describes, those that hold least first."""
    operators = _operators(told)
    found = [_price(some, block) for count in range(1, len(operators) + 1) for some in combinations(operators, count)]
    return _corners([one for one in found if 0 < one.held_bytes < block.saved_bytes], block)


def _operators(told: Mapping[str, Scalar]) -> list[_Operator]:
    names = _words(told, "operators")
    whole = told.get("operators_ns")
    columns = [[int(word) for word in _words(told, f"operator_{what}")] for what in ("bytes", "kept_bytes", "ns")]
    if not isinstance(whole, int) or whole <= 0 or any(len(column) != len(names) for column in columns):
        return []
    rows = zip(names, *columns, strict=True)
    found = [_Operator(name, held, kept, took / whole) for name, held, kept, took in rows]
    return sorted((one for one in found if one.share >= LEAST), key=lambda one: -one.share)[:MOST]


def _price(some: Sequence[_Operator], block: Block) -> Split:
    held = sum(one.held_bytes for one in some)
    left = max(0.0, 1 - sum(one.share for one in some))
    extra = held - sum(one.kept_bytes for one in some)
    names = tuple(sorted(one.name for one in some))
    torn = PAGE_BYTES * sum(one.held_bytes >= LARGE_BYTES for one in some)
    return Split(names, held, round(left * block.recompute_ns), max(0, extra), torn)


def _corners(found: Sequence[Split], block: Block) -> tuple[Split, ...]:
    """Keep the splits on the lower convex hull of held bytes against time; to keep all and nothing are its ends."""
    hull: list[tuple[int, int, Split | None]] = [(0, block.recompute_ns, None)]
    ends: tuple[int, int, Split | None] = (block.saved_bytes, 0, None)
    rows = sorted((one.held_bytes, one.recompute_ns, len(one.operators), one.operators, one) for one in found)
    for held, cost, split in [*((row[0], row[1], row[4]) for row in rows), ends]:
        while len(hull) > 1 and not _is_below(hull[-2], hull[-1], (held, cost, split)):
            hull.pop()
        if held > hull[-1][0] and cost < hull[-1][1]:
            hull.append((held, cost, split))
    return tuple(split for _, _, split in hull if split is not None)


def _is_below(before: tuple[int, int, object], point: tuple[int, int, object], after: tuple[int, int, object]) -> bool:
    """Whether a point lies below the line between its neighbours."""
    return (point[1] - before[1]) * (after[0] - before[0]) < (after[1] - before[1]) * (point[0] - before[0])


def _words(told: Mapping[str, Scalar], name: str) -> list[str]:
    text = told.get(name)
    return text.split(",") if isinstance(text, str) and text else []
