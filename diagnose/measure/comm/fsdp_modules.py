"""The modules whose parameters FSDP shards: when each is gathered, late, early or again; what its gradients cost.

    for module in sharded_modules(measures): module.name, module.late_ns, module.again

`fully_shard` names its modules in the ranges that it records (`FSDP::all_gather (layers.0)`). A gather is late as far
as nothing is computed until its parameters are there, and early by how long they lie there before they are unpacked
for their first use: time in which they only hold memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.trace.schema import MISSING, Bool, Int64

ROOT = "(root)"
_RANGE = re.compile(r"^FSDP::(all_gather|all_gather_copy_out|post_backward_reduce)(?: \((.*)\))?$")
_GATHER, _UNPACK, _REDUCE = "all_gather", "all_gather_copy_out", "post_backward_reduce"


@dataclass(frozen=True, slots=True)
class ShardedModule:
    """One module in the mean counted step. Times are ns a step."""

    name: str
    """The program's name of it; `(root)` for what no other module has."""
    gather_bytes: int
    """Bytes of one whole gather; -1 where it is not recorded."""
    gathers: float
    """A step."""
    again: float
    """How many of them repeat a gather of the same step's forward pass."""
    gather_ns: int
    late_ns: int
    """The time in gathers that nothing hides, waiting for other ranks included."""
    waited_ns: int
    """The part of `gather_ns` that the fastest of the same size does not take: waiting for other ranks."""
    early_ns: int
    """Gathered and not yet unpacked."""
    reduce_ns: int
    reduce_exposed_ns: int
    again_late_ns: int
    """The part of `late_ns` in gathers that repeat one."""


def sharded_modules(measures: RankCollectives) -> tuple[ShardedModule, ...]:
    """Return the sharded modules in the order in which they are first gathered; empty where FSDP named none."""
    if not measures.has_device or measures.step_count == 0:
        return ()
    ranges = _ranges(measures)
    comm = measures.communication
    gathers = comm.kind == "all_gather"
    reduces = np.isin(comm.kind, ("reduce_scatter", "all_reduce"))
    names: dict[str, None] = {}
    of_gather = _names(ranges[_GATHER], comm.issued_ns, gathers, names)
    of_reduce = _names(ranges[_REDUCE], comm.issued_ns, reduces, names)
    unpacked = _unpacked(measures, ranges[_UNPACK])
    exposed = np.asarray(comm.duration_ns - measures.compute.covered(comm.start_ns, comm.end_ns), np.int64)
    return tuple(
        _module(measures, name, of_gather == number, of_reduce == number, exposed, unpacked.get(name))
        for number, name in enumerate(names)
        if (of_gather == number).any()
    )


@dataclass(frozen=True, eq=False)
class _Named:
    """Ranges of one kind, as the host began them."""

    start_ns: Int64
    end_ns: Int64
    module: tuple[str, ...]


def _ranges(measures: RankCollectives) -> dict[str, _Named]:
    trace, table = measures.trace, measures.trace.ranges
    told = {number: match for number, name in enumerate(trace.names) if (match := _RANGE.match(name))}
    rows = np.flatnonzero(np.isin(table.name, list(told)))
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    found = {}
    for kind in (_GATHER, _UNPACK, _REDUCE):
        mine = [row for row in rows.tolist() if told[int(table.name[row])][1] == kind]
        modules = tuple(told[int(table.name[row])][2] or ROOT for row in mine)
        found[kind] = _Named(table.start_ns[mine], table.end_ns[mine], modules)
    return found


def _names(ranges: _Named, issued_ns: Int64, wanted: Bool, names: dict[str, None]) -> Int64:
    """Per collective, the number of the module within whose range the host issued it; -1 for others."""
    names.update(dict.fromkeys(ranges.module))
    numbers = {name: number for number, name in enumerate(names)}
    of_range = np.array([*(numbers[name] for name in ranges.module), MISSING], np.int64)
    last = np.searchsorted(ranges.start_ns, issued_ns, side="right") - 1
    inside = wanted & (last >= 0)
    inside[inside] = issued_ns[inside] < ranges.end_ns[last[inside]]
    return np.where(inside, of_range[np.where(inside, last, MISSING)], MISSING)


def _unpacked(measures: RankCollectives, ranges: _Named) -> dict[str, tuple[Int64, Int64]]:
    """Return, by module, when the host began to unpack its parameters, and when the device did."""
    launched = measures.launches.start_ns
    rows = np.flatnonzero(measures.rows & measures.launches.linked)
    rows = rows[np.argsort(launched[rows], kind="stable")]
    first = np.searchsorted(launched[rows], ranges.start_ns, side="left")
    found: dict[str, tuple[list[int], list[int]]] = {}
    for place, module in enumerate(ranges.module):
        at = int(first[place])
        if at < len(rows) and launched[rows[at]] < ranges.end_ns[place]:
            host, device = found.setdefault(module, ([], []))
            host.append(int(ranges.start_ns[place]))
            device.append(int(measures.trace.device.start_ns[rows[at]]))
    return {name: (np.array(host, np.int64), np.array(device, np.int64)) for name, (host, device) in found.items()}


def _module(
    measures: RankCollectives,
    name: str,
    gathers: Bool,
    reduces: Bool,
    exposed: Int64,
    unpacked: tuple[Int64, Int64] | None,
) -> ShardedModule:
    comm, steps = measures.communication, measures.step_count
    again = gathers & measures.exchange.regathered
    early = 0
    if unpacked is not None:
        host, device = unpacked
        use = np.searchsorted(host, comm.issued_ns[gathers], side="right")
        used = use < len(host)
        early = int(np.maximum(device[use[used]] - comm.end_ns[gathers][used], 0).sum())
    return ShardedModule(
        name=name,
        gather_bytes=_size(comm.size_bytes[gathers]),
        gathers=int(gathers.sum()) / steps,
        again=int(again.sum()) / steps,
        gather_ns=int(comm.duration_ns[gathers].sum()) // steps,
        late_ns=int(exposed[gathers].sum()) // steps,
        waited_ns=int((comm.duration_ns - comm.transfer_ns)[gathers].sum()) // steps,
        early_ns=early // steps,
        reduce_ns=int(comm.duration_ns[reduces].sum()) // steps,
        reduce_exposed_ns=int(exposed[reduces].sum()) // steps,
        again_late_ns=int(exposed[again].sum()) // steps,
    )


def _size(sizes: Int64) -> int:
    return int(np.median(sizes)) if len(sizes) else MISSING
