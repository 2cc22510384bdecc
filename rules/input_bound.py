"""The device (or, on a CPU-only run, the training thread) waits for the next batch.

What it finds
    Time in which the training thread is inside the data loader's `__next__` while the device has nothing to do. It
    tells apart: no workers (the training thread makes the batch itself), too few workers, workers that are too slow
    for this machine's cores, and bursts (most steps find a batch ready, every few steps one does not). A program that
    has no loader but a function for it (`get_batch`, `next_batch`, …) makes each batch itself as well.

Why it costs
    A step cannot begin before its batch is there. With no workers, loading and training take turns; with workers, the
    loader is slower than training as soon as one batch costs more than workers × step.

What proves it
    Idle time of the device that coincides with the loader's wait, as annotated by the profiler, seen by the loader
    hook of a live run, or shown by stack samples. A wait under a busy device costs nothing and is not counted. The
    recoverable time is that idle time; without recorded device work on a machine with one, it is an upper bound.

    Training lives on the batches that workers made before it began until these are used up, so that the traced steps
    may wait for none. The log of a live run shows the steps after them: there, a late batch costs what its step takes
    longer than the usual one, at most as long as the loader was waited for.

What fixes it
    More workers, kept alive between epochs, with pinned memory (`loader-workers`); a batch prepared ahead
    (`loader-prefetch`); samples decoded once, by hand.

Thresholds
    BURST: waits come in bursts when at most half of the steps wait as long as the mean wait; with an even loader about
    all of them do.
    FEWEST_LATE (3) and SELDOM (16): batches of the log that are late, and the steps between two of them at most. Rarer
    ones come with the start of an epoch, which is `periodic-stall`; so do, however often, those of a step in which the
    loader was seen to begin a pass.
    LATE (a tenth): the part of the usual step by which a late batch lengthens its own.
    SHORTEN: ailments of the device's work and its launches. Without them, workers that keep up now may be what a step
    waits for: what they compute for a batch is foreseen as the least step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.loader_capacity import busy_loader_ns, training_loaders
from diagnose.measure.steps.outlier_steps import begins_pass, step_times
from diagnose.measure.steps.step_share import of_step
from diagnose.measure.views.host_activity import on_threads
from diagnose.rule import (
    SHORTEN_DEVICE_WORK,
    CannotTell,
    Claim,
    Confidence,
    EventTable,
    Evidence,
    Facts,
    Measures,
    Place,
    Rule,
    Site,
    Symptom,
    drawn,
    format_ns,
)
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import RangeKind, StepLog

BURST = 0.5
FEWEST_LATE = 3
SELDOM = 16
LATE = 0.1
SHORTEN = (*SHORTEN_DEVICE_WORK, "unfused-loss", "launch-bound")

_WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"
"""The iterator of a `DataLoader` without workers, in the name that torch.profiler gives to its `__next__`."""

_FIXERS = ("loader-workers", "loader-pin", "loader-prefetch", "persistent-workers")
_WITHOUT_DEVICE = tuple(name for name in _FIXERS if name != "loader-pin")  # only copies to a device read pinned memory


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time in the loader, told apart by workers."""
    if measures.step_count == 0:
        yield CannotTell("input-bound", "at least one whole training step")
        return
    waits = measures.idle["input"]
    gain = recoverable_ns(measures, waits)
    late, late_ns = _late_batches(measures)
    unseen_ns = max(0, late_ns - waits.total_ns // measures.step_count)
    yield from _once_steps_are_shorter(measures)
    if gain == 0 and unseen_ns == 0:
        if not _saw_loader(measures) and not len(measures.trace.ops):
            yield CannotTell("input-bound", "when the training thread waits for its loader: operators or a live run")
        return
    trace = measures.trace
    bound = measures.blind
    loaders = training_loaders(trace)
    workers = _workers(measures, loaders)
    kind, evidence = _told_apart(measures, workers, unseen_ns)
    if unseen_ns:
        evidence.append(Evidence("late batches in the log", late, "count"))
    idle = "the device idles" if measures.has_device else "the training thread waits"
    steps, more_ns = measures.step_count, unseen_ns * measures.step_count
    waited = of_step(
        waits.total_ns + more_ns, measures.total_ns + more_ns, steps, "step of the run" if unseen_ns else "traced step"
    )
    yield Claim(
        summary=f"{idle} for the next batch for {waited}: {kind}",
        recoverable_ns=gain,
        claims=waits,
        unseen_ns=unseen_ns,
        confidence=Confidence.BOUND if bound else Confidence.MEASURED,
        evidence=evidence,
        where=_where(loaders, measures.places(waits, "input")),
        fixers=_FIXERS if measures.has_device or bound else _WITHOUT_DEVICE,
        ruled_out=_ruled_out(measures),
        confirm="trace a few steps: the wait may be hidden behind device work" if bound else None,
        # Workers take turns: of so many steps, one waits.
        knows_how_often=bool(workers),
    )


def _ruled_out(measures: Measures) -> tuple[str, ...]:
    """Waits that the device's work hides, where a profiler saw the loader's calls."""
    rows = list(_loads(measures))
    if not measures.has_device or not rows:
        return ()
    ranges, steps = measures.trace.ranges, measures.step_count
    taken = Intervals.of(ranges.start_ns[rows], ranges.end_ns[rows]).total_ns
    idle = format_ns(measures.idle["input"].total_ns / steps)
    return (f"a wait that the device's work hides: training is in the loader for {format_ns(taken / steps)} per step, "
            f"the device idles for {idle} of it",)  # fmt: skip


def _once_steps_are_shorter(measures: Measures) -> Iterator[Claim]:
    """Yield what workers that keep up with the device would cost a faster one."""
    least_ns = busy_loader_ns(measures)
    if least_ns:
        yield Claim(
            summary=f"its workers need {format_ns(least_ns)} for a batch, and shorter steps would wait for them",
            recoverable_ns=0,
            claims=Intervals.of([], []),
            confidence=Confidence.HINT,
            where=_where(training_loaders(measures.trace), ()),
            fixers=("loader-workers",),
            once=SHORTEN,
            least_step_ns=least_ns,
        )


def _late_batches(measures: Measures) -> tuple[int, int]:
    """Return how many batches of the log are late, and what that costs per step; zero for few, and without a log."""
    log = step_times(measures.trace, measures.steps)
    if log is None or not log.live:
        return 0, 0
    order = np.argsort(measures.trace.step_log.end_ns)[1:]
    waited, length = measures.trace.step_log.input_ns[order][log.usable], log.length_ns[log.usable]
    device_ns = np.median(measures.busy_ns) if measures.has_device else 0
    usual = max(float(np.median(length)), float(device_ns))
    first = begins_pass(measures.trace, log)[log.usable]
    longer = np.where(first, 0, np.minimum(waited, np.maximum(length - usual, 0)))
    late = int((longer > LATE * usual).sum())
    if late < FEWEST_LATE or late * SELDOM < len(length):
        return 0, 0
    # A host ahead of its device makes up for a long step in the next ones.
    return late, max(0, int(min(longer.mean(), length.mean() - usual)))


def _loads(measures: Measures) -> tuple[int, ...]:
    """Rows of the ranges in which training took a batch from its loader, within the counted steps; of ranges within
    each other, the outer one. What another thread loads ahead of training is none of them."""
    ranges = measures.trace.ranges
    mine = (ranges.kind == RangeKind.INPUT) & on_threads(ranges.thread, measures.training_threads)
    rows = np.flatnonzero(mine & measures.counted.contains(ranges.start_ns))
    ends = ranges.end_ns[rows]
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1])) if len(rows) else ends
    return tuple(rows[ends > before].tolist())


