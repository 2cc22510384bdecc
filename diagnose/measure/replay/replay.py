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

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from diagnose.measure.replay.cuts import Cut, changed
from diagnose.measure.replay.graph import NEVER, NodeKind, ReplayGraph, solved
from diagnose.measure.replay.graph_builder import replay_graph
from diagnose.measure.replay.overhead import cost_between, part_left, scale_of, spread_of
from diagnose.measure.replay.profiler_overhead import ProfilerRecords, records_of
from diagnose.measure.steps.full_queue import launch_usually_ns, waits_for_room
from diagnose.measure.steps.pace import watched_step_ns
from diagnose.measure.steps.steps import StepSpans
from diagnose.measure.views.host_activity import threads_in
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.op_tree import OpTree, op_tree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

__all__ = ["TRUSTED_OFF", "Cut", "Replay"]

TRUSTED_OFF = 0.02
"""An unchanged replay that misses the measured time by more than this part predicts bounds only."""

_AHEAD = 0.95
"""Watched steps shorter than this part of the device's work in a traced one tell what the host did, not how long the
device took."""

_OF_DEVICE = frozenset({"period", "whole trace"})
"""Steps that the device's work was divided into: when the host came to their borders is not known."""


@dataclass(frozen=True, eq=False)
class _Border:
    """Where steps begin or end: at the latest of some nodes, or so long after it."""

    nodes: Int64
    after_ns: int = 0
    begins: int = MISSING
    """The row of device work with the beginning of which it is; `nodes` are its end."""

    def when(self, times: Int64, cut: Cut) -> int:
        scale = 1.0 if self.begins == MISSING or cut.scale is None else float(cut.scale[self.begins])
        return int(times[self.nodes].max()) + round(self.after_ns * scale)


