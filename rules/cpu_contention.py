"""Training waits for a core.

What it finds
    Live runs in which the process and its workers keep all cores busy that they may use, and training stands in the
    queue for one: loader workers times their threads, torch's own threads, other processes.

Why it costs
    A thread that is ready and has no core launches nothing. More runnable threads than cores also lengthen each other:
    what one of them waits for comes later.

What proves it
    The time that training was ready to run and no thread of it had a core, as the kernel counts it
    (`/proc/PID/task/*/schedstat`), read beside the run: the process's first thread, and autograd's thread of each
    device, for which the first one waits in `backward`. Recordings of earlier versions count the first thread alone,
    which sees little of it where backward runs in another.

    The step is taken to lose that share of all that it spends on the processor, or of what its device idles for the
    host. That is an estimate, and no bound on either side. It may be too low: threads that have a core share caches
    with others, and what training waits for while it is not ready (a loader's worker, the thread that pins batches,
    OpenMP's threads, whoever holds Python's lock) may be late for want of a core itself. It may be too high: a thread
    that is given a core at once may wait for something else then, and its waits may have fallen into what the device
    computed meanwhile.

    Cores that are all busy are no proof by themselves: workers that use what training leaves over cost nothing.

What fixes it
    Fewer workers (`loader-workers`), fewer threads in each of them and in training (`set-num-threads`). Where other
    programs have the cores, no change of this one helps: end them, or give the run cores of its own (`taskset`, the
    scheduler's `--cpus-per-task`).

Thresholds
    FEWEST (5) readings: some seconds, so that a burst of other processes is not taken for the rule.
    QUEUED (2 %): below this share of training's time, and of the step that waits for the host, waiting for a core is no
    more than a note (severity low begins there).
    STILL (5 %): standing still for this share of the steps is told where nobody recorded why (severity medium).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.views.host_activity import on_threads
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_ns,
    format_share,
)
from diagnose.trace.schema import Counters

FEWEST = 5
QUEUED = 0.02
STILL = 0.05

_QUEUED = "host.queued"
"""Time that training was ready without a core, in percent of the time between readings (diagnose.collect.run_queue)."""
_HOST_CAUSES = ("python", "dispatch", "launch", "input", "unknown")
_FIXERS = ("loader-workers", "set-num-threads")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The share of its time for which training had no core, of the time for which it mattered."""
    if measures.step_count == 0:
        return
    if measures.share(_lost(measures, 1.0)) < QUEUED:
        return
    queued = _values(measures, _QUEUED)
    if len(queued) < FEWEST:
        still = measures.stands_still & measures.counted
        where = (
            f"; it stands still within operators for {format_ns(still.total_ns / measures.step_count)} of each step, "
            f"{_longest(measures, still)}"
            if still.total_ns >= STILL * measures.total_ns
            else ""
        )
        yield CannotTell("cpu-contention", f"how long training waits for a core: some seconds of a live run{where}")
        return
    share = min(float(np.median(queued)) / 100, 1.0)
    if share < QUEUED:
        return
    gain = recoverable_ns(measures, _lost(measures, share))
    if gain == 0:
        return
    cores = measures.trace.facts.cpu_count
    busy, others, workers = (_median(measures, f"host.{name}") for name in ("cpu", "others_cpu", "workers"))
    strangers = others is not None and busy is not None and others > busy
    loaders = [
        Place.at(site)
        for site in measures.trace.sites
        if site.kind == "DataLoader" and site.arguments.get("num_workers")
    ]
    yield Claim(
        summary=f"training is ready and has no core for {format_share(share)} of its time"
        f"{_rivals(others if strangers else None, workers, cores)}",
        recoverable_ns=gain,
        # Any moment of it may be a lost one: what else lies in this time keeps its part, wherever in the step it is.
        claims=_lost(measures, 1.0),
        confidence=Confidence.HINT,
        evidence=[Evidence("ready without a core", share, "share"), *_used(measures, busy, others, workers)],
        where=loaders,
        fixers=_fixers(strangers, bool(loaders or (workers and not measures.trace.sites))),
        confirm="a run with nothing else on these cores" if strangers else "a trial with fewer workers or threads",
    )


