"""Other ranks wait for the same one, step after step.

What it finds
    A rank that comes last to the collectives of most steps, so that all others wait for it and compute nothing.

Why it costs
    A collective ends when the last rank has arrived. Whatever holds one rank up holds all of them up.

What proves it
    Durations, not clocks: a collective lasts from a rank's arrival to the end for all, so that the rank that came last
    has the shortest one, and the others waited for the difference. Counted is what every other rank waited at least,
    without compute: were the late rank earlier, the next one would be the last. A rank is named if that is a share of
    the step that matters, in more steps than chance would have it, about as much in each, and, of eight ranks or more,
    unlike all others. In a balanced job nobody is.

    What the late rank did instead is its own finding, which becomes part of this one, or else the class of its time
    that exceeds the others'.

    A rank that issues its work more slowly gives back no more than its host takes longer for a step than the others'
    hosts. Where hosts are the slower side, a rank that happens to be ahead stays ahead: its device waits in every
    collective, step after step, and would be no faster without that. So neither how long it waits nor in how many steps
    is any proof; that the late rank's host takes longer is, in each of a few steps or in most of many. One odd step, or
    steps that vary as much, leave it open. What is or may be a wait of the others' hosts, for the late rank at last,
    does not count as slow. And of two ranks, where nobody recorded how long the late one waited for a core, that its
    host is slower for the second of a recording is no more than a bound.

    A rank that was given more work than the others gives back what lies above their mean: dealt out evenly, the others
    get what it loses, and of a gap between N ranks, one N-th stays. A rank that does the same work and is late for
    another reason gives back the whole gap. Which it is shows in its arithmetic where shapes were recorded; where they
    were not, one that computes longer, without a finding of its own, is taken to have more to compute.

What fixes it
    What fixes the late rank's own finding; dealing the work out evenly.

Thresholds
    2 % of the step, 3.5 modified z-scores of eight ranks or more, one in ten as the probability of chance, or a tenth
    of the step in each of three steps: see diagnose/measure/job/ranks.py. ALIKE (2 %): work of ranks that differs by
    less is the same. A rank whose host makes the job slower by less than RECORDED (half) of what the profiler's own
    records cost it is not named: how fast processes on one server write these down differs by a third
    (diagnose/measure/replay/profiler_overhead.py).
    Of two ranks neither is the usual one: there it must be RECORDED_MOST (1.6) times as much, the factor to which
    the cost of records is known (diagnose/measure/replay/overhead.py). Two recordings of a balanced program on two
    H200, bound by its host only while it is profiled, have one rank late by 0.9 and 1.4 times that cost: not the same.
    Three of a balanced job on four have one late by 0.4, 0.7 and 0.7: more ranks than two name it from a half on, but
    as a bound, and only what lies beyond 1.6 times the cost makes the finding severe.
    How much longer the late rank's host takes is the median over the steps. Sure of it is the lowest of up to five
    steps, the second lowest of up to eight and so on: once in eight times, at most, the median is less
    (diagnose/measure/views/noise.py).
    A rank that computes on the processor, and longer than the others, is not named where nobody recorded how long it
    waited for a core: of a balanced job on a busy host, either may be last in all of four steps. Nor is it by a finding
    of its own that explains less than half (_MOST) of what the others wait. Where it is recorded
    that the ranks did wait for cores, what the rank gives back is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from diagnose.measure.job.late_rank import (
    Gain,
    excess_per_step,
    flop_ratio,
    gain_without,
    issues_slowly,
    records_cost_ns,
    wait_per_step_ns,
)
from diagnose.measure.job.ranks import Job, Lateness
from diagnose.measure.steps.step_share import of_step
from diagnose.rule import (
    CannotTell,
    Confidence,
    Evidence,
    Finding,
    JobClaim,
    Rule,
    Symptom,
    Trace,
    drawn,
    format_count,
    format_ns,
    format_share,
    nothing_alone,
)
from diagnose.units import format_ranks

_REASON = 0.25
"""A reason explains at least this part of the time for which a rank is late."""

_MOST = 0.5
"""One that explains less than this leaves open what else made a rank late on a busy host."""

_SURE = 0.5
"""The share of its lateness beyond what the profiler's records may cost, below which a rank is late for all that is
known."""

ALIKE = 0.02
RECORDED = 0.5
RECORDED_MOST = 1.6

_GAIN = 0.02
"""A share of the step: a rank whose lateness costs the job less is not late."""

_ISSUED_SLOWLY = "launch-bound"
"""The words for a host that issues its work slowly, which is no reason why it does."""

_OF_THE_HOST = "cpu-contention"
"""What all ranks of a host share: no reason for one to be later than others that find the same."""

_ON_A_CORE = frozenset({"compute", "dispatch", "python", "unknown"})
"""Classes of time that grow while a processor's only thread of a rank is ready and has no core."""

_DOES = {
    "compute": "computes longer",
    "exposed_comm": "communicates longer",
    "exposed_copy": "copies longer",
    "input": "waits for its input",
    "sync": "waits for its device",
    "python": "runs Python",
    "gc": "collects garbage",
    "allocator": "allocates device memory",
    "compile": "compiles",
    "io": "writes files",
    "dispatch": "issues work more slowly",
    "launch": "issues work more slowly",
}


