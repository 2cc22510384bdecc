"""DistributedDataParallel searches the graph for unused parameters in every step, though all are used.

What it finds
    `find_unused_parameters=True` where every parameter gets its gradient in every step, as far as the host's time in
    the search and in the map of used parameters, and the all-reduce of that map, hold the device up.

Why it costs
    After each forward pass the whole graph of autograd is walked on the host. In the backward pass a hook of each
    parameter notes that it was used, and at its end that is reduced over the ranks and read, parameter by parameter.
    Buckets are also not put into the order in which gradients become ready, so that the last one may wait for the
    first; that part is not counted here.

What proves it
    The profiler's mark of the search (`search_unused_parameters`). That all parameters are used: as many gradients are
    accumulated in a backward pass as the bitmap has entries (or as the optimizer has tensors). That the map is written
    and read: after each gradient that autograd accumulates, and before all else that it does for it, an entry is chosen
    and set (`select`, `fill_`); on the thread of the backward pass, outside of its operators, as many entries as
    gradients are chosen and read (`select`, `item`) without a wait for the device. torch 2.11 and 2.13 do so alike; of
    a pass with more of these than gradients, or fewer, none counts. The recoverable time is the idle time of the device
    in all of that, and that of the step without the bitmap's collective, as the replay says.

What fixes it
    `find_unused_parameters=False`, the default (`ddp-all-used`).

Thresholds
    None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.comm.collective_lines import issuing_of
from diagnose.measure.comm.collectives import Phase
from diagnose.measure.comm.ddp.unused_parameters import UnusedParameterSearch, used_map
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.views.names import named
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
from diagnose.trace.schema import Bool

_SEARCH = re.compile(r"ddp\.reducer::search_unused_parameters$")
_ACCUMULATED = re.compile(r"^torch::autograd::AccumulateGrad$")
_ENTRY_BYTES = 4  # the bitmap is a tensor of int32


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Searches that hold the device up."""
    trace = measures.trace
    sites = [site for site in trace.sites if site.kind == "DistributedDataParallel"]
    searches = trace.ops.where(named(trace.names, trace.ops.name, _SEARCH))
    if not len(searches) or measures.step_count == 0:
        if any(site.arguments.get("find_unused_parameters") is True for site in sites) and not len(trace.ops):
            yield CannotTell("unused-parameter-search", "a traced window with operators (torch.profiler, CPU activity)")
        return
    bitmap = _bitmap(measures)
    used = _all_used(measures, bitmap)
    if used is False:
        return
    search = Intervals.of(searches.start_ns, searches.end_ns)
    kept = used_map(measures)
    found, written, read = (_idle_in(measures, one) for one in (search, kept.writes, kept.reads))
    stretches = Intervals.union((found, written, read))
    comm = measures.communication
    without = shortened(measures, comm.transfer_ns * bitmap, np.zeros(len(comm), np.int64))
    gain = recoverable_ns(measures, stretches) + without.gain_ns
    claims = stretches | without.exposed
    if gain == 0:
        return
    steps = measures.step_count
    yield Claim(
        summary=f"unused parameters are searched for in every step, {format_ns(search.total_ns / len(searches))} each "
        f"time, {'and there are none' if used else 'whether or not there are any'}{_noted(kept, measures)}",
        recoverable_ns=min(gain, claims.total_ns),
        claims=claims,
        confidence=Confidence.MEASURED if used else Confidence.BOUND,
        evidence=[
            Evidence("host time of a search", search.total_ns // len(searches), "ns"),
            Evidence("idle time in it, per step", found.total_ns // steps, "ns"),
            *_of_the_map(kept, written, read, steps),
            Evidence("exposed time of the bitmap's all-reduce, per step", without.exposed.total_ns // steps, "ns"),
        ],
        where=[Place.at(site) for site in sites]
        or measures.places(search if not bitmap.any() else issuing_of(measures, bitmap)),
        confirm=None if used else "whether parameters without gradients are reported with TORCH_DISTRIBUTED_DEBUG=INFO",
    )


def _idle_in(measures: Measures, host: Intervals) -> Intervals:
    """Time of the host that holds the device up, or all of it where there is none."""
    return (host & measures.counted) - measures.busy if measures.has_device else host & measures.counted


def _noted(kept: UnusedParameterSearch, measures: Measures) -> str:
    """Return what the map takes of the host, in words; nothing where it is not seen."""
    spent = ((kept.writes | kept.reads) & measures.counted).total_ns / measures.step_count
    return f"; which are used is noted and read one by one, {format_ns(spent)} per step" if spent else ""


def _of_the_map(kept: UnusedParameterSearch, written: Intervals, read: Intervals, steps: int) -> Iterator[Evidence]:
    if len(kept.writes):
        yield Evidence("idle time in marking each parameter as used, per step", written.total_ns // steps, "ns")
    if len(kept.reads):
        yield Evidence("idle time in reading the marks, per step", read.total_ns // steps, "ns")


def _bitmap(measures: Measures) -> Bool:
    """The last and smallest all-reduce of each round, where it is the size of a bitmap of the parameters."""
    comm = measures.communication
    counts = _accumulated(measures)
    if counts is None:
        return np.zeros(len(comm), np.bool_)
    size = comm.size_bytes
    entries = size // _ENTRY_BYTES
    fits = (size > 0) & (size % _ENTRY_BYTES == 0) & (entries >= counts) & (entries < 2 * counts)
    return np.asarray(fits & (comm.kind == "all_reduce") & (comm.phase == Phase.BACKWARD), np.bool_)


def _accumulated(measures: Measures) -> int | None:
    """Return how many gradients a backward pass accumulates, in the median; None where that was not recorded."""
    trace, passes = measures.trace, measures.backward_passes
    done = trace.ops.start_ns[named(trace.names, trace.ops.name, _ACCUMULATED)]
    within = passes.holding(done)
    counts = np.bincount(within[within >= 0]) if (within >= 0).any() else np.empty(0, np.int64)
    return int(np.median(counts)) if len(counts) else None


def _all_used(measures: Measures, bitmap: Bool) -> bool | None:
    """Whether every parameter gets a gradient; None where the recording does not tell."""
    counts, sizes = _accumulated(measures), measures.communication.size_bytes[bitmap]
    if counts is None:
        return None
    tensors = [site.arguments.get("tensors") for site in measures.trace.sites if site.kind == "optimizer"]
    known = [int(one) for one in tensors if isinstance(one, int)]
    there = int(sizes.min()) // _ENTRY_BYTES if len(sizes) else max(known, default=None)
    return None if there is None else counts >= there


_SITE = (Site("DistributedDataParallel", "train.py", 30, "main", {"find_unused_parameters": True}),)
_OPS = {"q": "torch.distributed.ddp.reducer::search_unused_parameters", "o": "aten::op"}

_MAP = _OPS | {
    "B": "autograd::engine::evaluate_function: MmBackward0",
    "E": "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "A": "torch::autograd::AccumulateGrad",
    "e": "aten::select",
    "f": "aten::fill_",
    "i": "aten::item",
}

_drawn = partial(drawn, repeat=4, ops=_OPS, kernels={"m": "gemm"}, sites=_SITE)
_FIRES = (
    _drawn("""
        host: olqqqqqolo
        gpu :  kk     kkkk
        opt :          O
    """),
    # The device is busy meanwhile, but idles while parameters are marked as used and the marks are read.
    drawn(
        """
        host: olqqo                       lo
        op 1:      B EEEEEE EEEEEE eeiieeii
        op 1:        Aeeff  Aeeff
        gpu :  kkkkkkk                     kk
        opt :                               O
        """,
        repeat=4,
        ops=_MAP,
        numbered="B",
        sites=_SITE,
    ),
)

_SILENT = (
    # The device is busy meanwhile.
    _drawn("""
        host: olqqqqqolo
        gpu :  kkkkkkkmmm
        opt :          O
    """),
    # The user's own hooks set entries amid a gradient's accumulation, and the loop reads some values at the step's end.
    drawn(
        """
        host: olqqo                       lo
        op 1:      B EEEEEE EEEEEE  eeii
        op 1:        AAAAA  AAAAA
        op 1:         eeff   eeff
        gpu :  kkkkkkk                     kk
        opt :                               O
        """,
        repeat=4,
        ops=_MAP,
        numbered="B",
        sites=_SITE,
    ),
    # No search.
    drawn(
        """
        host: ol     olo
        gpu :  kk     kkkk
        opt :          O
        """,
        repeat=4,
    ),
)

RULE = Rule(
    "unused-parameter-search",
    check,
    fixers=("ddp-all-used",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=25,
    symptom=Symptom.RANKS,
)
