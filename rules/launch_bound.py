"""The device waits for launches: the host issues work more slowly than the device finishes it.

What it finds
    Idle time while the host is busy issuing: inside operators, inside launch calls, or in the short Python between
    them.

Why it costs
    Issuing an operator costs the host 5 to 50 µs whatever its size. Where kernels take less than that, the device
    finishes each before the next arrives.

What proves it
    Idle gaps cut at the launch of the work that ends them, whose host side is dispatch or launch; queue depth at the
    launches; kernels shorter, on average, than the host's time to issue one. Where issuing takes less time than the
    device's work, the host could be ahead, something else holds it up (`host-sync`, `input-bound`), and this rule says
    nothing; but a live run knows steps without a profiler: where those take longer than the device's work, the device
    waits in them, whatever the profiler's records are said to cost. Time in which the host stands still or computes is
    no part of issuing, nor is time in which a graph is captured, nor what the profiler's own records cost it
    (diagnose.measure.replay.profiler_overhead); a host that came round faster than the device works, while a live run
    watched it without a profiler, was ahead.

What fixes it
    Fewer, larger launches: `compile-model`, `cuda-graphs`, a bigger batch; `fused-optimizer` for the launches of the
    optimizer's step, which are a claim of their own. Of a recording that shows no training, the first two, of one
    without an optimizer's step none that treats one.

Thresholds
    diagnose.measure.steps.idle.ISSUE_NS (1 ms): time in operators counts as issuing only if at least one operator or
    call begins in each millisecond of it; else something was loaded, initialised or locked.
    BREAKS: in compiled functions of which graph breaks take a fifth of the host's time, the gaps are left to
    `graph-breaks`: one graph has fewer kernels, and what launching them costs is told once it is one.
    FEWEST: fewer kernels do not tell how fast the host issues them; chosen, not measured.
    LINKED: at least half of the work must be linked to its launch call, or the gaps cannot be attributed.
    BUSIEST: an operator is named that takes a quarter of the issuing by itself; chosen, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.views.host_activity import on_threads
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import (
    CannotTell,
    Claim,
    EventTable,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_ns,
)
from diagnose.trace.schema import Int64, RangeKind

BREAKS = 0.2
LINKED = 0.5
FEWEST = 5
BUSIEST = 0.25
_OF_MODELS = ("compile-model", "cuda-graphs")
_OF_LOOPS = ("bigger-microbatch", "zero-grad-none", "foreach-clip")
_OF_OPTIMIZERS = ("fused-optimizer",)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time while the host issues work."""
    if not measures.has_device:
        yield CannotTell("launch-bound", "a recording of the device's work")
        return
    rows = measures.rows_within_steps(measures.classes != KernelClass.COPY)
    if len(rows) < FEWEST:
        return
    if measures.launches.linked[rows].mean() < LINKED:
        yield CannotTell("launch-bound", "the launch calls of the kernels (correlation ids)")
        return
    captured = measures.capturing & measures.counted
    if 2 * captured.total_ns >= measures.total_ns:
        yield CannotTell("launch-bound", "steps that replay the graph: in most of this recording it is captured, and "
                         "what is launched does not run")  # fmt: skip
        return
    # Idle time while the host issues work, but for functions whose graph breaks are to be mended first
    regions = measures.compiled_regions
    split, breaks = regions.split & measures.counted, regions.between & measures.counted
    mended_first = len(split) > 0 and breaks.total_ns >= BREAKS * split.total_ns
    gaps = measures.issue_gaps - split if mended_first else measures.issue_gaps
    held_up = (measures.stands_still | measures.host_computing.time) & measures.issuing
    held_up_ns = held_up.covered(measures.steps.host_start_ns, measures.steps.host_end_ns)
    host = int((measures.issuing_ns - measures.recording_ns - held_up_ns).sum())
    device = int(measures.busy_ns.sum())
    untraced_ns = measures.replay.watched_ns
    if measures.replay.ran_ahead or (untraced_ns is None and host < device):
        return
    took = (
        f"it issues work for {format_ns(host / measures.step_count)} per step"
        if untraced_ns is None
        else f"steps take {format_ns(untraced_ns / measures.step_count)} without a profiler"
    )
    ahead = f"a host ahead of its device: {took}, the device works for {format_ns(device / measures.step_count)}"
    of_optimizer = measures.classes[rows] == KernelClass.OPTIMIZER
    if measures.lacks_optimizer or not of_optimizer.any():
        yield from _claim(measures, gaps, rows, "", host, _fixers(measures), ahead)
        return
    # What speeds a model up leaves the optimizer's launches as they are, and the other way round.
    ends = np.isin(gaps.ends, measures.trace.device.start_ns[rows[of_optimizer]])
    last = Intervals(gaps.starts[ends], gaps.ends[ends])
    own = round(host * (_optimizer_share(measures) or of_optimizer.mean()))
    yield from _claim(measures, gaps - last, rows[~of_optimizer], "", host - own, (*_OF_MODELS, *_OF_LOOPS), ahead)
    yield from _claim(measures, last, rows[of_optimizer], " of the optimizer", own, _OF_OPTIMIZERS, ahead)


def _optimizer_share(measures: Measures) -> float:
    """The part (0 to 1) of the host's issuing in which it runs optimizers; 0.0 where no step of one was recorded."""
    ranges = np.flatnonzero(measures.trace.ranges.kind == RangeKind.OPTIMIZER)
    steps = Intervals.of(measures.optimizer_starts_ns(ranges), measures.trace.ranges.end_ns[ranges])
    within = (measures.issuing & steps).covered(measures.steps.host_start_ns, measures.steps.host_end_ns)
    return float(within.sum() / max(int(measures.issuing_ns.sum()), 1))


