"""The optimizer's step takes longer than it needs to: many small kernels where one fused kernel exists.

What it finds
    `optimizer.step` implemented parameter by parameter (for-loop) or list by list (foreach), where PyTorch has a fused
    implementation, with a share of the step that matters. Where it has none, but one that goes by lists, only the
    for-loop counts.

Why it costs
    An unfused Adam reads and writes each parameter's state some twenty times, in ten or more kernels; the fused one
    does it once. Every kernel also costs a launch.

What proves it
    Device work launched from within `optimizer.step` and the launch gaps between it; matrix products and collectives
    inside it are left out, no fused optimizer replaces them. On a CPU-only run, the operators inside it. The
    recoverable time is an upper bound: what the replay gives back if in each step one kernel, as long as FUSED and
    its like say, takes the place of all, so that the gaps between them are gone too. The gap before the first one
    stays: it is `step` itself, which goes through the parameters in Python whatever it then launches. A step in which
    the optimizer takes far longer than in the others is left out: what held it up there is no work of its own.

What fixes it
    `fused=True`, or `foreach=True` where there is no fused form (`fused-optimizer`).

Thresholds
    FUSED: share of an unfused step's memory traffic that a fused one still needs. Counted for AdamW on one tensor:
    decay (2), first moment (3), second moment (2 + 3), root (2), quotient (2), sum (2), update (4) = 20 passes over
    memory, against 7 (read parameter, gradient and two moments, write three of them): 0.35.
    FUSED_PLAIN 1.0: the same for SGD on its gradients alone, which reads two tensors and writes one, fused or not.
    FUSED_MOMENTUM 0.63: the same for SGD with momentum (it then multiplies): 5 passes against 8.
    FUSED_DECAY 0.45: the same with weight decay as well (it then adds out of place), and for Adagrad: 5 against 11.
    BEGIN_NS (1.5 µs): what a kernel takes that moves hardly anything; only what is beyond is memory traffic.
    FUSABLE: the optimizers for which PyTorch (2.4 and newer) has `fused=True`. LISTED: those that it can at least run
    by lists (`foreach=True`), which moves as much memory, in a few launches; their traffic is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.outlier_steps import exceptional_steps
from diagnose.measure.steps.step_share import of_step
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Place,
    Rule,
    Scalar,
    Site,
    Symptom,
    drawn,
)
from diagnose.trace.schema import Int64, RangeKind

FUSED = 0.35
FUSED_PLAIN = 1.0
FUSED_MOMENTUM = 0.63
FUSED_DECAY = 0.45
BEGIN_NS = 1_500
FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
LISTED = frozenset({"RAdam", "NAdam", "Adamax", "Adadelta", "ASGD", "Rprop", "RMSprop"})
_CLASS = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED_KERNEL = re.compile(r"fused_?(adam|sgd|adagrad|lamb|optim)", re.I)
_FUSED_OP = re.compile(r"aten::_fused_(adam|adamw|sgd|adagrad)_?$")
_FOREACH_OP = re.compile(r"aten::_foreach_|multi_tensor_apply")
_MULTIPLIES = re.compile(r"aten::(_foreach_)?mul_$")
_ADDS = re.compile(r"aten::(_foreach_)?add$")
_BY_PARAMETER = " (one parameter at a time)"
_NOT_FUSABLE = (KernelClass.MATMUL, KernelClass.CONVOLUTION, KernelClass.ATTENTION, KernelClass.COLLECTIVE)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time in an unfused optimizer step."""
    trace = measures.trace
    rows, kinds = _optimizers(measures)
    if measures.step_count == 0 or measures.only_infers:
        return
    if len(rows) == 0 or not (len(trace.ops) or measures.has_device):
        yield CannotTell("slow-optimizer", "ranges of optimizer.step with what ran inside them")
        return
    ranges = Intervals.of(measures.optimizer_starts_ns(rows), trace.ranges.end_ns[rows])
    inside = _ops_inside(measures, ranges)
    if any(_FUSED_OP.search(name) for name in inside) or (kinds and not kinds & (FUSABLE | LISTED)):
        return
    implementation = _implementation(inside, measures)
    fusable = not kinds or bool(kinds & FUSABLE)
    if not fusable and implementation != _BY_PARAMETER:
        return
    found = _device_work(measures, ranges) if measures.has_device else _host_work(measures, ranges)
    if found is not None:
        name = " and ".join(sorted(kinds)) or "the optimizer"
        yield from _claim(measures, found, name, implementation, _traffic(kinds, inside) if fusable else None, ranges)


def _traffic(kinds: set[str], inside: set[str]) -> float:
    """The memory traffic of a fused step over that of the recorded one."""
    if kinds == {"SGD"} and inside:
        multiplies, adds = (any(map(one.search, inside)) for one in (_MULTIPLIES, _ADDS))
        return (FUSED_DECAY if adds else FUSED_MOMENTUM) if multiplies else FUSED_PLAIN
    return FUSED_DECAY if kinds == {"Adagrad"} else FUSED


