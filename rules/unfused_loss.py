"""The loss reads and writes the logits again and again.

What it finds
    Logits of tokens × vocabulary that are copied, turned into single precision, turned into log-probabilities, picked
    from and differentiated by one operator after the other.

Why it costs
    With a large vocabulary the logits are the largest tensor of the step. Each operator reads and writes all of them,
    and several copies live at once: they often set the peak of memory. A fused loss reads them where they are and
    writes their gradient over them; one that is fused with the output layer never holds them whole.

What proves it
    The work between the last product of the forward pass and the first of the backward pass, where it holds a softmax
    over the logits, less what a fused one needs (FUSED). A loss written out by hand counts at any size, PyTorch's own
    `cross_entropy` from NOTED of the step; below that only what a program adds to it counts (copies, further
    softmaxes). Generated kernels are left alone.

What fixes it
    One operator for the output layer and the loss (`fuse-linear-cross-entropy`) or for the loss (`fuse-cross-entropy`),
    or a compiled model (`compile-model`); over chunks of tokens where memory is short. Torch's own `cross_entropy`
    gives little: it makes log-probabilities, keeps them, and writes zeros for a gradient as well.

Thresholds
    FUSED: a fused loss over the time of the forward softmax: reads and writes of the logits, 2 passes in the softmax,
    4 in a fused loss forward and backward (read twice, read, written), less what stays in caches: 1.75. Half of the
    bytes, 1.0, where the softmax runs over a copy in single precision of logits in 16 bits.
    WITHOUT_SOFTMAX 0.25: the same in part of all work, where no forward softmax is known.
    NOTED 0.1: share of the step. A GPT of 124 M parameters with 50304 words, compiled but for its loss, spends 19 % of
    its step in `cross_entropy` on an H200; 16 % are predicted, and fused with the output layer it took 14 % less
    (benchmarks/RESULTS.md, naive_gpt). Nothing was measured below a tenth.
    SHORTEN_DEVICE_WORK: ailments of the device's work. What a called `cross_entropy` costs is foreseen for the step
    without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import (
    SHORTEN_DEVICE_WORK,
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
)
from diagnose.trace.schema import Int64

FUSED = 1.75
FUSED_AFTER_CAST = 1.0  # half of the bytes: see FUSED
WITHOUT_SOFTMAX = 0.25
NOTED = 0.1


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of an eager loss over large logits that a fused one would not need."""
    if not measures.has_device:
        yield CannotTell("unfused-loss", "a recording of the device's work")
        return
    order, loss = measures.program_order, measures.loss_work
    places = loss.places
    time = measures.time_of(order.rows[places])
    share = measures.share(time)
    if loss.by_hand or share >= NOTED:
        what = "the loss, written out by hand" if loss.by_hand else "`cross_entropy`, one operator after the other"
        yield from _claim(measures, places, _left(measures), what)
    elif not loss.own.all() and measures.share(_added(measures)) > 0:
        yield from _claim(measures, places[~loss.own], 0.0, "what is done to the logits beside `cross_entropy`")
    if not loss.by_hand and 0 < share < NOTED:
        yield from _foreseen(measures, places)


def _foreseen(measures: Measures, places: Int64) -> Iterator[Claim]:
    """A called `cross_entropy`, for when the rest of the step is short."""
    rows = measures.program_order.rows[places]
    yield Claim(
        summary=f"`cross_entropy`{_logits(measures)}, fused with the output layer, would move the logits less often",
        recoverable_ns=0,
        claims=measures.time_of(rows),
        cut=sped_up(measures, rows, _left(measures)),
        confidence=Confidence.HINT,
        where=_where(measures, places),
        confirm="a trial with a compiled or fused loss",
        once=SHORTEN_DEVICE_WORK,
    )


def _claim(measures: Measures, places: Int64, left: float, what: str) -> Iterator[Claim]:
    order = measures.program_order
    rows = order.rows[places]
    time = measures.time_of(rows)
    cut = sped_up(measures, rows, left)
    saved = gained_ns(measures, cut, int(time.total_ns * (1 - left)))
    if saved == 0:
        return
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go "
        f"to {what}{_logits(measures)}: each of {len(places) / measures.step_count:.0f} kernels moves the logits once "
        "more",
        recoverable_ns=saved,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=_evidence(measures, places),
        where=_where(measures, places),
        confirm="a trial with a compiled or fused loss",
    )