def _saw_loader(measures: Measures) -> bool:
    return bool((measures.trace.ranges.kind == RangeKind.INPUT).any()) or len(measures.trace.step_log) > 0


def _workers(measures: Measures, loaders: list[Site]) -> int | None:
    """The most workers of a loader: as it was built, else none where only iterators without workers were waited for."""
    counts = [site.arguments.get("num_workers") for site in loaders]
    numbers = [count for count in counts if isinstance(count, int)]
    waited = {measures.trace.names[name] for name in measures.trace.ranges.name[[*_loads(measures)]].tolist()}
    alone = bool(waited) and all(_WITHOUT_WORKERS in name for name in waited)
    return max(numbers) if numbers else 0 if alone else None


def _told_apart(measures: Measures, workers: int | None, unseen_ns: int) -> tuple[str, list[Evidence]]:
    """Return what kind of loader trouble it is, in words, and the figures behind it."""
    per_step = measures.per_step(measures.idle["input"])
    mean, step_ns = float(per_step.mean()) + unseen_ns, measures.mean_ns + unseen_ns
    evidence = [Evidence("idle.input", int(mean), "ns", _loads(measures), EventTable.RANGES)]
    watched = len(measures.trace.frames) + len(measures.trace.samples) > 0
    if workers is None and watched and not _saw_loader(measures) and not measures.saw_library_loader:
        return "there is no loader, the training thread makes each batch itself", evidence
    if workers is None:
        return "the loader is slower than training", evidence
    evidence.append(Evidence("loader workers", workers, "count"))
    if workers == 0:
        return "it has no workers, the training thread makes each batch itself", evidence
    # While one batch is trained on, each worker prepares one: a batch costs workers × step of worker time.
    batch_ns = workers * step_ns
    evidence.append(Evidence("worker time per batch, at most", int(batch_ns), "ns"))
    if (
        unseen_ns == 0
        and measures.step_count >= 4
        and (per_step >= mean).mean() <= BURST
        and np.median(per_step) < mean / 2
    ):
        return f"its {workers} workers deliver in bursts, some batches are late while most are ready", evidence
    needed = int(np.ceil(batch_ns / max(step_ns - mean, 1)))
    cores = measures.trace.facts.cpu_count
    evidence.append(Evidence("workers that would keep up", needed, "count"))
    if cores is not None and needed > cores:
        return f"its {workers} workers are too slow; {needed} would keep up, but there are {cores} cores", evidence
    return f"its {workers} workers are too few; about {needed} would keep up", evidence


