"""Attention is written out: its scores go to memory and back once for every operator.

What it finds
    Matrix products, scales, masks, softmax and dropout over (…, queries, keys) tensors, forward and backward, where one
    fused kernel (`scaled_dot_product_attention`) would do.

Why it costs
    The scores of a sequence of length T are T × T numbers per head and sequence, many times the size of queries, keys
    and values. Written out, each operator reads and writes all of them; the backward pass needs them kept. A fused
    kernel (FlashAttention) never writes them at all.

What proves it
    A batched product, elementwise work, a softmax, elementwise work, a batched product, in this order of launches; the
    shape of the softmax where shapes are recorded. Their whole time counts, less what a fused kernel would need: the
    products' arithmetic at FUSED_RATE of the rate that this program's other products reach, and never more than the
    products take now. Half of that where the mask is made by `triu` or `tril`: a fused kernel skips the masked half.

What fixes it
    `torch.nn.functional.scaled_dot_product_attention` (`use-sdpa`).

Thresholds
    FUSED_RATE: what a fused attention kernel reaches of the rate of plain products. Measured on an H200 in bf16 with
    heads of 64: forward 293, backward 226 TFLOP/s of the unmasked half, where plain products reach 600 to 800.
    BACKWARD_FLOP: the fused backward pass computes the scores anew: five products where written out there are four.
    Compared with a measurement: a GPT (batch 16, 12 layers, 12 heads, T = 1024, bf16) on an H200 went from 165.3 ms to
    94.6 ms per step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.kernels.eager_attention import WrittenAttention, product_flop, scores_shape
from diagnose.measure.kernels.matmuls import best_rate
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import matmul_format
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, drawn

FUSED_RATE = 0.4
BACKWARD_FLOP = 5 / 4


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time of attention written out, less that of a fused kernel."""
    if not measures.has_device:
        yield CannotTell("unfused-attention", "a recording of the device's work")
        return
    found = measures.written_attention
    if not found:
        return
    order = measures.program_order
    mine = measures.attention_places
    rows = order.rows[mine]
    time_ns = int(order.length_ns[mine].sum())
    needed_ns = _needed_ns(measures, found)
    left = min(needed_ns / time_ns, 1.0) if time_ns else 1.0
    time = measures.time_of(rows)
    cut = sped_up(measures, rows, left)
    saved = gained_ns(measures, cut, int(time.total_ns * (1 - left)))
    known = bool((order.op[mine] >= 0).all())
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go "
        f"to attention written out{_shape_words(measures, found)}: products, mask and softmax each read and write all "
        "scores, which a fused kernel never writes",
        recoverable_ns=saved,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("attention written out", time.total_ns // measures.step_count, "ns", tuple(rows.tolist())),
            Evidence("passes written out, per step", len(found) / measures.step_count, "count"),
            Evidence("share of it in products", _product_share(measures, found), "share"),
            Evidence("a fused kernel would take", needed_ns // measures.step_count, "ns"),
        ],
        where=places_of_ops(measures, _forward_ops(measures, found)),
        confirm="a trial with scaled_dot_product_attention"
        if known
        else "a recording with operators: this was told from the order of the kernels' names",
    )


def _needed_ns(measures: Measures, found: tuple[WrittenAttention, ...]) -> int:
    """Return what a fused kernel would need for all of them."""
    order = measures.program_order
    causal = any(one.causal for one in found)
    places = np.array([place for one in found for place in one.products], np.int64)
    behind = np.array([one.backward for one in found for _ in one.products], np.bool_)
    now_ns = order.length_ns[places]
    needed = float(now_ns.sum())
    rate = best_rate(measures.products, ~np.isin(measures.products.place, places))
    on_tensor_cores = any(_tensor_cores(measures, place) for place in places.tolist())
    if rate is not None and on_tensor_cores:
        ahead_flop, behind_flop = product_flop(order, places[~behind]), product_flop(order, places[behind])
        if ahead_flop is not None and behind_flop is not None:
            needed = min(needed, (ahead_flop + BACKWARD_FLOP * behind_flop) / (FUSED_RATE * rate))
    return int(needed / 2 if causal else needed)