def _where(measures: Measures, places: Int64) -> tuple[Place, ...]:
    """The lines of the forward pass: that of `backward()` says nothing."""
    order = measures.program_order
    ahead = places[~order.backward[places]]
    return places_of_ops(measures, order.op[ahead if len(ahead) else places])


def _left(measures: Measures) -> float:
    """The part of the loss's time that a fused one would take."""
    loss, length = measures.loss_work, measures.program_order.length_ns
    total = int(length[loss.places].sum())
    if loss.softmax_ns == 0 or total == 0:
        return WITHOUT_SOFTMAX
    factor = FUSED_AFTER_CAST if loss.cast else FUSED
    return min(factor * loss.softmax_ns / total, 1.0)


def _added(measures: Measures) -> Intervals:
    loss = measures.loss_work
    return measures.time_of(measures.program_order.rows[loss.places[~loss.own]])


def _logits(measures: Measures) -> str:
    logits = measures.loss_work.logits
    return f" over logits of {' × '.join(map(str, logits))}" if logits else ""


def _evidence(measures: Measures, places: Int64) -> list[Evidence]:
    order, logits = measures.program_order, measures.loss_work.logits
    length = int(order.length_ns[places].sum())
    evidence = [
        Evidence("loss", length // measures.step_count, "ns", tuple(order.rows[places].tolist())),
        Evidence("kernels per step", len(places) / measures.step_count, "count"),
    ]
    if logits:
        evidence.append(Evidence("one copy of the logits in single precision", 4 * math.prod(logits), "bytes"))
    peak = measures.memory_peak
    if peak is not None and peak.categories.get("logits"):
        evidence.append(Evidence("logits held at the peak of memory", peak.categories["logits"], "bytes"))
        evidence.append(Evidence("held at the peak of memory", peak.held_bytes, "bytes"))
    return evidence


_OPS = {
    "a": "aten::mm",
    "i": "aten::_log_softmax",
    "o": "aten::gather",
    "e": "aten::_log_softmax_backward_data",
    "t": "aten::copy_",
    "n": "aten::nll_loss_forward",
    "r": "aten::add",
    "g": "triton_red_fused__log_softmax_0",
    "b": "aten::nll_loss_backward",
}
_KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "x": "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, LogSoftMaxForward>",
    "y": "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, LogSoftMaxBackward>",
    "v": "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
    "w": "void at::native::nll_loss_kernel",
    "g": "triton_red_fused__log_softmax_0",
    "q": "triton_red_fused__log_softmax_backward_1",
}
_BY_HAND = """
    host: altlilol.eltlalrl.ssssssssssssssssssss
    gpu :  bbbvvvvxxxxwyyyyyyvvvvbbbbbbkkkkkkkkk
    opt :                 O
"""
_drawn = partial(drawn, repeat=4, ops=_OPS, kernels=_KERNELS)
_FIRES = (
    # Copies in single precision, log-probabilities, a gather, and all of it backward.
    _drawn(_BY_HAND),
    # `cross_entropy` that takes most of the step.
    _drawn("""
        host: alilnl.blelalrl.sssssssssssssssssss
        gpu :  bbbxxxxxxxxwvyyyyyyyyyyyybbbbbbkkk
        opt :                 O
    """),
)

_SILENT = (
    # Generated kernels.
    _drawn("""
        host: alglglalrl.ssssssssssssssssssss
        gpu :  bbbggggqqqqqqbbbbbbkkkkkkkkkkk
        opt :           O
    """),
    # No vocabulary: a mean of squares between the products.
    _drawn("""
        host: alrlal.ssssssssssss
        gpu :  bbbvvvvvvvvvbbbbbb
        opt :      O
    """),
)

RULE = Rule(
    "unfused-loss",
    check,
    fixers=("fuse-linear-cross-entropy", "fuse-cross-entropy", "compile-model", "use-diagnose-backend"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=38,
    symptom=Symptom.KERNELS,
)
