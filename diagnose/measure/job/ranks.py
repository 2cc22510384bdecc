"""The ranks of one job: where the time of each went, whose clock is where, who waits for whom, who is missing.

job = job_of([Measures(trace) for trace in traces])
job.table[2].waited_ns      # how long rank 2 waited in collectives, without its own transfers
job.stragglers              # the ranks that others wait for, significantly; empty where the job is balanced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.job.matching import Matched, match_sequences
from diagnose.measure.job.rank_record import RankRecord, record_of
from diagnose.model import Accounting
from diagnose.trace.intervals import Intervals
from diagnose.trace.readers.inputs import OfRank
from diagnose.trace.schema import MISSING, Float64, Int64
from diagnose.units import format_ranks

SHARE = 0.02
"""A rank is late in a step if the others lose this share of the step by it: less is no finding anyway."""

_Z = 3.5
"""Modified z-score (0.6745 × distance from the median / median absolute deviation) from which a rank is unlike the
rest: the bound that Iglewicz and Hoaglin recommend."""

_RANKS_FOR_Z = 8
"""The number of ranks below which the deviation is mostly chance. Nothing is lost: a cost is what *every* other rank
waited."""

_FEWEST_STEPS = 2
_MOST_RANKS = 1 << 20  # a damaged recording may claim any number

_CHANCE = 0.1
"""How probable it may be that one rank is late in as many steps as seen, were a random rank late in each."""

_ALWAYS_STEPS, _ALWAYS_SHARE = 3, 0.1
"""One of two ranks is last in all of three steps by chance once in eight times; a tenth of each step late it is not."""

_STEADY = 0.5  # the least that a straggler costs in the usual late step, as a share of the median


@dataclass(frozen=True, slots=True)
class JobRow:
    """One rank of a job, over its counted steps. Times are ns; None is unknown."""

    rank: int | None
    source: str
    steps: int
    mean_step_ns: float
    accounting: Accounting
    clock_ns: int | None
    """How far its clock is ahead of the first rank's, from the ends of common collectives."""
    clock_spread_ns: int | None
    waited_ns: int | None
    """The time in collectives waiting for the last rank to arrive."""
    exposed_wait_ns: int | None
    """The part of it in which it did not compute either."""
    last: int | None
    """The number of collectives in which it was the last to arrive."""
    flop: float | None = None
    """The arithmetic of a step, as far as it is known."""
    recording_ns: int | None = None
    """What the profiler's own records cost its host, per step."""
    hosts_ns: tuple[int, ...] | None = None
    """Per step, what its host has surely to do by itself, without all that is or may be a wait."""
    hosts_most_ns: tuple[int, ...] | None = None
    """Per step, what its host has to do by itself, with what may be a wait."""
    queue_unknown: bool = False
    """Whether nobody recorded how long the rank waited for a core."""
    cores_unknown: bool = False
    """Whether the rank computes on the processor, and nobody recorded how long it waited for a core."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The time that one rank's lateness costs the others, per counted step, and whether it is more than chance."""

    rank: int | None
    member: int
    """The rank's position among the given measures."""
    cost_ns: tuple[int, ...]
    """The time per step that every other rank at least waited for this one, not computing."""
    share: float
    """The share of all counted steps that the cost is (0 to 1)."""
    late_steps: int
    z: float | None
    """How unlike the others it waits, in modified z-scores; None with too few ranks to tell."""
    chance: float
    """How probable so many late steps of one rank are by chance."""

    @property
    def significant(self) -> bool:
        """Whether the others wait for this rank beyond doubt: much, steadily, and for no other one."""
        late = [cost for cost in self.cost_ns if cost]
        steady = bool(late) and float(np.quantile(late, 0.25)) >= _STEADY * float(np.median(late))
        unlike = self.z is None or self.z > _Z
        always = self.late_steps == len(self.cost_ns) >= _ALWAYS_STEPS and self.share >= _ALWAYS_SHARE
        lasting = self.late_steps >= _FEWEST_STEPS and (self.chance <= _CHANCE or always)
        return self.share >= SHARE and lasting and unlike and steady

    @property
    def seen_too_seldom(self) -> bool:
        """Whether this rank was late in all counted steps, which are too few to rule out chance."""
        always = self.late_steps == len(self.cost_ns) > 0
        return self.share >= SHARE and always and not self.significant and self.chance > _CHANCE


