"""The time of collectives beyond what they would take without waste, by cause.

    exchange = measures.exchange
    exchange.excess_ns(Waste.SLOW)      # per row of measures.communication
    exchange.inherent_ns                # what no plan can hide: the last gradients, the first parameters

Each collective has one cause at most, the one nearest the source: it need not be done at all (REPEATED, REGATHERED), it
runs over a slow link (SLOW), it is one of too many (SMALL). What is left of it is for `exposed-communication`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.collectives import SMALL_BYTES, Communication, Phase
from diagnose.measure.comm.links import Link, link_of, wire_share
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Float64, Int64, RangeKind, UInt8

BUCKET_BYTES = 25 << 20
"""What DistributedDataParallel gathers into one all-reduce unless told otherwise."""

_TAIL = 0.25
"""The part of a round's bytes that may become ready last: of GPT-2's parameters, tied embeddings are 31 % at 124 M and
15 % at 355 M. They are reduced when nothing is left to compute."""

_ALIKE = 0.01
_FAR = 0.1
"""A share of a link's rate. Two H200 reach 48 to 66 % of it; a network of 400 Gb/s is 11 % of what NVLink moves
there."""

_USUAL = 0.5
"""The share of a link's rate that large collectives reach."""

_TIMES_CALIBRATED = 3
"""Beside compute, a collective shares multiprocessors and memory with it: on two H200, FSDP's of 384 MiB take 1.0 to
1.5 times as long as the fastest of them. Three times is something else."""

_LARGE_BYTES = 4 << 20
_FEWEST_LARGE = 3
_EVEN = 0.5  # the best rates of large collectives of different sizes differ by no more where a link sets them
_MANY = 8  # gradient collectives of a round below which merging cannot matter
_FEWER = 0.5  # merged ones take at most this part of the time, else they were large enough


class Waste(enum.IntEnum):
    """Why a collective takes longer than it need."""

    NONE = 0
    REPEATED = 1
    """Gradients of a micro-step, reduced again with the next one."""
    REGATHERED = 2
    """Parameters gathered in this step before."""
    SLOW = 3
    SMALL = 4


