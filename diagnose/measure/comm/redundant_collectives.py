"""How much shorter the counted steps would be if some collectives did not take place at all.

With a collective go the copies that pack and unpack it, what it takes from the compute beside it, and the host's time
to issue it: hidden behind compute, a collective that nobody needs still costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.overheads import issuing, packing, slowed
from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import gained_ns
from diagnose.model import Evidence
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool

_CONTENDED = 1.5
"""A collective that takes so many times as long as the fastest of its kind shares links and memory with other work;
what it takes longer is waiting for other ranks, which would wait at the next one instead."""


@dataclass(frozen=True, eq=False, slots=True)
class RedundantCollectives:
    """The saving of leaving out collectives."""

    gain_ns: int
    """The gain over all counted steps together."""
    claims: Intervals
    """The time of the collectives, and of the copies that pack and unpack them."""
    exposed: Intervals
    """The part of their time in which nothing was computed."""
    packing_ns: int
    """Time of copies that pack and unpack them."""
    slowing_ns: int
    """The time by which they slow the compute beside them."""
    cut: Cut | None
    """The change itself; None without a device."""

    def beside(self, steps: int, copies: str) -> tuple[Evidence, ...]:
        """Return the cost of the collectives besides their own time, per step; empty where no device shows it. `copies`
        names the copies.
        """
        if self.cut is None:
            return ()
        return (
            Evidence(copies, self.packing_ns // steps, "ns"),
            Evidence("by which these slow the compute beside them", self.slowing_ns // steps, "ns"),
        )


def without_collectives(measures: RankCollectives, rows: Bool) -> RedundantCollectives:
    """Return the saving if some collectives (rows of `measures.communication`) are left out."""
    comm, trace, counted = measures.communication, measures.trace, measures.counted
    goes = np.where(rows, np.minimum(comm.duration_ns, _CONTENDED * comm.transfer_ns), 0).astype(np.int64)
    time = Intervals.of(comm.end_ns - goes, comm.end_ns) & counted
    exposed = time - measures.compute
    if not measures.has_device:
        return RedundantCollectives(exposed.total_ns, time, exposed, 0, 0, None)
    copies = packing(measures, rows)
    scale = slowed(measures, rows, copies)
    inside = counted.contains(trace.device.start_ns)
    length = trace.device.end_ns - trace.device.start_ns
    slowing = int(((1 - scale) * length)[inside & ~copies].sum())
    scale[copies] = 0
    scale[comm.row] = 1 - goes / np.maximum(comm.duration_ns, 1)
    packed = Intervals.of_rows(trace.device, copies) & counted
    stays = measures.rows & ~copies
    stays[comm.row[rows]] = False
    claims = time | packed
    alone = claims - Intervals.of_rows(trace.device, stays)
    host = issuing(measures, rows)
    most = alone.total_ns + slowing + ((host & measures.idle_of()) - claims).total_ns
    cut = Cut(host=host, scale=scale)
    return RedundantCollectives(gained_ns(measures, cut, most), claims, exposed, packed.total_ns, slowing, cut)