@dataclass(frozen=True, slots=True)
class RollCall:
    """Which ranks of a job are given."""

    missing: tuple[int, ...]
    """Ranks of which nothing is given."""
    duplicates: tuple[int, ...]
    """Ranks that are given more than once."""
    world_size: int | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The faults of the set of ranks, a sentence each."""
        found = []
        if self.missing:
            count = f" of {self.world_size}" if self.world_size else ""
            verb, who, whom = ("is", "it", "it") if len(self.missing) == 1 else ("are", "they", "them")
            found.append(
                f"{format_ranks(self.missing)}{count} {verb} missing: what {who} did, and who waited for {whom}, "
                "is unknown"
            )
        if self.duplicates:
            verb = "is" if len(self.duplicates) == 1 else "are"
            found.append(
                f"{format_ranks(self.duplicates)} {verb} given more than once: are these recordings of one job?"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Job:
    """All that is known of a job's ranks together."""

    table: tuple[JobRow, ...]
    """Each rank once: of several recordings of one, the first."""
    matched: tuple[Matched, ...]
    """Members are positions in `table`."""
    lateness: tuple[Lateness, ...]
    """One a row of `table`; empty where no collectives could be matched within counted steps."""
    roll: RollCall
    given: tuple[int, ...] = ()
    """Per row of `table`, which of the given records it is."""
    waiting: tuple[Intervals, ...] = ()
    """Per row of `table`, on its own clock: when it waited for other ranks in collectives and did not compute."""

    @property
    def stragglers(self) -> tuple[Lateness, ...]:
        """The ranks that others significantly wait for, the costliest first."""
        return tuple(sorted((one for one in self.lateness if one.significant), key=lambda one: -one.share))


def job_of(measures: Sequence[Measures]) -> Job:
    """The ranks of a job, in the order given; a rank given twice is taken once."""
    return job_of_records([record_of(one) for one in measures])


def job_of_records(records: Sequence[RankRecord]) -> Job:
    """The job of ranks that were measured elsewhere; see `job_of`."""
    first: dict[object, int] = {}
    for number, one in enumerate(records):
        first.setdefault((number,) if one.rank is None else one.rank, number)
    taken = [records[number] for number in first.values()]
    matched = match_sequences([one.sequences for one in taken]) if len(taken) > 1 else ()
    waits = [_exposed(group, taken) for group in matched]
    return Job(
        table=tuple(_row(member, one, matched, waits) for member, one in enumerate(taken)),
        matched=matched,
        lateness=_lateness(taken, matched, waits),
        roll=roll_call(records),
        given=tuple(first.values()),
        waiting=tuple(_waiting(member, one, matched) for member, one in enumerate(taken)),
    )


def roll_call(given: Sequence[OfRank]) -> RollCall:
    """Return which ranks are missing, and which are there more than once; without any known rank, none is."""
    ranks = [one.rank for one in given if one.rank is not None]
    world = max((one.world_size for one in given if one.world_size), default=None)
    expected = range(min(world if world is not None else max(ranks, default=-1) + 1, _MOST_RANKS))
    present = set(ranks)
    return RollCall(
        missing=tuple(rank for rank in expected if rank not in present) if ranks else (),
        duplicates=tuple(sorted(rank for rank in present if ranks.count(rank) > 1)),
        world_size=world,
    )


def _waiting(member: int, record: RankRecord, matched: Sequence[Matched]) -> Intervals:
    stretches = []
    for group in matched:
        if member in group.members:
            column = group.members.index(member)
            begin = group.start_ns[:, column]
            stretches.append(Intervals.of(begin, begin + np.maximum(group.wait_ns[:, column], 0)))
    return Intervals.union(stretches) - record.computing


def _exposed(group: Matched, records: Sequence[RankRecord]) -> Int64:
    """Per collective and member, the part of its wait in which it did not compute; 0 where it is not comparable."""
    wait = np.maximum(group.wait_ns, 0)
    exposed = []
    for column, member in enumerate(group.members):
        begin, end = group.start_ns[:, column], group.start_ns[:, column] + wait[:, column]
        # Where several run at once (gloo's threads do), time that one waits already is not waited for again.
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        begin = np.minimum(np.maximum(begin, before), end)
        exposed.append(end - begin - records[member].computing.covered(begin, end))
    return np.stack(exposed, axis=1)


