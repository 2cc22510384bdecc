"""The changes of a replay: host time taken out, waits that return at once, device work scaled or left out.

without = Cut(host=measures.idle["input"])
without = Cut(waits=mask_over_calls)
without = Cut(scale=factor_per_row)       # 0.5: twice as fast; 0.0: left out, the gap before it too
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose.measure.replay.graph import NEVER, NodeKind, ReplayGraph
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Float64, Int64


@dataclass(frozen=True, eq=False)
class Cut:
    """A change of the run. None changes nothing; parts combine."""

    host: Intervals | None = None
    """Time on the trace's clock that the training thread, and launches from it, no longer take."""
    waits: Bool | None = None
    """Rows of `trace.calls` that, where they wait for the device, return at once."""
    scale: Float64 | None = None
    """Per row of `trace.device`, a factor on its length."""

    def __or__(self, other: Cut) -> Cut:
        """Both changes at once: time that either takes out, waits that either lets return, one factor on the other."""
        return Cut(
            _either(self.host, other.host, Intervals.__or__),
            _either(self.waits, other.waits, np.logical_or),
            _either(self.scale, other.scale, np.multiply),
        )

    @property
    def key(self) -> bytes:
        """A hash that is equal for cuts that change the same."""
        found = hashlib.blake2b(digest_size=16)
        for part in (*((self.host.starts, self.host.ends) if self.host else (None, None)), self.waits, self.scale):
            found.update(b"-" if part is None else len(part).to_bytes(8, "little") + part.tobytes())
        return found.digest()


def _either(one: Any, other: Any, both: Callable[[Any, Any], Any]) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)


def changed(graph: ReplayGraph, trace: Trace, cut: Cut, since_ns: int) -> tuple[Int64, Int64]:
    """The weights of both dependencies of every node under a cut. What the host did before `since_ns` stays."""
    first_ns, second_ns = graph.first_ns.copy(), graph.second_ns.copy()
    host = np.flatnonzero((graph.kind == NodeKind.LAUNCH) | (graph.kind == NodeKind.WAIT))
    every = np.flatnonzero(graph.kind == NodeKind.WORK)
    linked = graph.first[every] > 0
    work = every[linked]
    launched = graph.origin_ns + graph.observed_ns[graph.first[work]]
    if cut.waits is not None:
        _return_at_once(graph, cut.waits, since_ns, (first_ns, second_ns))
    if cut.scale is not None:
        # Work of unknown launch counts as launched when it began.
        issued = trace.device.start_ns[graph.row[every]].copy()
        issued[linked] = launched
        _scale(graph, trace, cut.scale, every[issued >= since_ns], (first_ns, second_ns))
    if cut.host is not None:
        gone = cut.host & Intervals.of([since_ns], [np.iinfo(np.int64).max])
        begin, end = graph.origin_ns + graph.observed_ns[graph.first[host]], graph.origin_ns + graph.observed_ns[host]
        first_ns[host] -= np.minimum(gone.covered(begin, end), np.maximum(first_ns[host], 0))
        # A launch call that takes no time, and a device that begins at once: work follows its launch sooner. Work that
        # was launched before the first counted step may end after it began: where that step begins stays.
        mine = launched >= since_ns
        work, launched = work[mine], launched[mine]
        lag = np.maximum(trace.device.start_ns[graph.row[work]] - launched, 0)
        first_ns[work] -= np.minimum(gone.covered(launched, launched + lag), lag)
    return first_ns, second_ns


def _return_at_once(graph: ReplayGraph, waits: Bool, since_ns: int, weights: tuple[Int64, Int64]) -> None:
    first_ns, second_ns = weights
    node = np.flatnonzero(graph.kind == NodeKind.WAIT)
    node = node[waits[graph.row[node]] & (graph.second[node] > 0)]
    node = node[graph.observed_ns[node] + graph.origin_ns >= since_ns]
    first_ns[node], second_ns[node] = 0, NEVER


def _scale(graph: ReplayGraph, trace: Trace, scale: Float64, work: Int64, weights: tuple[Int64, Int64]) -> None:
    first_ns, second_ns = weights
    rows = graph.row[work]
    length = trace.device.end_ns[rows] - trace.device.start_ns[rows]
    saved = length - np.rint(length * scale[rows]).astype(np.int64)
    first_ns[work] -= np.where(first_ns[work] > NEVER, saved, 0)
    here = second_ns[work] > NEVER
    gone = scale[rows] == 0
    second_ns[work[here]] -= saved[here]
    nothing = work[here & gone]
    second_ns[nothing] = np.minimum(second_ns[nothing], 0)
