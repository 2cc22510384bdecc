"""The counted steps as they would be without a cause, by replaying the graph of what waits for what.

    replay = measures.replay
    replay.off                       # by what part of it the unchanged replay misses the measured time
    replay.trusted                   # whether that is within 2 %; else predictions are bounds
    replay.saved_ns(Cut(waits=...))  # what all counted steps together would lose

A replay begins with the first counted step: what came before is as recorded, so that the host's lead at that moment
is kept. Where a cut lets the device run faster than the host can feed it, a step takes what the host takes.

What it does not know: other ranks (a collective lasts as long as it did, whoever it waited for), loader workers (a
wait for data is host time), and dependencies between threads that work side by side.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from diagnose.measure.launch import Launches
from diagnose.measure.replay_build import replay_graph
from diagnose.measure.replay_cuts import Cut, changed
from diagnose.measure.replay_graph import ReplayGraph, solved
from diagnose.measure.steps import StepSpans
from diagnose.trace import Trace
from diagnose.trace.schema import Bool, Int64

__all__ = ["TRUSTED_OFF", "Cut", "Replay"]

TRUSTED_OFF = 0.02
"""An unchanged replay that misses the measured time by more than this part predicts bounds only."""


class Replay:
    """Cached replays of one rank's counted steps. Times are integer nanoseconds."""

    def __init__(self, trace: Trace, launches: Launches, rows: Bool, steps: StepSpans, main: int) -> None:
        self.trace, self._launches, self._rows, self._steps, self._main = trace, launches, rows, steps, main

    @cached_property
    def graph(self) -> ReplayGraph:
        """What waits for what."""
        begin = min(self._since, int(self._steps.start_ns[0])) if len(self._steps) else np.iinfo(np.int64).max
        return replay_graph(self.trace, self._launches, self._main, int(begin))

    @cached_property
    def unchanged(self) -> Int64:
        """When every node of the graph happens if nothing changes."""
        graph = self.graph
        return solved(graph.first, graph.first_ns, graph.second, graph.second_ns)

    @cached_property
    def off(self) -> float:
        """How far the unchanged replay is from the measured time of all counted steps, as a part of it; 1.0 if none."""
        measured = int(self._steps.length_ns.sum())
        if measured == 0 or len(self.graph) == 1 or not self._rows.any():
            return 1.0
        return abs(self._length(self.unchanged) - measured) / measured

    @property
    def trusted(self) -> bool:
        """Whether predictions are more than bounds."""
        return self.off <= TRUSTED_OFF

    def times(self, cut: Cut) -> Int64:
        """When every node of the graph happens under a cut."""
        graph = self.graph
        first_ns, second_ns = changed(graph, self.trace, cut, self._since)
        return solved(graph.first, first_ns, graph.second, second_ns)

    def saved_ns(self, cut: Cut, after: Cut | None = None) -> int:
        """What all counted steps together would lose under a cut, beyond what they lose under another one already."""
        base = self.unchanged if after is None else self.times(after)
        both = cut if after is None else _together(after, cut)
        return max(self._steady(base) - self._steady(self.times(both)), 0)

    def step_ns(self, cut: Cut | None = None) -> float:
        """The mean counted step under a cut; 0.0 without steps."""
        times = self.unchanged if cut is None else self.times(cut)
        return self._steady(times) / len(self._steps) if len(self._steps) else 0.0

    @property
    def begin_ns(self) -> int:
        """When the first counted step begins in the unchanged replay, relative to the graph's origin."""
        return self._border(self.unchanged, *self._borders[0])

    @property
    def end_nodes(self) -> tuple[Int64, int]:
        """The nodes of which the latest ends the last counted step, and how long after it that is."""
        return self._borders[1]

    @cached_property
    def _since(self) -> int:
        return int(self._steps.host_start_ns[0]) if len(self._steps) else 0

    def _steady(self, times: Int64) -> int:
        """The length of all steps, not below what the host takes for them: its lead at the first step runs out."""
        as_recorded, length = self._length(self.unchanged), self._length(times)
        first, last = self._host(times, self._since), self._host(times, int(self._steps.host_end_ns[-1]))
        return max(length, min(last - first, as_recorded))

    def _length(self, times: Int64) -> int:
        first, last = self._borders
        return self._border(times, *last) - self._border(times, *first)

    @cached_property
    def _borders(self) -> tuple[tuple[Int64, int], tuple[Int64, int]]:
        """Where the counted steps begin and end: the latest of some nodes, and how long before or after."""
        steps = self._steps
        return (
            self._border_nodes(int(steps.start_ns[0]), int(steps.host_start_ns[0])),
            self._border_nodes(int(steps.end_ns[-1]), int(steps.host_end_ns[-1])),
        )

    def _border_nodes(self, border_ns: int, mark_ns: int) -> tuple[Int64, int]:
        device, node = self.trace.device, self.graph.work_node
        launched = np.flatnonzero(self._rows & (self._launches.start_ns < mark_ns))
        if len(launched) and device.end_ns[launched].max() == border_ns:
            return node[launched], 0
        ends = np.flatnonzero(self._rows & (device.end_ns == border_ns))
        if len(ends):
            return node[ends[-1:]], 0
        begins = np.flatnonzero(self._rows & (device.start_ns == border_ns))
        if len(begins):
            row = begins[:1]
            return node[row], -int((device.end_ns - device.start_ns)[row][0])
        moment = border_ns - self.graph.origin_ns
        place = self._place(moment)
        before = self.graph.on_training[place : place + 1]
        return before, moment - int(self.graph.observed_ns[before][0])

    @staticmethod
    def _border(times: Int64, nodes: Int64, after_ns: int) -> int:
        return int(times[nodes].max()) + after_ns

    def _host(self, times: Int64, moment_ns: int) -> int:
        """A moment of the host: as long after the node before it as it was, but not after the next."""
        graph, moment = self.graph, moment_ns - self.graph.origin_ns
        place = self._place(moment)
        before, after = graph.on_training[place], graph.on_training[min(place + 1, len(graph.on_training) - 1)]
        then = int(times[before] + moment - graph.observed_ns[before])
        return then if before == after else min(then, int(times[after]))

    def _place(self, moment: int) -> int:
        observed = self.graph.observed_ns[self.graph.on_training]
        return max(int(np.searchsorted(observed, moment, side="right")) - 1, 0)


def _together(one: Cut, other: Cut) -> Cut:
    host = one.host | other.host if one.host is not None and other.host is not None else one.host or other.host
    waits = one.waits | other.waits if one.waits is not None and other.waits is not None else other.waits
    scale = one.scale * other.scale if one.scale is not None and other.scale is not None else other.scale
    return Cut(host, one.waits if waits is None else waits, one.scale if scale is None else scale)
