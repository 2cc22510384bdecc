"""How fast collectives moved bytes over the bus, by kind and size, against what the machine was measured to do.

    for row in bus_bandwidth([Measures(trace) for trace in traces], job): row.bytes_per_s, row.ceiling_bytes_per_s

With the recordings of several ranks a transfer is what a collective took on the rank that came last to it: that one
waited for nobody. With one rank's it is the shortest of its kind and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.collectives import described
from diagnose.measure.comm.links import link_of, wire_share
from diagnose.measure.job.ranks import Job
from diagnose.trace.schema import MISSING, Int64
from diagnose.units import NS_PER_S

CALIBRATED = "diagnose calibrate"


@dataclass(frozen=True, slots=True)
class BusBandwidth:
    """Collectives of one kind and size in one number of ranks, of all the job's groups of that size."""

    kind: str
    ranks: int
    size_bytes: int
    count: int
    transfer_ns: int
    """The median, without waiting for other ranks."""
    bytes_per_s: float
    """The bandwidth over the bus, as nccl-tests define it."""
    ceiling_bytes_per_s: float | None
    """None where nothing was calibrated and no table has the link."""
    ceiling_source: str
    """`diagnose calibrate`, or what link the data sheet's rate is of."""

    @property
    def share(self) -> float | None:
        """The rate as a share of the ceiling."""
        return self.bytes_per_s / self.ceiling_bytes_per_s if self.ceiling_bytes_per_s else None


def bus_bandwidth(measures: Sequence[Measures], job: Job) -> tuple[BusBandwidth, ...]:
    """By kind and size, what takes most time in all first; only what has a known size, in a group of known size."""
    taken = [measures[number] for number in job.given]
    transfers: dict[tuple[str, int, int], list[Int64]] = {}
    for one, row, length in _transfers(taken, job):
        if not one.trace.has_device:
            continue
        kinds, sizes = described(one.trace, row)
        ranks = _ranks(one, row)
        for key in sorted(set(zip(kinds.tolist(), ranks.tolist(), sizes.tolist(), strict=True))):
            mine = (kinds == key[0]) & (ranks == key[1]) & (sizes == key[2])
            transfers.setdefault(key, []).append(length[mine])
    rows = [_row(key, np.concatenate(parts), taken[0]) for key, parts in transfers.items() if min(key[1:]) > 0]
    found = [row for row in rows if row is not None]
    return tuple(sorted(found, key=lambda row: (-row.count * row.transfer_ns, row.kind, row.size_bytes)))


def _transfers(taken: Sequence[Measures], job: Job) -> list[tuple[Measures, Int64, Int64]]:
    """Per group of ranks: a rank, rows of its device work, and how long each took without waiting."""
    if job.matched:
        return [
            (taken[group.members[0]], group.rows[group.comparable, 0], group.duration_ns[group.comparable].min(axis=1))
            for group in job.matched
        ]
    return [(one, one.communication.row, one.communication.transfer_ns) for one in taken[:1]]


def _ranks(measures: Measures, rows: Int64) -> Int64:
    trace = measures.trace
    sizes = np.array([*(one.group_size for one in trace.collectives), MISSING], np.int64)
    told = sizes[trace.device.collective[rows]]
    return np.where(told > 0, told, trace.world_size or MISSING)


def _row(key: tuple[str, int, int], lengths: Int64, measures: Measures) -> BusBandwidth | None:
    kind, ranks, size = key
    share = 1.0 if kind == "send_recv" else float(wire_share(np.array([kind]), np.array([ranks]))[0])
    transfer = max(int(np.median(lengths)), 1)
    if not share:
        return None
    ceiling, source = _ceiling(measures, kind, ranks, size, share)
    return BusBandwidth(kind, ranks, size, len(lengths), transfer, size * share / transfer * NS_PER_S, ceiling, source)


def _ceiling(measures: Measures, kind: str, ranks: int, size: int, share: float) -> tuple[float | None, str]:
    trace = measures.trace
    devices = max(len(trace.device_names), 1)
    curve = curve_of(trace.facts.curves or (), kind, ranks, -(-ranks // devices))
    if curve is not None:
        (time,) = calibrated_ns(curve, np.array([size])).tolist()
        if np.isfinite(time):
            return size * share / time * NS_PER_S, CALIBRATED
    link = link_of(trace)
    return (link.bytes_per_s, f"data sheet, {link.name}") if link else (None, "")