def _tensor_cores(measures: Measures, place: int) -> bool:
    order = measures.program_order
    name = measures.trace.device.name[order.rows[place]]
    return name >= 0 and matmul_format(measures.trace.names[name]).tensor_cores is True


def _product_share(measures: Measures, found: tuple[WrittenAttention, ...]) -> float:
    length = measures.program_order.length_ns
    products = sum(int(length[list(one.products)].sum()) for one in found)
    return products / max(int(length[measures.attention_places].sum()), 1)


def _shape_words(measures: Measures, found: tuple[WrittenAttention, ...]) -> str:
    shapes = {shape for one in found if (shape := scores_shape(measures.program_order, one.softmax)) is not None}
    return f" over scores of {' × '.join(map(str, max(shapes, key=math.prod)))}" if shapes else ""


def _forward_ops(measures: Measures, found: tuple[WrittenAttention, ...]) -> np.typing.NDArray[np.int64]:
    order = measures.program_order
    places = [np.arange(one.first, one.last + 1) for one in found if not one.backward]
    return order.op[np.concatenate(places)] if places else order.op[:0]


_OPS = {
    "a": "aten::bmm",
    "o": "aten::_softmax",
    "w": "aten::masked_fill_",
    "e": "aten::_softmax_backward_data",
    "i": "aten::mm",
    "t": "aten::topk",
    "r": "aten::add",
}
_KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "w": "void at::native::elementwise_kernel<128, 2, at::native::masked_fill>",
    "x": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
    "y": "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, false, false>(float*)",
    "z": "void at::native::elementwise_kernel<128, 2, at::native::div>",
    "q": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
}
_SCORES = ("[[8, 12, 1024, 1024], [], []]", '["float", "Scalar", "Scalar"]')
_EXPERTS = ("[[8192, 64], [], []]", '["float", "Scalar", "Scalar"]')

_drawn = partial(drawn, repeat=4, kernels=_KERNELS)
_FIRES = (
    # Forward and backward, with shapes; the host is ahead.
    _drawn(
        """
        host: alwlolalrlalelwlal.ssssssssssssssss
        gpu :  bbbbwwwwxxxxbbbbkkbbbbyyyywwwwbbbb
        opt :                   O
        """,
        ops=_OPS,
        shapes={"o": _SCORES},
    ),
    # Kernels' names alone.
    _drawn("""
        host: l.l.l.l.l.l.l.l.l.l.sssssssssssssss
        gpu :  kkkbbbbwwwwxxxxbbkkbbbbyyyywwwwbbb
        opt :                    O
    """),
)

_SILENT = (
    # One fused kernel.
    _drawn("""
        gpu : bbqqqqqqbb
        step:           |
    """),
    # A softmax over experts, between products that are not batched.
    _drawn(
        """
        host: ilwlolilrl
        gpu :  bbwwxxbbkk
        opt :           O
        """,
        ops=_OPS,
    ),
    # A softmax over experts, before their batched products.
    _drawn(
        """
        host: aloltlalrl
        gpu :  bbxxwwbbkk
        opt :           O
        """,
        ops=_OPS,
        shapes={"o": _EXPERTS},
    ),
    # Generated kernels between batched products.
    drawn(
        """
        host: alglalrl
        gpu :  bbggbbkk
        opt :         O
        """,
        repeat=4,
        ops=_OPS | {"g": "triton_per_fused__softmax_0"},
        kernels=_KERNELS | {"g": "triton_per_fused__softmax_0"},
    ),
)

RULE = Rule(
    "unfused-attention", check, fixers=("use-sdpa",), fires=_FIRES, silent=_SILENT, nearness=35, symptom=Symptom.KERNELS
)