def _longest(measures: Measures, still: Intervals) -> str:
    """Return how long the thread stands still at most, and in what call or operator."""
    at = int(still.lengths_ns.argmax())
    begin, end = int(still.starts[at]), int(still.ends[at])
    inside = []
    for table in (measures.trace.calls, measures.trace.ops):
        mine = on_threads(table.thread, measures.training_threads)
        rows = np.flatnonzero(mine & (table.start_ns <= begin) & (table.end_ns >= end))
        inside += [measures.trace.names[table.name[rows[-1]]]] if len(rows) else []
    first = ", as where a kernel's code is loaded first" if inside and "Launch" in inside[0] else ""
    return " in ".join((f"for {format_ns(end - begin)} at once", *inside)) + first


def _used(measures: Measures, busy: float | None, others: float | None, workers: float | None) -> Iterator[Evidence]:
    """Yield who has the cores, as far as that is known; loads are in percent of a core."""
    facts = measures.trace.facts
    if busy is not None:
        yield Evidence("cores busy with this run", busy / 100, "count")
    if others is not None:
        yield Evidence("cores busy with other processes", others / 100, "count")
    if workers is not None:
        yield Evidence("loader workers and other children", round(workers), "count")
    if facts.cpu_count is not None:
        yield Evidence("cores that it may use", facts.cpu_count, "count")
    yield Evidence("torch threads", facts.torch_threads or 0, "count")


def _fixers(strangers: bool, has_workers: bool) -> tuple[str, ...]:
    """Return what may help: a run without loader workers (of unrecorded sites, any child may be one) can give none up.

    Nor can a run without workers give threads up to strangers: they take what it leaves.
    """
    if has_workers:
        return _FIXERS
    return () if strangers else _FIXERS[1:]


def _rivals(others: float | None, workers: float | None, cores: int | None) -> str:
    """Return who has the cores meanwhile: strangers (percent of a core, where they use more than the run), or its
    workers."""
    if not cores:
        return ""
    if others is not None:
        return f": programs that are no part of the run use {others / 100:.1f} of its {cores} cores"
    return f": {workers:.0f} child processes share {cores} cores with it" if workers else ""


def _lost(measures: Measures, share: float) -> Intervals:
    """The share of each stretch for which the step waits for the host."""
    late = measures.idle_of(*_HOST_CAUSES)
    if not measures.has_device:
        late = late | measures.compute
    late = late & measures.counted
    return Intervals.of(late.starts, late.starts + (late.lengths_ns * share).astype(np.int64))


def _values(measures: Measures, name: str) -> np.typing.NDArray[np.float64]:
    return np.asarray(measures.trace.counter(name).value, np.float64)


def _median(measures: Measures, name: str) -> float | None:
    values = _values(measures, name)
    return float(np.median(values)) if len(values) else None


_STEP = """
    host: oooooooo    oooooo
    opt :                  O
"""


def _counted(queued: float) -> Counters:
    """Readings of that many percent, for the examples: the first name of a drawing stands in for the counter's."""
    return Counters.build({"time_ns": range(8), "name": [0] * 8, "value": [queued] * 8})


_FIRES = (drawn(_STEP, repeat=4, ops={"o": _QUEUED}, counters=_counted(30.0)),)

_SILENT = (
    # All cores are busy, but training gets one when it needs one.
    drawn(_STEP, repeat=4, ops={"o": _QUEUED}, counters=_counted(0.4)),
    # It queues, but the device has work meanwhile.
    drawn(
        """
        host: olol
        gpu :   kkkkkkkkkkKKKKKKKKKK
        step:                       |
        """,
        ops={"o": _QUEUED},
        kernels={"K": "other_kernel"},
        counters=_counted(30.0),
    ),
)

RULE = Rule(
    "cpu-contention",
    check,
    fixers=_FIXERS,
    fires=_FIRES,
    silent=_SILENT,
    nearness=9,  # whatever the thread was about to do, it had no core for it
    symptom=Symptom.HOST,
)
