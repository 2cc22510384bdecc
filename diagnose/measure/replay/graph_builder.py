"""The graph of a rank's recorded window, from its host's moments and its device's work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from diagnose.measure.replay.device import DeviceEdges, device_edges
from diagnose.measure.replay.graph import NEVER, NodeKind, ReplayGraph
from diagnose.measure.replay.host import CLOCK_SLACK_NS, HostNodes, host_nodes
from diagnose.measure.steps.idle import REFILL_NS
from diagnose.measure.views.launches import Launches
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, DeviceWork, Int64

_EARLY = 10  # percent of the work that may begin before its launch call before the device's clock is doubted
MOST_SKEW_NS = 1_000_000
"""Clocks further apart are beyond repair: what the device waited for cannot be told then."""
_MOST = 90  # percent of the waits that must not return before their work ends, once the device's clock is set right


def replay_graph(trace: Trace, launches: Launches, main: int, begin_ns: int) -> ReplayGraph:
    """Return the graph of waits of one rank's recording, at least from `begin_ns`; `main` is the training thread."""
    trace = _set_right(trace, launches)
    host, edges, device = host_nodes(trace, launches, main), device_edges(trace, launches), trace.device
    origin = min((int(times.min()) for times in (host.time_ns, device.start_ns) if len(times)), default=begin_ns)
    origin = min(origin, begin_ns)
    waits = host.target != MISSING
    early = device.end_ns[host.target[waits]] - host.time_ns[waits] if len(device) else host.time_ns[:0]
    shift = int(np.clip(np.percentile(early, _MOST), 0, CLOCK_SLACK_NS)) if len(early) else 0
    origin -= shift  # no node may lie before the origin
    nodes = _laid_out(host, edges, device, origin, shift)
    first, first_ns, second, second_ns = _host_edges(nodes, host)
    _device_edges(nodes, edges, launches, device, shift, (first, first_ns, second, second_ns))
    broken = _without_broken(nodes.observed_ns, first, first_ns, second, second_ns)
    on_training = np.concatenate(([0], nodes.host[host.on_training])).astype(np.int64)
    return ReplayGraph(
        nodes.observed_ns, nodes.kind, nodes.row, first, first_ns, second, second_ns,
        origin, shift, nodes.work, on_training, broken,
    )  # fmt: skip


def _set_right(trace: Trace, launches: Launches) -> Trace:
    """The device's work later, where its clock has too much of it begin before its launch call did."""
    linked = launches.linked
    lag = trace.device.start_ns[linked] - launches.start_ns[linked]
    if not len(lag) or np.percentile(lag, _EARLY) >= 0:
        return trace
    late = -max(int(lag.min()), -MOST_SKEW_NS)
    device = replace(trace.device, start_ns=trace.device.start_ns + late, end_ns=trace.device.end_ns + late)
    return replace(trace, device=device)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Where each moment lies in the topological order."""

    observed_ns: Int64
    kind: np.typing.NDArray[np.uint8]
    row: Int64
    host: Int64
    work: Int64
    join: Int64
    """Per row of device work that waits for its stream and for another, its join; else -1."""


def _laid_out(host: HostNodes, edges: DeviceEdges, device: DeviceWork, origin: int, shift: int) -> _Nodes:
    """Order by time. Of equal moments: ends of work, joins, the host in its order, work without length."""
    joined = np.flatnonzero((edges.other != MISSING) & (edges.before != MISSING))
    ends = device.end_ns - shift
    meet = device.start_ns[joined] - shift
    time = np.concatenate(([origin], ends, meet, host.time_ns)) - origin
    kind = np.concatenate(
        (
            [NodeKind.ORIGIN],
            np.full(len(device), NodeKind.WORK),
            np.full(len(joined), NodeKind.JOIN),
            np.where(host.is_end, NodeKind.WAIT, NodeKind.LAUNCH),
        )
    ).astype(np.uint8)
    row = np.concatenate(([MISSING], np.arange(len(device)), joined, host.call)).astype(np.int64)
    rank = np.concatenate(
        ([-1], np.where(device.end_ns > device.start_ns, 0, 3), np.full(len(joined), 1), np.full(len(host.call), 2))
    )
    order = np.lexsort((rank, time))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    join = np.full(len(device), MISSING, np.int64)
    join[joined] = position[1 + len(device) : 1 + len(device) + len(joined)]
    work, hosts = position[1 : 1 + len(device)], position[1 + len(device) + len(joined) :]
    return _Nodes(time[order], kind[order], row[order], hosts, work, join)


def _host_edges(nodes: _Nodes, host: HostNodes) -> tuple[Int64, Int64, Int64, Int64]:
    """Program order with its durations, and the work that waits wait for; empty columns for the device's nodes."""
    first, second = np.zeros(len(nodes.kind), np.int64), np.zeros(len(nodes.kind), np.int64)
    first_ns, second_ns = np.array(nodes.observed_ns), np.full(len(nodes.kind), NEVER, np.int64)
    has = host.before != MISSING
    before = np.where(has, nodes.host[host.before], 0) if len(has) else host.before
    first[nodes.host] = before
    elapsed = nodes.observed_ns[nodes.host] - nodes.observed_ns[before]
    first_ns[nodes.host] = elapsed
    waits = np.flatnonzero(host.target != MISSING)
    target, node = nodes.work[host.target[waits]], nodes.host[waits]
    tail = nodes.observed_ns[node] - nodes.observed_ns[target]
    held = (tail >= 0) & (tail <= REFILL_NS) & (tail < elapsed[waits])
    second[node] = target
    second_ns[node] = np.where(held, tail, np.minimum(tail, np.median(tail[held]) if held.any() else 0))
    # A wait that found its work done shows what the call itself costs.
    own = elapsed[waits]
    cost = int(np.median(own[~held])) if (~held).any() else 0
    first_ns[node] = np.where(held, np.minimum(own, cost), own)
    return first, first_ns, second, second_ns