def _where(loaders: list[Site], sampled: Sequence[Place]) -> list[Place]:
    """Return where loaders are built, then the lines that were seen at work, each line once."""
    built = {(site.file, site.line): Place.at(site) for site in loaders}
    seen = [place for place in sampled if (place.file, place.line) not in built]
    return [*built.values(), *seen]


def _logged(late: int, every: int, steps: int = 48) -> StepLog:
    """A log of steps of 10 ms of which every so many wait so much longer for their batch, for the examples."""
    waits = np.array([late if (step + 1) % every == 0 else 0 for step in range(steps)]) * 1_000_000
    return StepLog.build({"end_ns": np.cumsum(waits + 10_000_000), "input_ns": waits})


_OWN_STACK = [("train.py", 24, "get_batch"), ("train.py", 60, "<module>")]


def _loader(workers: int) -> dict[str, Any]:
    return {"sites": (Site("DataLoader", "train.py", 12, "main", {"num_workers": workers, "batch_size": 64}),)}


_drawn = partial(drawn, repeat=4, frames={"b": "train.py(24): get_batch"})
_FIRES = (
    # No workers: loading and training take turns.
    drawn(
        """
        load: wwwwwwww
        host:         ol
        gpu :           kkkkkkkk
        opt :          O
        line: dddddddd
        """,
        repeat=4,
        stacks={"d": [("data.py", 30, "__getitem__"), ("torch/utils/data/dataloader.py", 700, "__next__")]},
        **_loader(0),
    ),
    # Too few workers: half of the wait is hidden.
    drawn(
        """
        load: wwwww  wwwwwwwwwww  wwwwwwwwwww  wwwwwwwwwww
        host:      ol           ol           ol           ol
        gpu :        kkkkkkk      kkkkkkk      kkkkkkk      kkkkkkk
        opt :       O            O            O            O
        """,
        **_loader(2),
    ),
    # On a CPU alone, the training thread itself is what waits.
    drawn(
        """
        load: wwwwwwww
        host:         oooooooo
        opt :                O
        """,
        repeat=4,
        facts=Facts(cpu_count=2),
        **_loader(0),
    ),
    # No loader: a function of the program's own reads and stacks the samples, and the profiler recorded its calls.
    _drawn("""
        call: bbbbbbbb
        host: oooooooool
        gpu :           kkkkkkkk
        step:                   |
    """),
    # The same, seen by a sampler.
    drawn(
        """
        line: bbbbbbbb
        host: oooooooool
        gpu :           kkkkkkkk
        step:                   |
        """,
        repeat=4,
        stacks={"b": _OWN_STACK},
    ),
)

_SILENT = (
    # The wait is hidden under device work.
    drawn(
        """
        load:   wwwwwww  wwwwwww  wwwwwww
        host: ol       ol       ol       ol
        gpu :   kkkkkkkkkKKKKKKKKKkkkkkkkkkKKKKKKKKK
        opt :  O        O        O        O
        """,
        kernels={"K": "other_kernel"},
        **_loader(0),
    ),
    # The program's own function waits for the device, which was busy all the time.
    _drawn("""
        call:   bbbbbbbb
        host: olssssssss
        gpu :   kkkkkkkk
        step:           |
    """),
    # A function that trains on a batch does not make it.
    drawn(
        """
        call: bbbbbbbb
        host: oooooooool
        gpu :           kkkkkkkk
        step:                   |
        """,
        repeat=4,
        frames={"b": "train.py(24): train_batch"},
    ),
    # The device is idle, but the training thread is not in the loader.
    drawn(
        """
        load:    w
        host: ol       ol
        gpu :   kk       kkkkkkkk
        opt :           O
        """,
        repeat=4,
    ),
    # One wait in twenty steps is the start of an epoch.
    drawn(
        """
        host: olsssssss olsssssss
        gpu :   kkkkkkk   kkkkkkk
        opt :         O         O
        """,
        repeat=2,
        step_log=_logged(60, 20, 120),
        **_loader(4),
    ),
)

RULE = Rule(
    "input-bound",
    check,
    fixers=_FIXERS,
    fires=_FIRES,
    silent=_SILENT,
    nearness=10,
    symptom=Symptom.DATA,
)
