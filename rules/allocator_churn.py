"""The device waits while memory is taken from it and given back, in steady steps.

What it finds
    Idle time inside calls that allocate or free device memory (`cudaMalloc`, `cudaFree`, `hipMalloc`, `cuMemMap`, …) or
    pinned host memory, in steps that should find all they need in the caching allocator.

Why it costs
    `cudaFree` waits until the device has finished everything; `cudaMalloc` takes 0.1 to 1 ms. PyTorch keeps memory that
    is freed, so that a steady step makes none of these calls. It does when `torch.cuda.empty_cache()` gives the memory
    back, when caching is off, when memory is so full or so fragmented that an allocation is retried after everything
    that is unused was freed.

What proves it
    Idle time of the device inside such calls, in several steps up to the end of the recording. The first steps fill the
    allocator, and that is how it should be: calls which cease, and recordings without several steps, are no finding.
    Two steps are enough where both of them give memory back, as filling the allocator never does.

    Where memory is given back because there was no room, this is `memory-pressure`; where it is taken in every step and
    never given back, `leaking-memory`.

What fixes it
    No `empty_cache()` in the loop (`drop-empty-cache`); `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`
    (`expandable-segments`); caching switched on again.

Thresholds
    FEWEST_STEPS (3): of two steps that only take memory, nobody can tell whether the calls cease.
    UNSEEN (2 %): below this share of fewer steps, the question is not worth asking (severity low begins there).
    LASTING (half): the calls must occur in this part, at least, of the later half of the steps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.views.host_activity import ALLOCATIONS
from diagnose.measure.views.names import named
from diagnose.rule import (
    CannotTell,
    Claim,
    EventTable,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_count,
    format_ns,
)
from diagnose.trace.schema import Int64

FEWEST_STEPS = 3
LASTING = 0.5
UNSEEN = 0.02

_EMPTY_CACHE = "empty_cache"
_GIVES_BACK = re.compile(r"^(cuda|hip)Free(Async)?$|^cuMem(Free|Unmap)")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time in allocation calls that do not cease."""
    if not measures.has_device:
        yield CannotTell("allocator-churn", "a recording of the device's work")
        return
    idle = measures.idle["allocator"]
    rows = _calls(measures)
    if measures.step_count < FEWEST_STEPS and not _gives_back(measures, rows):
        if measures.share(idle) >= UNSEEN:
            yield CannotTell("allocator-churn", "three steps or more: in fewer, filling the allocator looks the same")
        return
    gain = recoverable_ns(measures, idle) if _lasts(measures, rows) else 0
    if gain == 0:
        return
    steps = measures.step_count
    names = Counter(measures.trace.names[name] for name in measures.trace.calls.name[rows].tolist())
    common = " and ".join(name for name, _ in names.most_common(2))
    emptied = _empties_cache(measures, idle)
    yield Claim(
        summary=f"the device idles {format_ns(gain / steps)} per step in {common} "
        f"({format_count(len(rows) / steps)} calls per step){': the program empties the cache' if emptied else ''}",
        recoverable_ns=gain,
        claims=idle,
        evidence=[
            Evidence("idle.allocator", idle.total_ns // steps, "ns"),
            Evidence("allocation calls per step", len(rows) / steps, "count", tuple(rows.tolist()), EventTable.CALLS),
        ],
        where=measures.places(idle),
        fixers=("drop-empty-cache",) if emptied else None,
    )


def _calls(measures: Measures) -> Int64:
    """Rows of calls that allocate or free and begin within the host's counted steps."""
    trace, steps = measures.trace, measures.steps
    if measures.step_count == 0:
        return np.empty(0, np.int64)
    start = trace.calls.start_ns
    inside = (start >= steps.host_start_ns[0]) & (start < steps.host_end_ns[-1])
    return np.flatnonzero(named(trace.names, trace.calls.name, ALLOCATIONS) & inside)


def _gives_back(measures: Measures, rows: Int64) -> bool:
    """Whether each of several steps gives memory back."""
    calls = measures.trace.calls
    freed = rows[named(measures.trace.names, calls.name[rows], _GIVES_BACK)]
    return measures.step_count > 1 and bool((_per_step(measures, freed) > 0).all())


def _lasts(measures: Measures, rows: Int64) -> bool:
    """Whether the calls go on to the end, rather than fill the allocator in the first steps."""
    count = _per_step(measures, rows)
    return bool((count[len(count) // 2 :] > 0).mean() >= LASTING)


def _per_step(measures: Measures, rows: Int64) -> Int64:
    """Return how many of these calls begin in each of the host's counted steps."""
    starts, steps = np.sort(measures.trace.calls.start_ns[rows]), measures.steps
    return np.asarray(np.searchsorted(starts, steps.host_end_ns) - np.searchsorted(starts, steps.host_start_ns))


def _empties_cache(measures: Measures, idle: Intervals) -> bool:
    """Whether `torch.cuda.empty_cache` was seen at work, by the sampler in a counted step or in recorded calls.

    A sample need not fall into the idle time itself: the sampler has its turn when the call is over.
    """
    trace, steps = measures.trace, measures.steps
    stacks = [i for i, stack in enumerate(trace.stacks) if any(frame.function == _EMPTY_CACHE for frame in stack)]
    seen = trace.samples.time_ns[np.isin(trace.samples.stack, stacks)]
    if ((seen >= steps.host_start_ns[0]) & (seen < steps.host_end_ns[-1])).any():
        return True
    named = np.array([*(name.endswith(f": {_EMPTY_CACHE}") for name in trace.names), False], np.bool_)
    calls = named[trace.frames.name]
    return bool(idle.covered(trace.frames.start_ns[calls], trace.frames.end_ns[calls]).any())


_EMPTIED = {"x": [("torch/cuda/memory.py", 222, "empty_cache"), ("train.py", 44, "main")]}

_drawn = partial(drawn, repeat=4)
_FIRES = (
    # The cache is emptied after every step, and filled again.
    _drawn(
        """
        host: fffffmmmolmmmol
        gpu :            kk  kkkkkkk
        line: xxxxx
        step:                       |
        """,
        stacks=_EMPTIED,
    ),
    # No caching: each operator allocates.
    _drawn("""
        host: mmmol fffmmmol fff
        gpu :      k        k
        step:                   |
    """),
    # Two steps, and both give memory back.
    drawn(
        """
        host: fffffmmmolmmmol
        gpu :            kk  kkkkkkk
        step:                       |
        """,
        repeat=3,
    ),
)

_SILENT = (
    # The first step fills the allocator; from then on memory is there.
    drawn("""
        host: mmmmmmmol        ol        ol        ol
        gpu :          kkkkkkkk  kkkkkkkk  kkkkkkkk  kkkkkkkk
        step: |                 |         |         |         |
    """),
    # An allocation under a full queue.
    _drawn("""
        host: olmmm
        gpu :   kkkkkkkkkkk
        step:              |
    """),
    # Two steps that only take memory: the allocator may still be filling.
    drawn(
        """
        host: mmmmmmmol
        gpu :          kkkkkkkk
        step:                  |
        """,
        repeat=3,
    ),
    # One step: whether the calls cease cannot be seen.
    drawn("""
        host: mmmmmmmol
        gpu :          kkkkkkkk
    """),
)

RULE = Rule(
    "allocator-churn",
    check,
    fixers=("drop-empty-cache", "expandable-segments"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=14,
    symptom=Symptom.HOST,
)