class Replay:
    """Cached replays of one rank's counted steps. Times are integer nanoseconds."""

    def __init__(
        self, trace: Trace, launches: Launches, rows: Bool, steps: StepSpans, main: int, tree: OpTree | None = None
    ) -> None:
        self.trace, self._rows, self._steps, self._main = trace, rows, steps, main
        # Without launches that take no time and begin with their work: marks of where it began, which no host made
        marks = (launches.start_ns == launches.end_ns) & (launches.start_ns == trace.device.start_ns)
        self._launches = replace(launches, call=np.where(marks, MISSING, launches.call))
        self._tree = tree or op_tree(trace, launches)
        self._lengths: dict[tuple[bytes, float], int] = {}

    @cached_property
    def graph(self) -> ReplayGraph:
        """The graph of waits."""
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
        return abs(self._length(self.unchanged, Cut()) - measured) / measured

    @property
    def trusted(self) -> bool:
        """Whether predictions are more than bounds."""
        return self.off <= TRUSTED_OFF

    @cached_property
    def records(self) -> ProfilerRecords:
        """The profiler's records on the training thread and on the threads that take turns with it."""
        graph = self.graph
        nodes = graph.on_training[1:]
        threads = set(threads_in(self.trace.calls.thread[graph.row[nodes]])) - {MISSING} if len(nodes) else set()
        return records_of(self.trace, self._launches, self._tree.nesting, threads)

    @cached_property
    def recording_scale(self) -> float:
        """How many times as much as usual the profiler's records cost the host; 0.0 where it is not known."""
        if not self.trusted or len(self._steps) == 0:
            return 0.0
        return scale_of(
            lambda scale: self._steady(self._solved(Cut(), scale), Cut()), self.records.scale, self.watched_ns
        )

    @cached_property
    def doubtful_ns(self) -> int:
        """By how much shorter all counted steps together might be yet without the profiler: what its records cost is
        known to a factor (`spread_of`), but where a live run told it."""
        if self.recording_scale == 0 or self.watched_ns is not None:
            return 0
        return max(self.base_ns - self._cheapest_ns(Cut()), 0)

    def doubtful_of(self, cut: Cut) -> int:
        """Return by how much less a cut may save for the same reason: a host that is faster besides may hide what it
        takes out, or wait for it as long."""
        if self.doubtful_ns == 0:
            return 0
        saved_at_least = self.base_ns - self.doubtful_ns - self._cheapest_ns(cut)
        return min(max(self.saved_ns(cut) - saved_at_least, 0), self.doubtful_ns)

    def hidden_of(self, cut: Cut) -> int:
        """Return by how much more a cut of the device's work may save for the same reason, in a live run too: a host
        that is faster than the recorded one holds back less of it."""
        if self.recording_scale == 0:
            return 0
        return max(self._cheapest_ns(Cut()) - self._cheapest_ns(cut) - self.saved_ns(cut), 0)

    def _cheapest_ns(self, cut: Cut) -> int:
        """The length of all steps under a cut if the records cost as much as they may at most."""
        return self._length_ns(cut, spread_of(self.records, watched=self.watched_ns is not None))

    @cached_property
    def watched_ns(self) -> int | None:
        """The time of all counted steps at the pace that a live run measured without a profiler, in ns; None if
        unknown.
        """
        watched, total = watched_step_ns(self.trace), int(self._steps.length_ns.sum())
        if not watched or self.ran_ahead:
            return None
        share = watched / float(np.median(self._steps.length_ns))
        return min(int(share * total), total)

    @cached_property
    def ran_ahead(self) -> bool:
        """Whether the host of a live run, without a profiler, came round in less time than the device's work takes."""
        watched = self.trace.facts.step_ns_watched
        if not watched or not len(self._steps):
            return False
        device = self.trace.device
        work = Intervals.of_rows(device, self._rows)
        busy = work.covered(self._steps.start_ns, self._steps.end_ns)
        return watched < _AHEAD * float(np.median(busy))

    @cached_property
    def base_ns(self) -> int:
        """The length of all counted steps without what the profiler costs the host, as far as that is known."""
        return self._length_ns(Cut())

    def times(self, cut: Cut) -> Int64:
        """Return when every node of the graph happens under a cut, without what the profiler costs the host."""
        return self._solved(cut, self.recording_scale)

    def saved_ns(self, cut: Cut, after: Cut | None = None) -> int:
        """Return the time that all counted steps lose under a cut, in ns, beyond what they lose under `after`."""
        base = self.base_ns if after is None else self._length_ns(after)
        both = cut if after is None else after | cut
        return max(base - self._length_ns(both), 0)

    def step_ns(self, cut: Cut | None = None) -> float:
        """The mean counted step under a cut; 0.0 without steps."""
        length = self.base_ns if cut is None else self._length_ns(cut)
        return length / len(self._steps) if len(self._steps) else 0.0

    def _length_ns(self, cut: Cut, times_as_costly: float = 1.0) -> int:
        """The length of all steps under a cut, if records cost so many times what they are taken to cost. Several rules
        make the same cuts: each is replayed once."""
        key = cut.key, times_as_costly
        if key not in self._lengths:
            self._lengths[key] = self._steady(self._solved(cut, self.recording_scale * times_as_costly), cut)
        return self._lengths[key]

    def _solved(self, cut: Cut, recording_scale: float) -> Int64:
        graph = self.graph
        first_ns, second_ns = changed(graph, self.trace, cut, self._since)
        if self._endless:
            self._make_room(first_ns, second_ns)
        if recording_scale:
            # Of what a cut took out, the records went with it.
            left = part_left(graph, self._cost_between, recording_scale)
            first_ns = np.where(left < 1, np.rint(first_ns * left).astype(np.int64), first_ns)
        return solved(graph.first, first_ns, graph.second, second_ns)

    @cached_property
    def _held(self) -> Int64:
        """Nodes at which a launch has waited for room in the queue, from the first counted step on."""
        graph = self.graph
        room = waits_for_room(self.trace, self._launches)
        node = np.flatnonzero(graph.kind == NodeKind.WAIT)
        node = node[room[graph.row[node]]]
        return node[graph.observed_ns[node] + graph.origin_ns >= self._since]

    def _make_room(self, first_ns: Int64, second_ns: Int64) -> None:
        """Let no launch wait for room."""
        held = self._held
        first_ns[held] = np.minimum(first_ns[held], launch_usually_ns(self._launches))
        second_ns[held] = NEVER

    @cached_property
    def _endless(self) -> bool:
        """Whether the steps come out as recorded if no launch ever waits for room.

        How far the host could get ahead does not matter then, and nothing is replayed but its own work: what held it
        was the device, with the work of steps before the counted ones, too, which no cut makes faster.
        """
        graph = self.graph
        if not len(self._held) or not self.trusted:
            return False
        first_ns, second_ns = graph.first_ns.copy(), graph.second_ns.copy()
        self._make_room(first_ns, second_ns)
        length = self._length(solved(graph.first, first_ns, graph.second, second_ns), Cut())
        measured = int(self._steps.length_ns.sum())
        return abs(length - measured) <= TRUSTED_OFF * measured

    @cached_property
    def _cost_between(self) -> Int64:
        return cost_between(self.graph, self.records)

    @property
    def begin_ns(self) -> int:
        """When the first counted step begins in the unchanged replay, relative to the graph's origin."""
        return self._borders[0].when(self.unchanged, Cut())

    @property
    def end_nodes(self) -> tuple[Int64, int]:
        """The nodes of which the latest ends the last counted step, and how long after it that is."""
        return self._borders[1].nodes, self._borders[1].after_ns

    @cached_property
    def _since(self) -> int:
        return int(self._steps.host_start_ns[0]) if len(self._steps) else 0

    def _steady(self, times: Int64, cut: Cut) -> int:
        """The length of all steps, not below what the host takes for them: its lead at the first step runs out."""
        as_recorded, length = self._length(self.unchanged, Cut()), self._length(times, cut)
        if self._steps.found_by in _OF_DEVICE or len(self.graph.on_training) == 1:
            return length
        end = int(self._steps.host_end_ns[-1])
        first, last = self._host(times, self._since), self._host(times, end)
        return max(length, min(last - first - self._waited_ns(times, self._since, end), as_recorded))

    def _waited_ns(self, times: Int64, begin_ns: int, end_ns: int) -> int:
        """Return how long the host waited for the device between two moments: that its lead runs out so is no work of
        its."""
        graph = self.graph
        node = np.flatnonzero((graph.kind == NodeKind.WAIT) & (graph.second > 0))
        observed = graph.observed_ns[node] + graph.origin_ns
        node = node[(observed > begin_ns) & (observed <= end_ns)]
        return int(np.maximum(times[node] - times[graph.first[node]] - graph.first_ns[node], 0).sum())

    def length_of(self, times: Int64) -> int:
        """The length of all counted steps where the nodes happen at `times`, solved elsewhere."""
        return self._length(times, Cut())

    def _length(self, times: Int64, cut: Cut) -> int:
        first, last = self._borders
        return last.when(times, cut) - first.when(times, cut)

    @cached_property
    def _borders(self) -> tuple[_Border, _Border]:
        """Where the counted steps begin and end."""
        steps = self._steps
        return (
            self._border(int(steps.start_ns[0]), int(steps.host_start_ns[0])),
            self._border(int(steps.end_ns[-1]), int(steps.host_end_ns[-1])),
        )

    def _border(self, border_ns: int, mark_ns: int) -> _Border:
        device, node = self.trace.device, self.graph.work_node
        launched = np.flatnonzero(self._rows & (self._launches.start_ns < mark_ns))
        if len(launched) and device.end_ns[launched].max() == border_ns:
            return _Border(node[launched])
        ends = np.flatnonzero(self._rows & (device.end_ns == border_ns))
        if len(ends):
            return _Border(node[ends[-1:]])
        begins = np.flatnonzero(self._rows & (device.start_ns == border_ns))
        if len(begins):
            row = int(begins[0])
            return _Border(node[begins[:1]], int(device.start_ns[row] - device.end_ns[row]), row)
        moment = border_ns - self.graph.origin_ns
        place = self._place(moment)
        before = self.graph.on_training[place : place + 1]
        return _Border(before, moment - int(self.graph.observed_ns[before][0]))

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
