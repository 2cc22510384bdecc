"""Which sharded modules to keep whole from the forward to the backward pass: the most time saved per byte first.

As a finding carries it to a fixer, one piece of evidence a module, in that order:

to keep 1 of 24: layers.23   100663296 bytes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from diagnose.measure.comm.fsdp_modules import ROOT, ShardedModule, sharded_modules
from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.model import Evidence, Finding

_MODULE = re.compile(r"to keep (\d+) of \d+: (.+)$")


def by_worth(modules: Sequence[ShardedModule]) -> list[ShardedModule]:
    """Those that are gathered again, the ones first whose gathering costs the step most for the bytes it would hold.

    That is the time in which nothing is computed beside it; where all are hidden, the time that they take. Modules of
    one size do the same work, and the median stands for each. Of those the later ones come first: their parameters are
    used again soonest, and held for the shortest time.
    """
    again = [one for one in modules if one.again > 0 and one.gather_bytes > 0 and one.name != ROOT]
    hidden = not any(one.again_late_ns for one in again)
    costs: dict[int, list[float]] = {}
    for one in again:
        took = one.gather_ns * one.again / one.gathers if hidden else one.again_late_ns
        costs.setdefault(one.gather_bytes, []).append(took / one.gather_bytes)
    latest_first = again[::-1]  # and sorting leaves equal ones in their order
    return sorted(latest_first, key=lambda one: -median(costs[one.gather_bytes]))


def worth_keeping(measures: RankCollectives) -> list[Evidence]:
    """All of them as evidence of a finding; empty where FSDP named no modules."""
    found = by_worth(sharded_modules(measures))
    return [
        Evidence(f"to keep {at} of {len(found)}: {one.name}", one.gather_bytes, "bytes")
        for at, one in enumerate(found, 1)
    ]


def to_keep(finding: Finding, room_bytes: int | None) -> tuple[str, ...]:
    """The names of the modules that a finding would have kept, as many as there is room for; None: room is no matter.

    One that does not fit is passed over, smaller ones after it are not.
    """
    told = [
        (int(match[1]), match[2], int(one.value)) for one in finding.evidence if (match := _MODULE.match(one.measure))
    ]
    found = []
    for _, name, size in sorted(told):
        if room_bytes is not None:
            if size > room_bytes:
                continue
            room_bytes -= size
        found.append(name)
    return tuple(found)
