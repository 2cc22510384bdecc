"""When the training thread was in what issued some collectives, and which lines of source are theirs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.views.names import named
from diagnose.model import Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

_ISSUES = re.compile(r"^c10d::\w")


def issuing_of(measures: RankCollectives, rows: Bool) -> Intervals:
    """Return when the training thread was issuing collectives (rows of `measures.communication`): the backward pass for
    those that autograd issued, in which the training thread waits; for the others, from the first to the last of each
    step's phase and round."""
    comm, passes = measures.communication, measures.backward_passes
    mine = comm.where(rows)
    within = passes.holding(mine.issued_ns)
    held = np.unique(within[within != MISSING])
    found = [Intervals.of_rows(passes, held)]
    own = mine.where(within == MISSING)
    if len(own):
        key = np.stack((own.step, own.phase.astype(np.int64), own.round), axis=1)
        _, same = np.unique(key, axis=0, return_inverse=True)
        same = same.reshape(-1)
        first = np.full(int(same.max()) + 1, np.iinfo(np.int64).max)
        last = np.zeros(len(first), np.int64)
        np.minimum.at(first, same, own.issued_ns)
        np.maximum.at(last, same, own.issued_ns + 1)
        found.append(Intervals.of(first, last))
    return Intervals.union(found)


def issuing_ops(measures: RankCollectives, rows: Int64) -> Intervals:
    """The operators of torch.distributed in which the host issued some collectives; those of others are missing."""
    ops, issued_ns = measures.trace.ops, np.sort(measures.communication.issued_ns[rows])
    mine = np.flatnonzero(named(measures.trace.names, ops.name, _ISSUES))
    starts, ends = ops.start_ns[mine], ops.end_ns[mine]
    count = np.searchsorted(issued_ns, ends) - np.searchsorted(issued_ns, starts)
    return Intervals.of(starts[count > 0], ends[count > 0])


def places_by_cost(measures: RankCollectives, cost_ns: Int64) -> tuple[Place, ...]:
    """The lines that issued collectives, by what each kind of them costs (a number for every collective), most first.

    How long the host was in a line says nothing about that: a backward pass is long, a call of a collective short.
    """
    comm = measures.communication
    shares: dict[Place, float] = defaultdict(float)
    for kind in np.unique(comm.kind[cost_ns > 0]).tolist():
        rows = (comm.kind == kind) & (cost_ns > 0)
        part = float(cost_ns[rows].sum() / cost_ns.sum())
        for place in measures.places(issuing_of(measures, rows)):
            shares[replace(place, share=None)] += part * (1.0 if place.share is None else place.share)
    by_cost = sorted(shares.items(), key=lambda item: -item[1])
    return tuple(replace(place, share=share) for place, share in by_cost)
