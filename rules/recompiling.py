"""Code is compiled in steady steps.

What it finds
    Activity of `torch.compile` inside the counted steps: a guard failed (a new shape, a changed number, another
    object), and the code was compiled once more.

Why it costs
    Compiling takes a fraction of a second to minutes, during which nothing is launched. After
    `torch._dynamo.config.recompile_limit` (8) failures, calls that fit none of the versions run uncompiled, which costs
    each time.

What proves it
    Compilations as the compiler reports them on a live run or in the recording, else stack samples inside the compiler,
    as far as the device idles in them (on a CPU-only run, the training thread). First calls compile, and that is
    how it should be: without a log of the steps before, compilations which cease are no finding. What is found in a
    profile alone is a bound: the profiler slows the compiler, too, and was seen to make it take twice as long.

    Compilations after the first steps, but outside the recorded ones, are told by the log of steps: what the average
    step is longer than the usual one, as far as it compiles. Without a longer step they are a hint without a figure. So
    is a function that the compiler gave up, be it in the first steps: it is compiled no more, calls that fit an
    earlier version still run it, and nothing tells what the others cost.

What fixes it
    `torch._dynamo.mark_dynamic` (`mark-dynamic`); lengths padded to a few sizes.
    `TORCH_LOGS=recompiles` names the guards that fail; a live run records them, with the function's line.

Thresholds
    FEWEST_STEPS (3): where the steps before were not watched, a program may compile twice, once for its first shapes
    and once for shapes of any size; what the third step or a later one compiles is too much.
    WARM_UP (10): steps of a live run that may compile: as many as it waits, at least, before it calls them steady.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.outlier_steps import AFTER_WINDOW
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Site,
    Symptom,
    drawn,
    format_ns,
)
from diagnose.trace.schema import RangeKind

FEWEST_STEPS = 3
WARM_UP = 10
_UNCOMPILED = ", and what fits none of the versions runs uncompiled since"

_CHANGING = re.compile(r"(?<=expected )\S+(?=,)|(?<=actual )\S+|(?<=== )-?[\d.]+(?:e-?\d+)?")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time in the compiler that does not cease."""
    # A collection in the middle of compiling is part of it: the compiler makes millions of objects.
    idle = measures.idle["compile"] | (measures.idle["gc"] & _compiling(measures))
    gain = recoverable_ns(measures, idle) if _lasts(measures, idle) else 0
    if gain == 0:
        if (late := _outside(measures) or _given_up(measures)) is not None:
            yield late
        elif measures.share(idle) > 0 and not _watched(measures) and measures.step_count < FEWEST_STEPS:
            yield CannotTell("recompiling", "three steps or more: in fewer, compiling at first looks the same")
        return
    count, steps, recompiled = _begun(measures), measures.step_count, _recompiled(measures)
    affected = int((measures.per_step(idle) > 0).sum())
    who = "the device idles" if measures.has_device else "the training thread spends"
    yield Claim(
        summary=f"{who} {format_ns(gain / steps)} per step while code is compiled again, in {affected} of {steps} "
        f"steps{_guards(measures)}",
        recoverable_ns=gain,
        claims=idle,
        confidence=Confidence.MEASURED if _watched(measures) and not measures.blind else Confidence.BOUND,
        evidence=[
            Evidence("idle.compile", idle.total_ns // steps, "ns"),
            Evidence("steps that compile", affected / steps, "share"),
            *([Evidence("compilations per step", count / steps, "count")] if count else []),
            *([Evidence("recompilations that name their guard", len(recompiled), "count")] if recompiled else []),
        ],
        where=_where(measures, idle),
        confirm="TORCH_LOGS=recompiles: it names the guard that fails",
    )


def _compiling(measures: Measures) -> Intervals:
    ranges = measures.trace.ranges
    rows = ranges.kind == RangeKind.COMPILE
    return Intervals.of_rows(ranges, rows)


def _recompiled(measures: Measures) -> list[Site]:
    """Recompilations that Dynamo explained on a live run, without those of the first steps where these were watched."""
    trace = measures.trace
    known = [site for site in trace.sites if site.kind == "recompile"]
    if len(trace.step_log) <= WARM_UP:
        return known
    warm = int(trace.step_log.end_ns[WARM_UP - 1])
    return [site for site in known if _begun_at(site) is None or (_begun_at(site) or 0) >= warm]


def _begun_at(site: Site) -> int | None:
    start = site.arguments.get("start_ns")
    return start if isinstance(start, int) else None


def _guards(measures: Measures) -> str:
    """The guard that failed most often, with its numbers left out: they differ each time."""
    recompiled = _recompiled(measures)
    if not recompiled:
        return ""
    limit = f"; Dynamo has reached its limit{_UNCOMPILED}" if _gave_up(recompiled) else ""
    return f"{_reasons(recompiled)}{limit}"


def _reasons(recompiled: list[Site]) -> str:
    reasons = Counter(_kind(str(site.arguments.get("reason"))) for site in recompiled)
    (guard, times), more = reasons.most_common(1)[0], len(reasons) - 1
    others = f" and {more} other guards" if more else ""
    return f": {guard}, {times} times{others}"


def _kind(reason: str) -> str:
    """A reason without its source comment and without what changes from one time to the next."""
    return _CHANGING.sub("…", reason.partition("  #")[0]).strip()


def _gave_up(recompiled: list[Site]) -> bool:
    return any(site.arguments.get("limit") is True for site in recompiled)


def _watched(measures: Measures) -> bool:
    """Whether the first steps are known to lie before the counted ones."""
    log = measures.trace.step_log
    if measures.step_count == 0 or len(log) == 0:
        return False
    return int((log.end_ns <= measures.steps.host_start_ns[0]).sum()) >= WARM_UP


def _lasts(measures: Measures, idle: Intervals) -> bool:
    """Whether compiling goes on in steps that should have all they need."""
    affected = np.flatnonzero(measures.per_step(idle))
    if len(affected) == 0:
        return False
    return _watched(measures) or int(affected[-1]) >= FEWEST_STEPS - 1


def _begun(measures: Measures) -> int:
    """Compilations that began within the counted steps."""
    # The compiler reports its phases one within the other: what is not interrupted is one compilation.
    return int(measures.counted.contains(_compiling(measures).starts).sum())


def _outside(measures: Measures) -> Claim | None:
    """A hint where a live run compiled after its first steps, though not in the counted ones."""
    trace = measures.trace
    if len(trace.step_log) <= WARM_UP:
        return None
    rows = (trace.ranges.kind == RangeKind.COMPILE) & (trace.ranges.start_ns >= trace.step_log.end_ns[WARM_UP - 1])
    time = Intervals.of_rows(trace.ranges, rows)
    count = len(time)
    if count == 0:
        return None
    unseen = _unseen_ns(measures, time)
    cost = f", {format_ns(unseen)} per step on average" if unseen else ""
    return Claim(
        summary=f"code was compiled {count} times more after the first {WARM_UP} steps, {format_ns(time.total_ns)} in "
        f"all and none of it in the recorded steps{cost}{_guards(measures)}",
        unseen_ns=unseen,
        confidence=Confidence.BOUND if unseen else Confidence.HINT,
        evidence=[
            Evidence("compilations after the first steps", count, "count"),
            Evidence("time per later step", time.total_ns // (len(trace.step_log) - WARM_UP), "ns"),
        ],
        where=_where(measures, time),
        confirm="TORCH_LOGS=recompiles: it names the guard that fails",
    )


def _given_up(measures: Measures) -> Claim | None:
    """A hint where Dynamo has reached its limit: batches that differ in length reach it within ten steps."""
    sites = [site for site in measures.trace.sites if site.kind == "recompile"]
    if not _gave_up(sites):
        return None
    named = Counter(site.function for site in sites if site.function).most_common(1)
    what = f"`{named[0][0]}`" if named else "a function"
    return Claim(
        summary=f"{what} was compiled again until Dynamo reached its limit{_UNCOMPILED}{_reasons(sites)}",
        confidence=Confidence.HINT,
        evidence=[Evidence("recompilations that name their guard", len(sites), "count")],
        where=_places_of(sites),
        confirm="TORCH_LOGS=recompiles: it names the guard that fails; the step's length once it fails no more",
    )


def _unseen_ns(measures: Measures, compiling: Intervals) -> int:
    """Return what the average logged step loses to compiling: its length beyond that of usual steps, as far as it
    compiles.

    A host that is ahead of the device compiles under its work. Steps with the profiler at work are left out.
    """
    trace, ends = measures.trace, np.sort(measures.trace.step_log.end_ns)
    starts, ends = ends[WARM_UP - 1 : -1], ends[WARM_UP:]
    if trace.window_ns is not None:
        before, after = np.searchsorted(ends, trace.window_ns)
        at = np.arange(len(ends))
        usable = (at < before - 1) | (at > after + AFTER_WINDOW)
        starts, ends = starts[usable], ends[usable]
    if len(ends) == 0:
        return 0
    length = ends - starts
    usual = float(np.median(length))
    if measures.has_device and measures.step_count:
        usual = max(usual, float(np.median(measures.busy_ns)))
    spent = int(compiling.covered(starts, ends).sum()) // len(ends)
    return max(min(int(length.mean() - usual), spent), 0)


def _where(measures: Measures, time: Intervals) -> list[Place]:
    """Lines that were seen to compile, then the functions that were compiled again, then what was to be compiled."""
    places = list(measures.places(time, "compile"))
    compiled = [site for site in measures.trace.sites if site.kind == "compile"]
    known = {(place.file, place.line) for place in places}
    return places + [
        place for place in _places_of([*_recompiled(measures), *compiled]) if (place.file, place.line) not in known
    ]


def _places_of(sites: list[Site]) -> list[Place]:
    """Each line once; the attempt at which Dynamo gives up names none."""
    lines = {(site.file, site.line): site for site in sites if site.file}
    return [Place(file, line, function=site.function) for (file, line), site in lines.items()]


_COMPILER = {"x": [("torch/_dynamo/convert_frame.py", 700, "_compile"), ("train.py", 37, "main")]}

_drawn = partial(drawn, repeat=4, stacks=_COMPILER)
_FIRES = (
    # Another length in every batch.
    _drawn("""
        comp: xxxxxxxx
        host:         ol
        gpu :           kkkkkkkk
        line: xxxxxxxx
        step:                   |
    """),
    # The same, seen by the sampler alone.
    _drawn("""
        host:         ol
        gpu :           kkkkkkkk
        line: xxxxxxxx
        step:                   |
    """),
)

_SILENT = (
    # The first step compiles, the second one for shapes of any size; then there is no more to compile.
    drawn("""
        comp: xxxxxxxxxx          xxxx
        host:           ol            ol        ol        ol
        gpu :             kkkkkkkk      kkkkkkkk  kkkkkkkk  kkkkkkkk
        step: |                   |             |         |         |
    """),
    # Another thread compiles ahead, under a full queue.
    drawn(
        """
        comp:  xxxxxxxx
        host: olol
        gpu :   kkkkkkkkkkKKKKKK
        step:                   |
        """,
        kernels={"K": "other_kernel"},
    ),
)

RULE = Rule(
    "recompiling",
    check,
    fixers=("mark-dynamic",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=8,
    symptom=Symptom.HOST,
)