def check_job(job: Job, findings: Sequence[Sequence[Finding]]) -> Iterator[JobClaim | CannotTell]:
    """Late ranks, each with what it did instead."""
    if len(job.table) < 2:
        world = job.roll.world_size or 0
        if world > 1 and job.table and (spent := job.table[0].accounting).exposed_comm:
            share = format_share(spent.exposed_comm / spent.total_ns)
            others = f"{world - 1} ranks" if world > 2 else "rank"
            yield CannotTell(
                "straggler",
                f"the recordings of the other {others}: for {share} of its step this one computes nothing and is in "
                "collectives between them, where it may be waiting",
            )
        return
    if not job.matched:
        if any(row.accounting.exposed_comm for row in job.table):
            yield CannotTell("straggler", "collectives that the recordings of all ranks have in common")
        return
    for late in () if job.stragglers else job.lateness:
        if late.seen_too_seldom:
            yield CannotTell(
                "straggler",
                f"more steps: the others wait for rank {late.rank} for {format_share(late.share)} of the time, and "
                f"{late.late_steps} of {len(late.cost_ns)} steps may be chance",
            )
    for late in job.stragglers:
        answer = _answer(job, late, findings)
        if answer is not None:
            yield answer


def _answer(job: Job, late: Lateness, findings: Sequence[Sequence[Finding]]) -> JobClaim | CannotTell | None:
    """Return what is said of a rank that is late beyond chance; None where the others' hosts take as long
    themselves."""
    cost, excess, gain = wait_per_step_ns(late), excess_per_step(job, late.member), gain_without(job, late)
    negligible = _GAIN * job.table[late.member].mean_step_ns
    if gain.ns < negligible:
        return None
    recording = records_cost_ns(job, late, excess)
    if gain.ns < recording * (RECORDED if len(job.table) > 2 else RECORDED_MOST):
        return CannotTell(
            "straggler",
            f"rank {late.rank} without Python stacks and shapes: recording them costs its host "
            f"{format_ns(recording)} per step, and no more than {format_ns(gain.ns)} would come back",
        )
    if gain.surely_ns < negligible:
        return CannotTell(
            "straggler",
            f"more steps, or a live run: the others wait {format_ns(cost)} per step for rank {late.rank}, which "
            "issues its work after them, but whether its host takes longer than theirs is not beyond chance",
        )
    if _may_have_no_core(job, late, findings, excess):
        return CannotTell(
            "straggler",
            f"how long rank {late.rank}, which takes {format_ns(cost)} more per step for what it computes, waits "
            "for a core: some seconds of a live run",
        )
    return _claim(job, late, findings, gain)


def _may_have_no_core(
    job: Job, late: Lateness, findings: Sequence[Sequence[Finding]], excess: Mapping[str, int]
) -> bool:
    """Whether a rank computes on the processor, as much as the others for all that is known, and does so longer."""
    cost, times = wait_per_step_ns(late), flop_ratio(job, late.member)
    longer = next(iter(excess), None) in _ON_A_CORE and (times is None or times <= 1 + ALIKE)
    return (
        job.table[late.member].cores_unknown and longer and _leaves_open(_own_finding(job, late, findings, cost), cost)
    )


def _leaves_open(reason: Finding | None, cost_ns: int) -> bool:
    return reason is None or reason.estimate_ns < _MOST * cost_ns


def _claim(job: Job, late: Lateness, findings: Sequence[Sequence[Finding]], gain: Gain) -> JobClaim:
    cost, excess = wait_per_step_ns(late), excess_per_step(job, late.member)
    reason, times = _own_finding(job, late, findings, cost), flop_ratio(job, late.member)
    does = max(excess, key=lambda name: excess[name], default=None)
    why = _what_it_does(does, excess, cost, reason, late, times)
    coreless = does in _ON_A_CORE and _leaves_open(reason, cost) and (times is None or times <= 1 + ALIKE)
    coreless = coreless and any(one.rule == _OF_THE_HOST for one in findings[late.member])
    if coreless:
        why.append("the ranks wait for cores, and whether it has more to do is not recorded")
    uneven = times > 1 + ALIKE if times is not None else reason is None and does == "compute"
    more_work = min(max(excess.get("compute", 0), 0), cost) if uneven else 0
    back = gain.ns - min(more_work, gain.ns) // len(job.table)
    if gain.ns < cost:
        why.append(f"as their hosts take almost as long for a step, {format_ns(gain.ns)} of it come back")
    if more_work:
        why.append(f"{'if so, ' if coreless else ''}dealt out evenly, that gives back {format_ns(back)}")
    sure, doubts = _sure(job, late, excess, reason, gain)
    why += doubts
    share = late.share * back / max(cost, 1)
    return JobClaim(
        summary="; ".join([_waiting(job, late), *why]),
        rank=late.rank,
        member=late.member,
        recoverable_ns=back,
        share=share,
        sure=sure,
        confidence=Confidence.BOUND if coreless or sure < _SURE else Confidence.MEASURED,
        evidence=list(_evidence(job, late, excess, reason, times, gain)),
        where=reason.where if reason else (),
        fixers=reason.fixers if reason else (),
        confirm=reason.confirm if reason else "what that rank does differently: its data, its device, its host",
    )


