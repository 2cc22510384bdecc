"""The critical path: the chain of waits from the end of the counted steps back to their beginning, and its parts.

    path = critical_path(measures)
    path.composition      # {"compute": 351_000_000, "sync": 2_400_000, "dispatch": …}: sums to the replayed steps
    path.per_step         # the same of a mean step
    path.rows             # the device work on the path

Each piece of the way is device work by its class (`compute`, `comm`, `copy`), the device's own delay (`gap` between
work on a stream, `launch` from a call to its work, `dependency` on another stream), or host time by what the host was
doing (`input`, `gc`, `dispatch`, …, `python`); `sync` is the host's return from a wait. Time on the path is what
shortening would begin to pay for; how far, only a replay tells, as another path soon takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure.replay.graph import NodeKind
from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.views.host_activity import activity
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int64


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain of moments that the last counted step's end waited for."""

    composition: Mapping[str, int]
    """Nanoseconds of all counted steps together by class, largest first; no zeros."""
    steps: int
    """How many were counted."""
    rows: Int64
    """Rows of device work on the path, first to last."""
    host: Intervals
    """Host time on the path, on the trace's clock."""

    @property
    def per_step(self) -> dict[str, int]:
        """Nanoseconds of a mean step by class, largest first; what is less than one is left out."""
        return {name: took // self.steps for name, took in self.composition.items() if took >= self.steps}


def critical_path(measures: HostWaits) -> CriticalPath | None:
    """The critical path of the counted steps; None without a device or where the replay is not to be trusted."""
    if not measures.has_device or measures.step_count == 0 or not measures.replay.trusted:
        return None
    graph, times = measures.replay.graph, measures.replay.unchanged
    begin, (last, after_ns) = measures.replay.begin_ns, measures.replay.end_nodes
    node = _walked(times, graph.first, graph.first_ns, graph.second, int(last[times[last].argmax()]), begin)
    before, here = node[1:], node[:-1]
    since = np.maximum(times[before], begin)
    spent = np.maximum(times[here] - since, 0)
    kind, device = graph.kind[here], measures.trace.device
    work = kind == NodeKind.WORK
    row = np.where(work, graph.row[here], 0)
    own = np.where(work, np.minimum(device.end_ns[row] - device.start_ns[row], spent), 0)
    held = spent - own
    by_first = graph.first[here] == before
    found: dict[str, int] = {
        **_by_class(measures, row[work], own[work]),
        "launch": int(held[work & by_first].sum()),
        "gap": int(held[work & ~by_first].sum() + spent[(kind == NodeKind.JOIN) & by_first].sum()),
        "dependency": int(spent[(kind == NodeKind.JOIN) & ~by_first].sum()),
        "sync": int(spent[(kind == NodeKind.WAIT) & ~by_first].sum()),
    }
    on_host = ((kind == NodeKind.LAUNCH) | (kind == NodeKind.WAIT)) & by_first
    ends = graph.origin_ns + graph.observed_ns[here[on_host]]
    host = Intervals.of(np.concatenate((ends - spent[on_host], [0])), np.concatenate((ends, [0])))
    for cause, took in _by_cause(measures, host, int(spent[on_host].sum()) + max(after_ns, 0)).items():
        found[cause] = found.get(cause, 0) + took
    largest = sorted(found.items(), key=lambda entry: -entry[1])
    composition = {name: took for name, took in largest if took}
    return CriticalPath(composition, measures.step_count, row[work & (spent > 0)][::-1], host)


def _walked(times: Int64, first: Int64, first_ns: Int64, second: Int64, last: int, begin: int) -> Int64:
    """The nodes from the last one back to the beginning, each the later dependency of the one before."""
    node, path = last, [last]
    by_first = times[first] + first_ns == times
    while times[node] > begin and node > 0:
        node = int(first[node] if by_first[node] else second[node])
        path.append(node)
    return np.array(path, np.int64)


def _by_class(measures: HostWaits, rows: Int64, took: Int64) -> dict[str, int]:
    classes = measures.classes[rows]
    comm, copy = classes == KernelClass.COLLECTIVE, classes == KernelClass.COPY
    return {
        "compute": int(took[~comm & ~copy].sum()),
        "comm": int(took[comm].sum()),
        "copy": int(took[copy].sum()),
    }


def _by_cause(measures: HostWaits, host: Intervals, total: int) -> dict[str, int]:
    """Host time by what the host was doing; what nothing tells is Python."""
    graph, calls = measures.replay.graph, measures.trace.calls
    nodes = graph.on_training[1:]
    threads = set(np.unique(calls.thread[graph.row[nodes]]).tolist()) | {measures.thread}
    found: dict[str, int] = {}
    left = host
    for cause, times in activity(measures.trace, threads - {MISSING}):
        taken = left & times
        found[cause] = found.get(cause, 0) + taken.total_ns
        left = left - taken
    found["python"] = found.get("python", 0) + total - sum(found.values())
    return found
