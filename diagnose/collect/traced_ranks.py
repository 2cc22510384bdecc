"""Chooses the ranks of a job that are traced: all are watched. The standard library alone.

Few ranks are all traced: who waits for whom needs each of them. Of many, the first, the last and the slowest one are,
as more recordings would cost more than they say. The slowest is chosen while the job runs, by whoever watches it: the
rank whose steps end last and that waits longest for its input, against the others of its host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low

from .records import MOST_STEPS

ALL, SOME = "all", "some"
MOST_TRACED_WHOLE = 4
"""Jobs of so many ranks are traced whole unless told otherwise."""
SLOWEST = "slowest_rank"
"""The file of the run folder that holds the slowest rank, as far as is known."""
_STEPS = 20


def is_traced(wanted: object, rank: int, world_size: int, folder: Path) -> bool:
    """`wanted` is `all`, `some` (see above) or a list of ranks; `folder` is the run folder."""
    if isinstance(wanted, list):
        return rank in wanted
    if wanted == ALL or world_size <= MOST_TRACED_WHOLE:
        return True
    if rank in (0, world_size - 1):
        return True
    with suppress(OSError, ValueError):
        return bool(rank == json.loads((folder / SLOWEST).read_text()))
    return False


class Slowest:
    """Follows the steps of a host's ranks."""

    def __init__(self) -> None:
        self._ends_ns: dict[int, list[int]] = {}
        self._input_ns: dict[int, list[int]] = {}

    def see(self, rank: int, ends_ns: Sequence[int], input_ns: Sequence[int]) -> None:
        """Steps of a rank that have ended."""
        known = self._ends_ns.setdefault(rank, [])
        if len(known) < MOST_STEPS:
            known.extend(ends_ns)
            self._input_ns.setdefault(rank, []).extend(input_ns)

    @property
    def rank(self) -> int | None:
        """The slowest over the last steps that all have taken; None before there are any, and of a rank alone."""
        count = min(map(len, self._ends_ns.values()), default=0)
        if count < 2 or len(self._ends_ns) < 2:
            return None
        steps = range(max(count - _STEPS, 0), count)
        late = dict.fromkeys(self._ends_ns, 0)
        for columns in (self._ends_ns, self._input_ns):
            middle = [median_low(column[step] for column in columns.values()) for step in steps]
            for rank, column in columns.items():
                late[rank] += median_low(column[step] - usual for step, usual in zip(steps, middle, strict=True))
        return max(late, key=lambda rank: (late[rank], -rank))