@dataclass(frozen=True, eq=False)
class CommunicationWaste:
    """A rank's collectives with what is wrong with them; all arrays have a row for each of them."""

    trace: Trace
    communication: Communication

    @cached_property
    def repeated(self) -> Bool:
        """Gradients reduced in all but the last of several alike rounds of a step with fewer optimizer steps."""
        comm = self.communication
        found = np.zeros(len(comm), np.bool_)
        for step in np.unique(comm.step[comm.gradients]).tolist():
            mine = comm.gradients & (comm.step == step)
            rounds, number = np.unique(comm.round[mine], return_inverse=True)
            moved = np.bincount(number.reshape(-1), weights=np.maximum(comm.size_bytes[mine], 0))
            alike = moved.min() > 0 and moved.max() - moved.min() <= _ALIKE * moved.max()
            if len(rounds) > 1 and alike and self._optimizers(mine) < len(rounds):
                found |= mine & (comm.round < rounds[-1])
        return found

    @cached_property
    def regathered(self) -> Bool:
        """All-gathers of a backward pass that repeat one of the same step's forward pass, by size and group."""
        comm = self.communication
        gathers = (comm.kind == "all_gather") & (comm.size_bytes >= SMALL_BYTES)
        key = np.stack((comm.step, comm.group, comm.size_bytes), axis=1)
        _, same = np.unique(key, axis=0, return_inverse=True)
        same = same.reshape(-1)
        first = gathers & (comm.phase == Phase.FORWARD) & (comm.round == 0)
        again = gathers & ((comm.phase == Phase.BACKWARD) | ((comm.phase == Phase.FORWARD) & (comm.round > 0)))
        return np.asarray(again & np.isin(same, same[first]), np.bool_)

    @cached_property
    def link(self) -> Link | None:
        """The link between this rank's device and its peers, where it is known and large collectives were seen."""
        return link_of(self.trace)

    @cached_property
    def bus_bytes_per_s(self) -> float | None:
        """The highest rate at which a large collective moved bytes over the bus; None without any of known size."""
        rates = self._bus_rates[self.communication.size_bytes >= _LARGE_BYTES]
        return float(rates.max()) if len(rates) and rates.max() > 0 else None

    @cached_property
    def uses_link(self) -> bool | None:
        """Whether the fastest large collective comes near what the link can do; None where one of them is unknown."""
        rate = self.bus_bytes_per_s
        return None if self.link is None or rate is None else rate >= _FAR * self.link.bytes_per_s

    @cached_property
    def slow(self) -> bool:
        """Whether even the fastest large collective is far below what the link can do."""
        rate = self.bus_bytes_per_s
        if rate is None or self.uses_link is not False:
            return False
        # Waiting differs from one to the next, and is no longer for more bytes; a rate is the same for all.
        large = self.communication.size_bytes >= _LARGE_BYTES
        sizes, same = np.unique(self.communication.size_bytes[large], return_inverse=True)
        best = np.zeros(len(sizes))
        np.maximum.at(best, same.reshape(-1), self._bus_rates[large])
        best = best[best > 0]
        even = int(large.sum()) >= _FEWEST_LARGE and bool(best.min() >= _EVEN * rate)
        return even and not self._smaller_take_longer

    @cached_property
    def calibrated_ns(self) -> Float64:
        """The time of each collective by the curves calibrated on this machine, in ns; NaN where no curve applies."""
        comm, curves = self.communication, self.trace.facts.curves
        found = np.full(len(comm), np.nan)
        if not curves or not self.trace.has_device:
            return found
        devices = max(len(self.trace.device_names), 1)
        keys = set(zip(comm.kind.tolist(), self._ranks.tolist(), strict=True))
        for kind, ranks in keys:
            curve = curve_of(curves, kind, ranks, -(-ranks // devices)) if ranks > 1 else None
            if curve is not None:
                mine = (comm.kind == kind) & (self._ranks == ranks)
                found[mine] = calibrated_ns(curve, comm.size_bytes[mine])
        return found

    @cached_property
    def below_calibrated(self) -> bool:
        """Whether even the fastest large collective takes several times as long as was calibrated."""
        comm = self.communication
        large = (comm.size_bytes >= _LARGE_BYTES) & np.isfinite(self.calibrated_ns)
        if int(large.sum()) < _FEWEST_LARGE:
            return False
        times = comm.transfer_ns[large] / self.calibrated_ns[large]
        # Waiting lengthens one more than another; a slower network all alike.
        even = float(times.min()) >= _EVEN * float(times.max())
        return even and float(times.min()) >= _TIMES_CALIBRATED and not self._smaller_take_longer

    @cached_property
    def _smaller_take_longer(self) -> bool:
        """Whether the fastest collective of some size takes longer than one of twice the bytes: no link does that, a
        late rank does."""
        comm = self.communication
        sizes, first = np.unique(comm.size_bytes[comm.size_bytes >= SMALL_BYTES], return_index=True)
        if len(sizes) < 2:
            return False
        fastest = comm.transfer_ns[comm.size_bytes >= SMALL_BYTES][first]
        quickest_from = np.minimum.accumulate(fastest[::-1])[::-1]
        twice = np.searchsorted(sizes, 2 * sizes)
        has = twice < len(sizes)
        return bool((fastest[has] > quickest_from[twice[has]]).any())

    @cached_property
    def cost_of_size(self) -> tuple[float, float] | None:
        """The cost of a gradient collective and of each of its bytes, both in ns: the line through the fastest of each
        size. None where the sizes are too alike to tell.
        """
        comm = self.communication
        known = comm.gradients & (comm.size_bytes > 0)
        sizes, first = np.unique(comm.size_bytes[known], return_index=True)
        if len(sizes) < 2 or sizes[-1] < 4 * sizes[0]:
            return None
        fastest = comm.transfer_ns[known][first].astype(np.float64)
        # Relative errors: small collectives decide the first figure, large ones the second.
        weight = 1 / np.maximum(fastest, 1)
        columns = np.stack((np.ones(len(sizes)), sizes.astype(np.float64)), axis=1)
        (each, by_byte), *_ = np.linalg.lstsq(columns * weight[:, None], fastest * weight, rcond=None)
        return (float(each), float(by_byte)) if each > 0 and by_byte >= 0 else None

    @cached_property
    def merged_share(self) -> float | None:
        """The time of gradient collectives merged into buckets, as a share of what they take; None if unknown."""
        comm, cost = self.communication, self.cost_of_size
        mine = comm.gradients & (comm.phase == Phase.BACKWARD)
        rounds = len(np.unique(np.stack((comm.step, comm.round), axis=1)[mine], axis=0))
        if cost is None or mine.sum() < _MANY * max(rounds, 1):
            return None
        each, by_byte = cost
        moved = int(comm.size_bytes[mine].sum())
        buckets = rounds * max(1.0, moved / rounds / BUCKET_BYTES)
        return min((buckets * each + moved * by_byte) / max(int(comm.transfer_ns[mine].sum()), 1), 1.0)

    @cached_property
    def waste(self) -> UInt8:
        """The `Waste` of each collective."""
        comm = self.communication
        result = np.full(len(comm), Waste.NONE, np.uint8)
        if self.merged_share is not None and self.merged_share <= _FEWER:
            result[comm.gradients & (comm.phase == Phase.BACKWARD)] = Waste.SMALL
        if self.slow:
            result[self._bus_rates > 0] = Waste.SLOW
        elif self.below_calibrated:
            result[np.isfinite(self.calibrated_ns)] = Waste.SLOW
        result[self.regathered] = Waste.REGATHERED
        result[self.repeated] = Waste.REPEATED
        return result

    @cached_property
    def needed_ns(self) -> Int64:
        """The time of each collective without its waste, in ns; never more than its transfer."""
        comm = self.communication
        needed = comm.transfer_ns.astype(np.float64)
        needed[(self.waste == Waste.REPEATED) | (self.waste == Waste.REGATHERED)] = 0
        if self.merged_share is not None:
            needed[self.waste == Waste.SMALL] *= self.merged_share
        if self.slow and self.link is not None:
            # Per byte over the bus: what is short because it is small stays as it is.
            usual = comm.size_bytes * self._wire_share / (_USUAL * self.link.bytes_per_s) * 1e9
            slow = self.waste == Waste.SLOW
            needed[slow] = np.minimum(needed, usual)[slow]
        elif self.below_calibrated:
            slow = self.waste == Waste.SLOW
            needed[slow] = np.minimum(needed, self.calibrated_ns)[slow]
        return needed.astype(np.int64)

    @cached_property
    def inherent_ns(self) -> Int64:
        """The part of `needed_ns` that no arrangement hides: a round's last gradients, which are ready when nothing
        is left to compute, and the first parameters of a step, without which nothing can be computed. Of large ones, no
        more than a link in use takes for them: what is beyond is waiting or a slow link, and no arrangement's limit."""
        comm = self.communication
        inherent = np.zeros(len(comm), np.int64)
        for rows in _rounds(comm, np.flatnonzero(comm.gradients)):
            last_first = rows[np.argsort(-comm.end_ns[rows], kind="stable")]
            inherent[last_first] = self._up_to_tail(last_first)
        gathers = np.flatnonzero((comm.kind == "all_gather") & (comm.phase == Phase.FORWARD) & (comm.round == 0))
        for rows in _rounds(comm, gathers):
            first_first = rows[np.argsort(comm.start_ns[rows], kind="stable")]
            inherent[first_first] = self._up_to_tail(first_first)
            inherent[first_first[0]] = self.needed_ns[first_first[0]]
        if self.link is not None:
            at_most = comm.size_bytes * self._wire_share / (_FAR * self.link.bytes_per_s) * 1e9
            large = (comm.size_bytes >= _LARGE_BYTES) & (at_most > 0)
            inherent[large] = np.minimum(inherent, at_most)[large]
        return inherent

    def _up_to_tail(self, rows: Int64) -> Int64:
        """Return what the first of some ordered collectives need, up to the part of all that may be left unhidden."""
        needed = self.needed_ns[rows]
        moved = int(np.maximum(self.communication.size_bytes[rows], 0).sum())
        most = int(max(_TAIL, min(BUCKET_BYTES / moved, 1.0) if moved else 0.0) * needed.sum())
        before = np.cumsum(needed) - needed
        return np.asarray(np.clip(most - before, 0, needed), np.int64)

    @cached_property
    def _wire_share(self) -> np.typing.NDArray[np.float64]:
        """Bytes over the bus for each byte of the message, by kind and size of the group; 0 where unknown."""
        comm = self.communication
        if not self.trace.has_device:
            return np.zeros(len(comm))
        return wire_share(comm.kind, self._ranks)

    @cached_property
    def _ranks(self) -> Int64:
        """How many ranks take part in each, on a device; the whole job where the recording does not tell, 0 unknown."""
        told = np.array([*(one.group_size for one in self.trace.collectives), MISSING], np.int64)
        size = told[self.trace.device.collective[self.communication.row]]
        return np.where(size > 0, size, self.trace.world_size or 0)

    @cached_property
    def _bus_rates(self) -> np.typing.NDArray[np.float64]:
        """Bytes per second over the bus, of each collective; 0 where unknown."""
        comm = self.communication
        moved = np.maximum(comm.size_bytes, 0) * self._wire_share
        return np.asarray(moved / np.maximum(comm.duration_ns, 1) * 1e9, np.float64)

    def _optimizers(self, mine: Bool) -> int:
        """Return how often an optimizer was called from the first gradients of a step to a step's last, at the
        least."""
        comm, ranges = self.communication, self.trace.ranges
        optimizer = ranges.start_ns[ranges.kind == RangeKind.OPTIMIZER]
        begin, end = int(comm.issued_ns[mine].min()), int(comm.issued_ns[mine].max())
        return int(((optimizer > begin) & (optimizer < end)).sum()) + 1


def _rounds(comm: Communication, rows: Int64) -> Iterator[Int64]:
    """Yield some collectives by step and backward pass."""
    keys, same = np.unique(np.stack((comm.step, comm.round), axis=1)[rows], axis=0, return_inverse=True)
    same = same.reshape(-1)
    for number in range(len(keys)):
        yield rows[same == number]