def _device_edges(
    nodes: _Nodes,
    edges: DeviceEdges,
    launches: Launches,
    device: DeviceWork,
    shift: int,
    columns: tuple[Int64, Int64, Int64, Int64],
) -> None:
    """Fill in what device work waits for."""
    first, first_ns, second, second_ns = columns
    length = device.end_ns - device.start_ns
    begins = np.flatnonzero(nodes.kind == NodeKind.LAUNCH)
    of_call = np.full(max(int(nodes.row.max(initial=0)), int(launches.call.max(initial=0))) + 1, MISSING, np.int64)
    of_call[nodes.row[begins]] = begins
    launch = np.where(launches.linked, of_call[launches.call], MISSING) if len(launches.call) else launches.call
    linked, chained, crossed = launch != MISSING, edges.before != MISSING, edges.other != MISSING
    alone = ~linked & ~chained & ~crossed
    first[nodes.work] = np.where(linked, launch, 0)
    first_ns[nodes.work] = np.where(
        linked, edges.lag_ns - shift + length, np.where(alone, nodes.observed_ns[nodes.work], NEVER)
    )
    joined = nodes.join != MISSING
    before = np.where(chained, nodes.work[edges.before], 0) if len(length) else length
    other = np.where(crossed, nodes.work[edges.other], 0) if len(length) else length
    second[nodes.work] = np.where(joined, nodes.join, np.where(chained, before, other))
    delay = np.where(joined, 0, np.where(chained, edges.gap_ns, edges.other_ns)) + length
    second_ns[nodes.work] = np.where(chained | crossed, delay, NEVER)
    first[nodes.join[joined]], first_ns[nodes.join[joined]] = before[joined], edges.gap_ns[joined]
    second[nodes.join[joined]], second_ns[nodes.join[joined]] = other[joined], edges.other_ns[joined]


def _without_broken(observed: Int64, first: Int64, first_ns: Int64, second: Int64, second_ns: Int64) -> int:
    """Remove dependencies on what comes later in the order; they contradict the recording itself."""
    place = np.arange(len(observed))
    bad_first, bad_second = (first >= place) & (place > 0), (second >= place) & (place > 0)
    first[bad_first], first_ns[bad_first] = 0, NEVER
    second[bad_second], second_ns[bad_second] = 0, NEVER
    lost: Bool = (first_ns == NEVER) & (second_ns == NEVER)
    first[lost], first_ns[lost] = 0, observed[lost]
    return int(bad_first.sum() + bad_second.sum())