def _claim(
    measures: Measures, found: _Found, name: str, implementation: str, fused: float | None, ranges: Intervals
) -> Iterator[Claim]:
    """Yield what a fused step would save of that which was found, if anything; one by lists where `fused` is None."""
    _, work, gaps, _ = found
    traffic, fusable = (1.0, False) if fused is None else (fused, True)
    spent = measures.per_step(work | gaps)
    stepping = np.flatnonzero(spent)  # not in every micro-step of an accumulation
    exceptional = stepping[exceptional_steps(spent[stepping])]
    odd = Intervals.of_rows(measures.steps, exceptional)
    rows, work, gaps, pieces = _without(measures, found, odd)
    time, steps = work | gaps, measures.step_count - len(exceptional)
    cut = _fused(measures, rows, gaps, traffic)
    gain = (
        int(work.total_ns * (1 - traffic)) + gaps.total_ns if cut is None else gained_ns(measures, cut, time.total_ns)
    )
    if gain == 0:
        return
    whole_ns = (measures.counted - odd).total_ns
    yield Claim(
        summary=f"{name}.step takes {of_step(time.total_ns, whole_ns, steps, 'traced step')} "
        f"in {pieces:.0f} "
        f"{'kernels' if measures.has_device else 'operators'}{implementation}, where "
        f"{'a fused one would go over memory once' if fusable else 'one by lists would do it in a few'}",
        recoverable_ns=gain,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("optimizer.step", time.total_ns // steps, "ns"),
            Evidence("launched in it, per step", pieces, "count"),
            Evidence("traffic of a fused step over this one", traffic, "share"),
        ],
        where=_where(measures, rows, ranges),
        confirm=f"a trial with {'fused' if fusable else 'foreach'}=True",
    )


def _where(measures: Measures, rows: Int64, ranges: Intervals) -> list[Place]:
    """The lines of a `step` that the program wrote itself, else where it makes its optimizers, else who calls them."""
    lines = places_of_ops(measures, measures.op_of_work[rows]) or measures.places(ranges)
    written = [place for place in lines if (place.function or "").rpartition(".")[2] == "step"]
    made = [Place.at(site) for site in measures.trace.sites if site.kind == "optimizer"]
    return written or made or list(measures.places(ranges))


def _optimizers(measures: Measures) -> tuple[np.typing.NDArray[np.int64], set[str]]:
    """Ranges of optimizers, without those whose name says that they cannot be fused; and the names known."""
    trace = measures.trace
    rows = np.flatnonzero(trace.ranges.kind == RangeKind.OPTIMIZER)
    matches = [_CLASS.search(trace.names[name]) if name >= 0 else None for name in trace.ranges.name[rows].tolist()]
    named = [match[1] if match else None for match in matches]
    kinds = {name for name in named if name} or {
        str(site.arguments["name"]) for site in trace.sites if site.kind == "optimizer" and "name" in site.arguments
    }
    keep = [name is None or name in FUSABLE or not kinds & FUSABLE for name in named]
    return rows[np.array(keep, np.bool_)], kinds & FUSABLE or kinds & LISTED or kinds


def _ops_inside(measures: Measures, ranges: Intervals) -> set[str]:
    ops = measures.trace.ops
    return {
        measures.trace.names[name] for name in np.unique(ops.name[ranges.contains(ops.start_ns)]).tolist() if name >= 0
    }


def _implementation(inside: set[str], measures: Measures) -> str:
    kernels = {measures.trace.names[name] for name in np.unique(measures.trace.device.name).tolist() if name >= 0}
    if any(_FOREACH_OP.search(name) for name in inside | kernels):
        return " (foreach)"
    settings = [site.arguments.get("foreach") for site in measures.trace.sites if site.kind == "optimizer"]
    return _BY_PARAMETER if inside and True not in settings else ""


_Found = tuple[Int64, Intervals, Intervals, float]
"""Rows of device work, their time, the gaps to do with them, and how many pieces they are per step."""


def _without(measures: Measures, found: _Found, steps: Intervals) -> _Found:
    """Return what was found, outside of some steps."""
    rows, work, gaps, pieces = found
    return rows[~steps.contains(measures.trace.device.start_ns[rows])], work - steps, gaps - steps, pieces


def _fused(measures: Measures, rows: Int64, gaps: Intervals, traffic: float) -> Cut | None:
    """The change that lets one kernel per step do what all of them do; None without a device."""
    if not measures.has_device or not len(rows):
        return None
    device, steps = measures.trace.device, measures.steps
    length = device.end_ns[rows] - device.start_ns[rows]
    step = np.clip(np.searchsorted(steps.start_ns, device.start_ns[rows], side="right") - 1, 0, len(steps) - 1)
    needed = np.bincount(step, traffic * np.maximum(length - BEGIN_NS, 0), len(steps)) + BEGIN_NS
    needed = np.minimum(needed, np.bincount(step, length, len(steps)))
    last = np.append(step[1:] != step[:-1], True)
    left = np.where(last, needed[step] / np.maximum(length, 1), 0.0)
    return sped_up(measures, rows, left) | Cut(host=gaps)


