"""The host waits for the device, and the device then waits for the host.

What it finds
    Calls in which the training thread waits for the device (`.item()`, `bool(tensor)`, `.cpu()`, `nonzero`,
    `synchronize`) and after which the device runs dry, because nothing was queued behind the work waited for.

Why it costs
    Kernels are launched ahead of time, so that the device always has a next one. A wait empties that queue: until the
    host has issued work again, the device idles, once per wait.

What proves it
    Idle time that begins under a wait or in the short refill after it, and the launch gaps of steps with waits: a host
    that is held issues nothing meanwhile, and is late for all that follows. How much of that time the waits cost says
    the replay without them and without what the operators that read a value do on the host; it is limited to step −
    max(host work, device work). What is left of the gaps then is `launch-bound`. A wait behind which the device stays
    busy costs nothing and is not reported.

What fixes it
    Collect the value later, or not every step (`defer-item`); drop a `synchronize` (`drop-synchronize`); weigh
    what a mask selects instead of selecting it (`weigh-masked`).

Thresholds
    None of its own; `diagnose.measure.steps.idle.REFILL_NS` says what counts as a refill, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.measure.replay.savings import without_waiting_ns, without_waits
from diagnose.model import SyncSite
from diagnose.rule import (
    CannotTell,
    Claim,
    EventTable,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_ns,
    format_times,
)

_LOOK_BACK = 50  # operators that may have ended between the start of an enclosing one and the wait

_OF_ALL = ("defer-item", "drop-synchronize", "keep-on-device", "drop-debug")
_FIXERS = ("foreach-clip", "weigh-masked", *_OF_ALL)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time that waits for the device caused, by line."""
    if not measures.has_device:
        yield CannotTell("host-sync", "a recording of the device's work")
        return
    if len(measures.trace.calls) == 0:
        yield CannotTell("host-sync", "the host's calls of the device runtime (cudaStreamSynchronize, …)")
        return
    if measures.step_count == 0 or len(measures.wait_calls) == 0:
        return
    claims = (measures.idle["sync"] | _thrown_back(measures)) - measures.pageable_waits
    gain = without_waiting_ns(measures, claims)
    if gain == 0:
        return
    count = len(measures.wait_calls) / measures.step_count
    waited = int(measures.waits.covered(measures.steps.host_start_ns, measures.steps.host_end_ns).sum())
    by = _waiting_in(measures)
    yield Claim(
        summary=f"the host waits for the device {format_times(count)} per step{f' in {by}' if by else ''}, "
        f"and the device then idles {format_ns(gain / measures.step_count)}",
        recoverable_ns=gain,
        claims=claims,
        cut=without_waits(measures),
        evidence=[
            Evidence("waits per step", count, "count", tuple(measures.wait_calls.tolist()), EventTable.CALLS),
            Evidence("idle.sync", measures.idle["sync"].total_ns // measures.step_count, "ns"),
            Evidence("host time in waits", waited // measures.step_count, "ns"),
        ],
        where=_where(measures),
        fixers=_fixers(measures),
        ruled_out=_ruled_out(measures),
    )


def _ruled_out(measures: Measures) -> tuple[str, ...]:
    """The host's own pace, where it issues work in less time than the device needs for it."""
    issues, works = (int(spent.sum()) // measures.step_count for spent in (measures.issuing_ns, measures.busy_ns))
    if issues >= works:
        return ()
    return (f"a slow host: without its waits it issues work for {format_ns(issues)} per step, the device works for "
            f"{format_ns(works)}",)  # fmt: skip


def _fixers(measures: Measures) -> tuple[str, ...]:
    if measures.only_infers:
        return _OF_ALL
    return (*_FIXERS, "fused-optimizer") if _scales_losses(measures) else _FIXERS


def _scales_losses(measures: Measures) -> bool:
    """Whether a GradScaler reads in each step if gradients overflowed; a fused optimizer asks that on the device."""
    return any(site.kind == "GradScaler" and site.arguments.get("enabled") is True for site in measures.trace.sites)


def _thrown_back(measures: Measures) -> Intervals:
    """Launch gaps of steps in which the host waits: a host that does not wait is further ahead at all of them."""
    steps = measures.steps
    waiting = measures.waits.covered(steps.host_start_ns, steps.host_end_ns) > 0
    return measures.issue_gaps & Intervals.of_rows(steps, waiting)


def _waiting_in(measures: Measures) -> str | None:
    """The operator in which most waiting time is spent, or the call itself where no operator encloses it."""
    trace = measures.trace
    spent: Counter[str] = Counter()
    mine = trace.ops.where(np.isin(trace.ops.thread, [*measures.training_threads, measures.thread])).sorted_by_start()
    last = np.searchsorted(mine.start_ns, trace.calls.start_ns[measures.wait_calls], side="right") - 1
    for row, place in zip(measures.wait_calls.tolist(), last.tolist(), strict=True):
        end = trace.calls.end_ns[row]
        near = range(place, max(place - _LOOK_BACK, -1), -1)
        around = next((trace.names[mine.name[op]] for op in near if mine.end_ns[op] >= end), None)
        spent[around or trace.names[trace.calls.name[row]]] += int(end - trace.calls.start_ns[row])
    return max(spent.items(), key=lambda entry: (entry[1], entry[0]))[0] if spent else None


def _where(measures: Measures) -> list[Place]:
    """Lines that were caught waiting, by samples where there are any, else by how often."""
    sampled = measures.places(measures.waits)
    if measures.trace.sync_sites is None:
        return list(sampled)
    caught = sorted(measures.trace.sync_sites, key=lambda site: (-site.per_step, site.file, site.line))
    shares = {(place.file, place.line): place.share for place in sampled}
    places = [
        Place(site.file, site.line, function=site.function, share=shares.get((site.file, site.line))) for site in caught
    ]
    return sorted(places, key=lambda place: -(place.share or 0.0))


_FIRES = (
    # `.item()` once a step: the device idles until the host has issued work again.
    drawn(
        """
        host: ol sssssss  ol
        gpu :   kkkkkkk     kkkk
        step:                   |
        """,
        repeat=4,
        unit_ns=20_000,
        ops={"o": "aten::item"},
        sync_sites=(SyncSite("train.py", 41, "main", 1.0),),
    ),
    # After each wait the host is thrown back: launch gaps, though its own work is shorter than the device's.
    drawn(
        """
        host: ol sssss ol sssss ol sssss
        gpu :   kkkkkk   kkkkkk   kkkkkk
        step:                           |
        """,
        repeat=4,
        unit_ns=10_000,
    ),
)

_SILENT = (
    # Waiting for old work while the queue is full: the device stays busy.
    drawn(
        """
        host : ololc sss
        gpu  : uukkkkkkkKKKKKKKK
        gpu 7:       D
        step :                  |
        """,
        kernels={"K": "other_kernel"},
        unit_ns=20_000,
    ),
    # Idle, but because of Python: nobody waits.
    drawn(
        """
        host: ol            ol
        gpu :   kkkkk         kkkk
        step:                     |
        """,
        repeat=4,
    ),
)

RULE = Rule("host-sync", check, fixers=_FIXERS, fires=_FIRES, silent=_SILENT, nearness=20, symptom=Symptom.HOST)