def _sure(
    job: Job, late: Lateness, excess: Mapping[str, int], reason: Finding | None, gain: Gain
) -> tuple[float, list[str]]:
    """Return which part of what comes back does so for certain (0 to 1), and what makes the rest uncertain."""
    recording = records_cost_ns(job, late, excess)
    sure = max(1 - (gain.ns - gain.surely_ns + RECORDED_MOST * recording) / max(gain.ns, 1), 0.0)
    doubts = []
    if sure < _SURE and recording:
        doubts.append(f"the profiler's records cost its host {format_ns(recording)} per step, and may be why")
    unexplained = reason is None or reason.rule == _ISSUED_SLOWLY or _leaves_open(reason, wait_per_step_ns(late))
    if len(job.table) == 2 and issues_slowly(excess) and job.table[late.member].queue_unknown and unexplained:
        sure = 0.0  # several others show what is usual on this host
        doubts.append("how long it waited for a core meanwhile is not recorded")
    return sure, doubts


def _waiting(job: Job, late: Lateness) -> str:
    others = [one.rank for at, one in enumerate(job.table) if at != late.member and one.rank is not None]
    waiting = f"{format_ranks(others)} wait{'s' if len(others) == 1 else ''} for it"
    wait = of_step(sum(late.cost_ns), sum(late.cost_ns) / late.share, len(late.cost_ns), "traced step")
    return f"rank {late.rank} is late: {waiting} {wait}"


def _what_it_does(
    does: str | None,
    excess: Mapping[str, int],
    cost_ns: int,
    reason: Finding | None,
    late: Lateness,
    times: float | None,
) -> list[str]:
    """Return what the late rank does instead, in words: nothing where nothing tells."""
    why = f"{reason.rule} on rank {late.rank}" if reason else ""
    if does is not None and excess[does] >= _REASON * cost_ns:
        more = f"it {_DOES.get(does, 'does something else')}, {format_ns(excess[does])} per step more than the others"
        if does == "compute" and times is not None and times > 1 + ALIKE:
            more += f", with {format_count(times)} times their arithmetic"
        why = f"{more} ({why})" if why else more
    return [why] if why else []


def _evidence(
    job: Job, late: Lateness, excess: Mapping[str, int], reason: Finding | None, times: float | None, gain: Gain
) -> Iterator[Evidence]:
    yield Evidence("what every other rank waits for it, per step", wait_per_step_ns(late), "ns")
    yield Evidence("steps in which it is late", late.late_steps, "count")
    yield Evidence("of steps", len(late.cost_ns), "count")
    if gain.ns < wait_per_step_ns(late):
        yield Evidence("its host takes longer than the others', in the median step", gain.ns, "ns")
        yield Evidence("of it, beyond chance", gain.surely_ns, "ns")
    yield Evidence("collectives in which it came last", job.table[late.member].last or 0, "count")
    for name, time in [(name, time) for name, time in excess.items() if time > 0][:3]:
        yield Evidence(f"more {name} than the others", time, "ns")
    if recording := records_cost_ns(job, late, excess):
        yield Evidence("what the profiler's records cost its host, per step", recording, "ns")
    if times is not None:
        yield Evidence("its arithmetic, as a multiple of the others'", round(times, 3), "share")
    if reason:
        yield Evidence(f"{reason.rule} on it", reason.estimate_ns, "ns")


def _own_finding(job: Job, late: Lateness, findings: Sequence[Sequence[Finding]], cost_ns: int) -> Finding | None:
    """The late rank's finding that exceeds the same one of the other ranks by most, if it explains enough."""
    best, most = None, _REASON * cost_ns
    for finding in findings[late.member]:
        theirs = [
            max((one.estimate_ns for one in of_rank if one.rule == finding.rule), default=0)
            for member, of_rank in enumerate(findings)
            if member != late.member and member < len(job.table)
        ]
        if finding.rule == _OF_THE_HOST and median(theirs) > 0:
            continue
        more = finding.estimate_ns - median(theirs)
        if more >= most:
            best, most = finding, more
    return best


def _rank(number: int, picture: str) -> Trace:
    return drawn(picture, repeat=5, rank=number, world_size=2)


_EARLY = """
    gpu   : kkkk
    gpu 20:     cccccc
    opt   :           O
"""
_LATE = """
    load  : wwww
    gpu   :     kkkk
    gpu 20:         cc
    opt   :           O
"""

_FIRES = ((_rank(0, _EARLY), _rank(1, _LATE)),)
_SILENT = (
    # Both wait for their input: neither waits for the other.
    (_rank(0, _LATE), _rank(1, _LATE)),
    # One rank alone.
    (_rank(0, _EARLY),),
)

RULE = Rule(
    "straggler",
    nothing_alone,
    check_job=check_job,
    fires_job=_FIRES,
    silent_job=_SILENT,
    nearness=20,
    symptom=Symptom.RANKS,
)