def _device_work(measures: Measures, ranges: Intervals) -> _Found | None:
    """Work launched within the ranges, and the issue gaps among it; None if it is fused."""
    launched = ranges.contains(measures.launches.start_ns) & measures.launches.linked
    rows = measures.rows_within_steps(launched & ~np.isin(measures.classes, _NOT_FUSABLE))
    names = measures.trace.device.name[rows]
    if len(rows) == 0 or any(_FUSED_KERNEL.search(measures.trace.names[name]) for name in np.unique(names).tolist()):
        return None
    work = measures.time_of(rows)
    gaps = measures.issue_gaps
    starts = measures.trace.device.start_ns[rows]
    step = np.searchsorted(measures.steps.start_ns, starts, side="right")
    first = starts[np.unique(step, return_index=True)[1]]
    inside = (np.isin(gaps.ends, starts) | ranges.contains(gaps.starts)) & ~np.isin(gaps.ends, first)
    between = Intervals(gaps.starts[inside], gaps.ends[inside]) & measures.counted
    return rows, work, between, len(rows) / measures.step_count


def _host_work(measures: Measures, ranges: Intervals) -> _Found | None:
    """Operators within the ranges, and the Python among them; no rows of device work."""
    ops = measures.trace.ops
    inside = ranges & measures.counted
    work = inside & measures.compute
    if work.total_ns == 0:
        return None
    pieces = int(inside.contains(ops.start_ns).sum()) / measures.step_count
    return np.empty(0, np.int64), work, inside & measures.idle["python"], pieces


def _adamw(**arguments: Scalar) -> dict[str, Any]:
    return {"sites": (Site("optimizer", "train.py", 20, "main", {"name": "AdamW", **arguments}),)}


_FIRES = (
    # Parameter by parameter: many kernels, launched from within the optimizer.
    drawn(
        """
        host: ol     olololol
        gpu :   kkkkkkp p p p
        opt :        OOOOOOOO
        """,
        repeat=4,
        kernels={"p": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"},
        **_adamw(foreach=False, fused=False),
    ),
    # List by list.
    drawn(
        """
        host: olololssssss
        gpu :   kkkkkkppqq
        opt :   OOOO
        """,
        repeat=4,
        kernels={
            "p": "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor>",
            "q": "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, PointwiseOpListFunctor>",
        },
        **_adamw(foreach=True),
    ),
    # No fused form, but one by lists.
    drawn(
        """
        host: ol     olololol
        gpu :   kkkkkkp p p p
        opt :        OOOOOOOO
        """,
        repeat=4,
        kernels={"p": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"},
        sites=(Site("optimizer", "train.py", 20, "main", {"name": "RAdam", "foreach": False}),),
    ),
    # On a CPU alone.
    drawn(
        """
        host: oooooooooooo oo oo oo
        opt :              OOOOOOOO
        """,
        repeat=4,
        facts=Facts(cpu_count=2),
        **_adamw(foreach=False),
    ),
)

_SILENT = (
    # A closure runs the forward and the backward pass within the optimizer's step.
    drawn(
        """
        host: ololololxlxl
        gpu :   p p p p p p
        opt : OOOOOOOOOOOO
        """,
        repeat=4,
        kernels={"p": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"},
        ops={"x": "autograd::engine::evaluate_function: MulBackward0"},
        **_adamw(foreach=False),
    ),
    # Already fused.
    drawn(
        """
        host: ol    ol
        gpu :   kkkkkpp
        opt :       OO
        """,
        repeat=4,
        kernels={
            "p": "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor>"
        },
        **_adamw(fused=True),
    ),
    # By lists, where that is the best there is.
    drawn(
        """
        host: olololssssss
        gpu :   kkkkkkppqq
        opt :   OOOO
        """,
        repeat=4,
        kernels=dict.fromkeys(
            "pq", "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor>"
        ),
        sites=(Site("optimizer", "train.py", 20, "main", {"name": "RAdam", "foreach": True}),),
    ),
    # An optimizer of matrix products: no fused implementation replaces it.
    drawn(
        """
        host: ol    ol
        gpu :   kkkkkpp
        opt :       OO
        """,
        repeat=4,
        kernels={"p": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"},
    ),
    # The step waits inside the optimizer's range, but the kernels there are long since done: nothing was launched.
    drawn(
        """
        host: ol
        gpu :   kkkkkkkkkk
        opt :         OOO
        """,
        repeat=4,
    ),
)

RULE = Rule(
    "slow-optimizer",
    check,
    fixers=("fused-optimizer", "zero-grad-none"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=35,
    symptom=Symptom.KERNELS,
)