def _claim(
    measures: Measures,
    gaps: Intervals,
    rows: Int64,
    whose: str,
    host_ns: int,
    fixers: tuple[str, ...] | None,
    ruled_out: str,
) -> Iterator[Claim]:
    """The time in gaps that launches of these rows end, which take the host `host_ns` in all; nothing where it cannot
    be given back.
    """
    gain = recoverable_ns(measures, gaps)
    if gain == 0 or len(rows) == 0:
        return
    lengths = (measures.trace.device.end_ns - measures.trace.device.start_ns)[rows]
    # What the profiler's records cost is known to a factor: a host that is late is not said to be fast.
    per_launch_ns = host_ns // len(rows) if host_ns >= lengths.sum() else None
    kernel_ns = float(np.median(lengths))
    # Where single kernels take longer, the host is late for them from what it issued before.
    pace = (
        f"the host needs {format_ns(per_launch_ns)} per kernel, the median kernel takes {format_ns(kernel_ns)}"
        if per_launch_ns is not None and per_launch_ns > kernel_ns
        else "the host is late when it issues them"
    )
    shallow = float((measures.queue_depth[rows] <= 1).mean())
    yield Claim(
        summary=f"the device waits {format_ns(gain / measures.step_count)} per step for launches{whose}: {pace}",
        recoverable_ns=gain,
        claims=gaps,
        evidence=[
            Evidence("kernels per step", len(rows) / measures.step_count, "count"),
            *([Evidence("host time per kernel", per_launch_ns, "ns")] if per_launch_ns is not None else []),
            Evidence("launch call", measures.launch_cost_ns or 0, "ns"),
            Evidence("median kernel", int(np.median(lengths)), "ns", tuple(rows.tolist())),
            Evidence("launches into an empty queue", shallow, "share"),
            *(() if whose else _busiest_operator(measures)),
        ],
        where=_where(measures, rows, gaps),
        fixers=fixers,
        ruled_out=(ruled_out,),
    )


def _busiest_operator(measures: Measures) -> Iterator[Evidence]:
    """Yield the kind of operator that takes the host most time by itself, where that is a good part of issuing."""
    ops = measures.trace.ops
    rows = np.flatnonzero(on_threads(ops.thread, measures.training_threads) & measures.counted.contains(ops.start_ns))
    if not len(rows):
        return
    spent = np.bincount(ops.name[rows], weights=measures.op_tree.nesting.self_ns[rows])
    if spent.max() >= BUSIEST * measures.issuing_ns.sum():
        mine = rows[ops.name[rows] == spent.argmax()]
        name, length = measures.trace.names[spent.argmax()], int(spent.max()) // measures.step_count
        yield Evidence(f"{name}, by itself", length, "ns", tuple(mine.tolist()), EventTable.OPS)
        yield Evidence(f"{name} per step", len(mine) / measures.step_count, "count")


def _fixers(measures: Measures) -> tuple[str, ...] | None:
    """All of the rule's own but where nothing is trained, or no optimizer steps."""
    if measures.only_infers:
        return _OF_MODELS
    return (*_OF_MODELS, "bigger-microbatch") if measures.lacks_optimizer else None


def _where(measures: Measures, rows: Int64, gaps: Intervals) -> Sequence[Place]:
    """The lines whose operators launch the work that is late, in the backward pass those that it goes back to."""
    late = rows[np.isin(measures.trace.device.start_ns[rows], gaps.ends)]
    return places_of_ops(measures, measures.op_of_work[late]) or measures.places(gaps)


_LATE = """
    host: ol ol ol ol ol
    gpu :   k  k  k  k  k
    step:                |
"""

_drawn = partial(drawn, repeat=4, unit_ns=10_000)
_FIRES = (
    _drawn(_LATE),
    # The same where a live run watched the host to be as slow without a profiler.
    _drawn(_LATE, facts=Facts(step_ns_watched=150_000)),
    # One that is ahead for part of a step and late in the rest of it: steps are longer than the device's work without a
    # profiler, too.
    drawn(
        """
        host: olololol             ol   ol   ol
        gpu :   kkkkk kkkk kkkk kkk  k    k    k
        step:                                   |
        """,
        repeat=4,
        unit_ns=8_000,
        facts=Facts(step_ns_watched=220_000),
    ),
)

_SILENT = (
    # Without the profiler, the host of a live run needs less than the 50 µs of the device's work.
    _drawn(_LATE, facts=Facts(step_ns_watched=40_000)),
    # A graph is launched once and keeps the device full.
    _drawn("""
        host: G
        gpu : kkkkkkkkkkkkkkkkkkkk
        step:                     |
    """),
    # The host is ahead: launches queue up behind long kernels.
    drawn(
        """
        host: olololol
        gpu :   kkkkkKKKKKkkkkkKKKKK
        step:                       |
        """,
        unit_ns=10_000,
        kernels={"K": "other_kernel"},
    ),
    # The gaps follow waits; the host's own work is shorter than the device's.
    _drawn("""
        host: ol sssss ol sssss ol sssss
        gpu :   kkkkkk   kkkkkk   kkkkkk
        step:                           |
    """),
    # Long kernels, idle because of the batch.
    drawn(
        """
        load: wwwwwwww
        host:         l
        gpu :          kkkkkkkk
        step:                  |
        """,
        repeat=4,
    ),
)

RULE = Rule(
    "launch-bound",
    check,
    fixers=(*_OF_MODELS, *_OF_OPTIMIZERS, *_OF_LOOPS),
    fires=_FIRES,
    silent=_SILENT,
    nearness=60,
    symptom=Symptom.HOST,
)
