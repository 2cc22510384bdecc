"""What the profiler costs the host, told by steps that were watched before it was on.

A profiler writes down every operator, call and Python frame as it begins and ends, on the thread that runs it: the
device's work lasts as long as ever, the host needs longer for the same. The cost of one record is what makes the
replayed steps as short as those that nobody traced. It can be told only where a live run knew those; a recording
alone does not say, and then nothing is taken off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diagnose.measure.activity import on_threads, threads_in
from diagnose.measure.replay_graph import NodeKind, ReplayGraph
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Int64

MOST_NS = 1_500
"""No record costs more: torch.profiler 2.13 took 0.45 µs for one on a server's core, 0.75 µs with shapes,
and the runtime's callbacks take up to twice that. What is left of the difference has other reasons, such as clocks."""

LEAST_LEFT = 0.2
"""Of a stretch of host time that the program spends between two calls, at least this part is its own."""

_ROUNDS = 7  # halvings of MOST_NS: to 12 ns


def records_between(graph: ReplayGraph, trace: Trace) -> Int64:
    """Per node of the training thread, how many records its thread made since the node before; 0 for all others."""
    nodes = graph.on_training[1:]
    found = np.zeros(len(graph), np.int64)
    if not len(nodes):
        return found
    threads = set(threads_in(trace.calls.thread[graph.row[nodes]])) - {MISSING}
    tables = (trace.ops, trace.calls, trace.frames)
    begun = np.concatenate([table.start_ns[on_threads(table.thread, threads)] for table in tables])
    begun = np.sort(begun - graph.origin_ns, kind="stable")  # three sorted parts, which a stable sort merges
    until = np.searchsorted(begun, graph.observed_ns[nodes], side="left")
    since = np.searchsorted(begun, graph.observed_ns[graph.first[nodes]], side="left")
    found[nodes] = np.maximum(until - since, 0)
    return found


def taken_off(graph: ReplayGraph, records: Int64, cost_ns: int) -> Int64:
    """Per node, by how much its thread would have come there sooner without the records."""
    own = np.where((graph.kind == NodeKind.LAUNCH) | (graph.kind == NodeKind.WAIT), np.maximum(graph.first_ns, 0), 0)
    return np.minimum(records * cost_ns, (own * (1 - LEAST_LEFT)).astype(np.int64))


def cost_of_record_ns(length_of: Callable[[int], int], wanted_ns: int) -> int:
    """The smallest cost of a record that makes the steps as short as wanted, or as short as any cost does.

    `length_of` gives the replayed length for a cost. Where it stays longer than wanted, the host was no hindrance, and
    the smallest cost that gets as far is taken.
    """
    wanted_ns = max(wanted_ns, length_of(MOST_NS))
    if length_of(0) <= wanted_ns:
        return 0
    low, high = 0, MOST_NS
    for _ in range(_ROUNDS):
        middle = (low + high) // 2
        low, high = (low, middle) if length_of(middle) <= wanted_ns else (middle, high)
    return high