def _row(member: int, record: RankRecord, matched: Sequence[Matched], waits: Sequence[Int64]) -> JobRow:
    mine = [
        (group, wait, group.members.index(member))
        for group, wait in zip(matched, waits, strict=True)
        if member in group.members
    ]
    clock = [(group.spread_ns[column], group.offset_ns[column]) for group, _, column in mine if group.members[0] == 0]
    spread, offset = min(clock) if clock else (None, None)
    return JobRow(
        rank=record.rank,
        source=record.source,
        steps=len(record.step_ns),
        mean_step_ns=int(record.step_ns.sum()) / len(record.step_ns) if len(record.step_ns) else 0.0,
        accounting=record.accounting,
        clock_ns=offset,
        clock_spread_ns=spread,
        waited_ns=sum(int(np.maximum(group.wait_ns[:, column], 0).sum()) for group, _, column in mine)
        if mine
        else None,
        exposed_wait_ns=sum(int(wait[:, column].sum()) for _, wait, column in mine) if mine else None,
        last=sum(int((group.last == column).sum()) for group, _, column in mine) if mine else None,
        flop=record.flop,
        recording_ns=record.recording_ns,
        hosts_ns=None if record.hosts_ns is None else tuple(record.hosts_ns.tolist()),
        hosts_most_ns=None if record.hosts_most_ns is None else tuple(record.hosts_most_ns.tolist()),
        queue_unknown=record.queue_unknown,
        cores_unknown=record.cores_unknown,
    )


def _lateness(
    records: Sequence[RankRecord], matched: Sequence[Matched], waits: Sequence[Int64]
) -> tuple[Lateness, ...]:
    ranks = len(records)
    length = records[0].step_ns if records else np.empty(0, np.int64)
    if len(length) == 0 or not matched:
        return ()
    cost, waited = np.zeros((len(length), ranks), np.int64), np.zeros(ranks, np.int64)
    for group, wait in zip(matched, waits, strict=True):
        step = step_of(group, records[0].step_start_ns, records[0].step_end_ns)
        for column, member in enumerate(group.members):
            others = [other for other in range(len(group.members)) if other != column]
            rows = (group.last == column) & (step >= 0)
            least = wait[np.ix_(rows, others)].min(axis=1)  # were this rank earlier, the next one would be last
            np.add.at(cost[:, member], step[rows], least)
            waited[member] += int(wait[step >= 0, column].sum())
    scores = _scores(-waited, SHARE * int(length.sum()))
    found = []
    for member, one in enumerate(records):
        late = int((cost[:, member] >= SHARE * length).sum())
        found.append(
            Lateness(
                rank=one.rank,
                member=member,
                cost_ns=tuple(cost[:, member].tolist()),
                share=int(cost[:, member].sum()) / int(length.sum()),
                late_steps=late,
                z=float(scores[member]) if ranks >= _RANKS_FOR_Z else None,
                chance=_tail(late, len(length), 1 / ranks),
            )
        )
    return tuple(found)


def step_of(group: Matched, step_start_ns: Int64, step_end_ns: Int64) -> Int64:
    """The step, of the job's first rank, in which each collective ended, on that rank's clock; -1 outside."""
    if not len(step_start_ns):
        return np.full(len(group), MISSING, np.int64)
    column = 0  # a group without the first rank is read on the clock of its own first member
    ends = group.end_ns[:, column]
    step = np.searchsorted(step_start_ns, ends, side="left") - 1  # what ends on a border ends that step
    inside = (step >= 0) & (group.rows[:, column] != MISSING)
    inside &= ends <= step_end_ns[np.maximum(step, 0)]
    return np.where(inside, step, MISSING)


def _scores(values: Int64, floor: float) -> Float64:
    """Modified z-scores, by a deviation large enough that a distance below `floor` is none."""
    distance = values - np.median(values)
    deviation = max(float(np.median(np.abs(distance))), 0.6745 * floor / _Z)
    return np.asarray(0.6745 * distance / max(deviation, 1e-9), np.float64)


def _tail(successes: int, trials: int, probability: float) -> float:
    """The probability of at least so many successes."""
    return sum(
        comb(trials, count) * probability**count * (1 - probability) ** (trials - count)
        for count in range(successes, trials + 1)
    )
