"""The steps of all ranks together as they would be if collectives moved their bytes in no time.

    blocking = blocking_communication(measures, job)
    blocking.saved_ns          # of the mean step: what transfers really cost it

The replay graphs of the ranks (`diagnose.measure.replay.replay`) become one: a collective ends so long after the last
rank has arrived as its transfer takes, on all ranks together. Exposed communication is what no compute hides on one
rank; it blocks only as far as the step would end sooner without it. What a rank waits for a late one stays: no faster
network takes it away. Compute that runs beside a collective is taken to last as long as it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.job.matching import Matched
from diagnose.measure.job.ranks import Job
from diagnose.measure.replay.graph import NEVER
from diagnose.measure.replay.replay import TRUSTED_OFF
from diagnose.trace.schema import MISSING, Int64

_MOST_NODES = 4_000_000
"""The most nodes of all ranks together; more take longer than their answer is worth."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """The time that transfers cost the mean counted step of the mean rank."""

    exposed_ns: int
    """Communication that nothing hides, waiting included."""
    saved_ns: int
    """What the step would lose if every transfer took no time, and every wait for a late rank stayed."""
    off: float
    """The share of it by which the unchanged replay misses the measured step."""

    @property
    def trusted(self) -> bool:
        """Whether the replay lands near enough to be believed."""
        return self.off <= TRUSTED_OFF


def blocking_communication(measures: Sequence[Measures], job: Job) -> Blocking | None:
    """By a replay across ranks; None where their collectives could not be matched, or a rank has no device."""
    taken = [measures[number] for number in job.given]
    if len(taken) < 2 or not job.matched or not all(one.has_device and one.step_count for one in taken):
        return None
    if sum(len(one.replay.graph) for one in taken) > _MOST_NODES:
        return None
    across = _Across(taken, job)
    unchanged, without = across.solved(1.0), across.solved(0.0)
    if unchanged is None or without is None:
        return None
    measured = [one.total_ns / one.step_count for one in taken]
    base = _mean_steps(taken, unchanged)
    return Blocking(
        exposed_ns=round(np.mean([one.accounting.exposed_comm / one.step_count for one in taken])),
        saved_ns=max(round(np.mean(np.array(base) - np.array(_mean_steps(taken, without)))), 0),
        off=float(np.max(np.abs(np.array(base) / np.array(measured) - 1))),
    )


def _mean_steps(taken: Sequence[Measures], times: Sequence[Int64]) -> list[float]:
    return [one.replay.length_of(when) / one.step_count for one, when in zip(taken, times, strict=True)]


class _Across:
    """All ranks' graphs as one; node numbers go on from rank to rank."""

    def __init__(self, taken: Sequence[Measures], job: Job) -> None:
        graphs = [one.replay.graph for one in taken]
        sizes = [len(graph) for graph in graphs]
        self._begin = np.concatenate(([0], np.cumsum(sizes)))
        offset = [row.clock_ns or 0 for row in job.table]
        clock = [graph.origin_ns + graph.device_shift_ns - ahead for graph, ahead in zip(graphs, offset, strict=True)]
        self._origin = [moment - min(clock) for moment in clock]
        shifted = list(zip(graphs, self._begin[:-1].tolist(), strict=True))
        self._first = np.concatenate([graph.first + begin for graph, begin in shifted])
        self._second = np.concatenate([graph.second + begin for graph, begin in shifted])
        self._first_ns = np.concatenate([graph.first_ns for graph in graphs])
        self._second_ns = np.concatenate([graph.second_ns for graph in graphs])
        self._members: list[Int64] = []
        """Per collective, its node on each rank that takes part."""
        self._lengths: list[Int64] = []
        self._transfers: list[Int64] = []
        for group in job.matched:
            self._add(group, taken, offset)

    def _add(self, group: Matched, taken: Sequence[Measures], offset: Sequence[int]) -> None:
        nodes = np.full(group.rows.shape, MISSING, np.int64)
        for column, member in enumerate(group.members):
            rows = group.rows[:, column]
            own = taken[member].replay.graph.work_node[np.maximum(rows, 0)]
            nodes[:, column] = np.where((rows >= 0) & (own > 0), own + self._begin[member], MISSING)
        clock = np.array([offset[member] for member in group.members])
        start, end = group.start_ns - clock, group.end_ns - clock
        transfer = np.maximum(end - start.max(axis=1, keepdims=True), 0)
        for row in np.flatnonzero(group.comparable & (nodes != MISSING).all(axis=1)).tolist():
            self._members.append(nodes[row])
            self._lengths.append(group.duration_ns[row])
            self._transfers.append(transfer[row])

    def solved(self, scale: float) -> list[Int64] | None:
        """Return when every node of every rank happens, transfers `scale` times as long; None where ranks wait in a
        circle."""
        count = int(self._begin[-1])
        times = [0] * count
        collective = np.full(count, MISSING, np.int64)
        for number, nodes in enumerate(self._members):
            collective[nodes] = number
        of_node, waiting = collective.tolist(), [len(nodes) for nodes in self._members]
        arrived = [0] * len(self._members)
        after, missing = self._followers()
        first, first_ns = self._first.tolist(), self._first_ns.tolist()
        second, second_ns = self._second.tolist(), self._second_ns.tolist()
        length = dict(zip(_flat(self._members), _flat(self._lengths), strict=True))
        transfer = dict(zip(_flat(self._members), _flat(self._transfers), strict=True))
        ready = [node for node in range(count) if missing[node] == 0]
        origins = dict(zip(self._begin[:-1].tolist(), self._origin, strict=True))
        done = 0
        while ready:
            node = ready.pop()
            if node in origins:
                times[node] = origins[node]
                finished = [node]
            else:
                when = max(times[first[node]] + first_ns[node], times[second[node]] + second_ns[node])
                number = of_node[node]
                if number == MISSING:
                    times[node] = when
                    finished = [node]
                else:
                    arrived[number] = max(arrived[number], when - length[node])
                    waiting[number] -= 1
                    finished = self._members[number].tolist() if waiting[number] == 0 else []
                    for one in finished:
                        times[one] = arrived[number] + round(transfer[one] * scale)
            for one in finished:
                done += 1
                for next_ in after[one]:
                    missing[next_] -= 1
                    if missing[next_] == 0:
                        ready.append(next_)
        if done < count:
            return None
        every = np.array(times, np.int64)
        return [every[begin:end] for begin, end in zip(self._begin[:-1], self._begin[1:], strict=True)]

    def _followers(self) -> tuple[list[list[int]], list[int]]:
        """Per node, those that wait for it; and for how many each waits."""
        count = len(self._first)
        after: list[list[int]] = [[] for _ in range(count)]
        missing = [0] * count
        own = np.arange(count)
        for before, weight in ((self._first, self._first_ns), (self._second, self._second_ns)):
            real = (weight > NEVER) & (before != own)
            for node, one in zip(np.flatnonzero(real).tolist(), before[real].tolist(), strict=True):
                after[one].append(node)
                missing[node] += 1
        return after, missing


def _flat(parts: Sequence[Int64]) -> list[int]:
    return [int(one) for part in parts for one in part.tolist()]
