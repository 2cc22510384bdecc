"""Matrix products of odd sizes run on slow kernels.

What it finds
    Matrix products of which a dimension is no multiple of 16 bytes (8 elements of 16 bits) and which reach far less of
    the device than the aligned products of the same program.

Why it costs
    Tensor cores are fed by loads of 16 bytes. Where rows begin at other addresses, the library falls back to kernels
    that load element by element. The usual case is the output layer: a vocabulary of 50257 is odd, and all three
    products over it (forward, and both gradients) are slow.

What proves it
    Shapes: the rate of the unaligned products against that of the aligned ones of the same format. What they would
    still take is their arithmetic at the aligned rate, or their bytes at the memory's. Without shapes, kernels of
    tensor cores whose names state a smaller alignment (`align1`, `_aligna2_`); how much slower those are is assumed.
    In a compiled program, copies to a size rounded up, by their names and shapes: Inductor pads before such products.
    Products in plain fp32 load element by element anyway and lose nothing: those over an odd vocabulary are foreseen
    only, for when `fp32-matmul` is treated.

What fixes it
    Round the size up to a multiple of 64: `pad-vocabulary`. Where the product is that of an output layer whose scores
    go into a cross entropy and nowhere else, one operator for both cuts the columns at a multiple of 128 itself, and
    holds the scores of a part of the rows at a time: `fuse-linear-cross-entropy`, which is asked first.

Thresholds
    SLOW 0.7: unaligned products that reach this part of the aligned rate are left alone: sizes alone make as much of a
    difference. LIKE 64: how much larger or smaller an aligned product may be to serve as a measure. LEFT_16_BIT,
    LEFT_32_BIT: what remains of a product's time by the alignment in its name; assumed from one measurement: on an H200
    in bf16 the step of a GPT fell from 86.2 ms to 60.5 ms with 50304 words instead of 50257, three products of together
    4.8 ms being left, about a sixth of what they took. VOCABULARY: a dimension this large is taken for a vocabulary.
    LEFT_IN_TF32 0.5: of fp32 products once they run on tensor cores, aligned; in 16 bits less would be left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from diagnose.measure.kernels.misaligned_matmuls import MisalignedMatmuls
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import matmul_format
from diagnose.measure.views.shapes import shapes_of
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_share,
)
from diagnose.trace.schema import Int64

_PADS = re.compile(
    r"triton_poi_fused_(?=\w*constant_pad_nd)"
    r"(?:_?(?:constant_pad_nd|_to_copy|_unsafe_view|view|permute|transpose|clone|slice|mm|t)(?=_))+_\d+"
)
_MULTIPLES = (4, 8)
"""The multiples to which Inductor rounds: 16 bytes of 32 or of 16 bits."""
VOCABULARY = 4096
LEFT_IN_TF32 = 0.5


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time of slow unaligned products, less what they would take if aligned."""
    if not measures.has_device:
        yield CannotTell("misaligned-matmul", "a recording of the device's work")
        return
    yield from _hidden(measures)
    yield from _padded_by_the_compiler(measures)
    order, slow = measures.program_order, measures.misaligned
    rows = order.rows[slow.places]
    if not len(rows):
        return
    time = measures.time_of(rows)
    length = order.length_ns[slow.places]
    left = float((length * slow.left).sum() / max(int(length.sum()), 1))
    cut = sped_up(measures, rows, slow.left)
    saved = gained_ns(measures, cut, int(time.total_ns * (1 - left)))
    if saved == 0:
        return
    odd = _odd_sizes(slow, measures)
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go to matrix products {_words(slow, odd)}",
        recoverable_ns=saved,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[*_evidence(measures, rows, time)],
        where=places_of_ops(measures, order.op[slow.places]),
        fixers=None if not odd or max(odd) >= VOCABULARY else (),
        confirm="a trial with the sizes rounded up to a multiple of 64"
        if slow.measured
        else "a recording with shapes (record_shapes=True): this was told from the kernels' names",
    )


def _evidence(measures: Measures, rows: Int64, time: Intervals) -> Iterator[Evidence]:
    order, slow = measures.program_order, measures.misaligned
    products = measures.time_of(order.rows[order.product])
    yield Evidence("slow products", time.total_ns // measures.step_count, "ns", tuple(rows.tolist()))
    yield Evidence("slow products per step", len(rows) / measures.step_count, "count")
    yield Evidence("share of all products", time.total_ns / max(products.total_ns, 1), "share")
    if slow.measured:
        yield Evidence("their rate", slow.rate / 1000, "TFLOP/s")
        yield Evidence("rate of aligned products", slow.aligned_rate / 1000, "TFLOP/s")


def _hidden(measures: Measures) -> Iterator[Claim]:
    """Products over an odd vocabulary in plain fp32, which tensor cores would be slow at."""
    order, products = measures.program_order, measures.products
    dimensions = products.sizes[:, 1:]
    odd = (products.item_bytes == 4) & ((dimensions >= VOCABULARY) & (dimensions % 8 != 0)).any(axis=1)
    if not odd.any():
        return
    plain = np.array([*map(_is_plain_fp32, measures.trace.names), False], np.bool_)
    at = np.flatnonzero(np.isin(order.op, products.op[odd]) & order.product)
    at = at[plain[measures.trace.device.name[order.rows[at]]]]
    if not len(at):
        return
    rows = order.rows[at]
    size = int(dimensions[odd][(dimensions[odd] >= VOCABULARY) & (dimensions[odd] % 8 != 0)][0])
    yield Claim(
        summary=f"matrix products over {size} columns, which is no multiple of 16 bytes, run in plain fp32: on tensor "
        "cores they would be slower than aligned ones",
        recoverable_ns=0,
        claims=measures.time_of(rows),
        cut=sped_up(measures, rows, LEFT_IN_TF32),
        confidence=Confidence.HINT,
        where=places_of_ops(measures, order.op[at]),
        confirm="a trial with the sizes rounded up to a multiple of 64",
        once=("fp32-matmul",),
    )


def _padded_by_the_compiler(measures: Measures) -> Iterator[Claim]:
    """The copies with which a compiled program rounds up an odd vocabulary before each product over it."""
    named = np.array([*(_PADS.fullmatch(name) is not None for name in measures.trace.names), False], np.bool_)
    rows = measures.rows_within_steps(named[measures.trace.device.name])
    ops = measures.op_of_work[rows]
    rounded = {int(op): _rounded_up(shapes_of(measures.trace, int(op)) or ()) for op in np.unique(ops)}
    chosen = np.array([rounded[int(op)] is not None for op in ops], np.bool_)
    if not chosen.any():
        return
    rows, ops = rows[chosen], ops[chosen]
    time, cut = measures.time_of(rows), sped_up(measures, rows, 0.0)
    saved = gained_ns(measures, cut, time.total_ns)
    sizes = next(size for size in rounded.values() if size is not None)
    if saved:
        yield Claim(
            summary=f"{of_traced_step(measures, time)} "
            f"go to copies with which compiled code rounds {sizes[0]} up to {sizes[1]} for aligned matrix products",
            recoverable_ns=saved,
            claims=time,
            cut=cut,
            confidence=Confidence.BOUND,
            evidence=[
                Evidence("padding copies", time.total_ns // measures.step_count, "ns", tuple(rows.tolist())),
                Evidence("padding copies per step", len(rows) / measures.step_count, "count"),
            ],
            where=places_of_ops(measures, ops),
            confirm="a trial with the sizes rounded up to a multiple of 64",
        )


def _rounded_up(shapes: tuple[tuple[int, ...] | None, ...]) -> tuple[int, int] | None:
    """A large odd size of one argument that another has rounded up; None without such."""
    known = [shape for shape in shapes if shape]
    for one in known:
        for other in known:
            for size, to in zip(one, other, strict=False):
                if size >= VOCABULARY and to != size and to in {size + -size % multiple for multiple in _MULTIPLES}:
                    return size, to
    return None


def _is_plain_fp32(name: str) -> bool:
    form = matmul_format(name)
    return form.dtype == "fp32" and form.tensor_cores is False


def _odd_sizes(slow: MisalignedMatmuls, measures: Measures) -> list[int]:
    """The dimensions that are at fault, the commonest in the most expensive products first."""
    step = {size: 16 // int(bytes_each) for size, bytes_each in _formats(measures)}
    found: dict[int, None] = {}
    for size in slow.sizes:
        for dimension in size[1:]:
            if dimension % step.get(size, 8):
                found.setdefault(dimension)
    return list(found)


def _formats(measures: Measures) -> list[tuple[tuple[int, int, int, int], int]]:
    products = measures.products
    table = np.unique(np.column_stack((products.sizes, products.item_bytes)), axis=0).tolist()
    return [((batch, m, n, k), item_bytes) for batch, m, n, k, item_bytes in table]


def _words(slow: MisalignedMatmuls, odd: list[int]) -> str:
    if not slow.measured:
        return "by kernels for unaligned matrices, as their names say"
    _, m, n, k = slow.sizes[0]
    mine = [size for size in odd if size in (m, n, k)] or odd[:3]
    sizes = f"{' and '.join(map(str, mine))} elements are no multiple"
    return (
        f"of unaligned sizes ({m} × {k} by {k} × {n}: {sizes} of 16 bytes), at "
        f"{format_share(slow.rate / slow.aligned_rate)} of the rate of this program's aligned ones"
    )


_OPS = {"a": "aten::mm", "i": "aten::addmm"}
_KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "x": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align1>(Params)",
    "y": "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_tensor16x8x16_aligna2_alignc2_execute",
    "v": "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)",
    "w": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8>(Params)",
}
_HALF = '["c10::BFloat16", "c10::BFloat16"]'
_ALIGNED = ("[[16384, 768], [768, 3072]]", _HALF)
_ODD = ("[[], [16384, 768], [768, 6145]]", '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]')
_PADDED = ("[[], [16384, 768], [768, 6144]]", '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]')
_CLASSES = ("[[], [64, 768], [768, 10]]", '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]')
_UNIT_NS = 20_000
"""A column: the aligned product, 77 GFLOP in 6 of them, runs at 644 TFLOP/s."""

_SLOW = """
    host: alil.ssssssssssssssssssssssssssssssssssssss
    gpu :  bbbbbbxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    opt :     O
"""
_FAST = """
    host: alil.ssssssssssssssss
    gpu :  bbbbbbxxxxxxxxxxxxxx
    opt :     O
"""
_NAMED = """
    host: l.l.ssssssss
    gpu :  bbbb{0}{0}{0}{0}{0}{0}{0}
    opt :    O
"""

_COMPILED = {
    "p": "triton_poi_fused__to_copy_constant_pad_nd_3",
    "t": "triton_poi_fused__to_copy_t_3",
    **_KERNELS,
}
_COMPILED_OPS = {"p": _COMPILED["p"], "t": _COMPILED["t"], "a": "aten::mm"}
_PADDING = """
    host: {0}lal.ssssssssssss
    gpu :  {0}{0}{0}{0}{0}{0}{0}{0}bbbbbbbb
    opt :    O
"""
_ROUNDED = ("[[16384, 50257], [16384, 50264], []]", '["c10::BFloat16", "c10::BFloat16", "Scalar"]')
_TO_64 = ("[[50257, 768], [50304, 768], []]", '["float", "c10::BFloat16", "Scalar"]')

_FIRES = (
    # Compiled code that copies scores over 50257 words to rows of 50264.
    drawn(_PADDING.format("p"), repeat=4, ops=_COMPILED_OPS, kernels=_COMPILED, shapes={"p": _ROUNDED, "a": _ALIGNED}),
    # A size of 6145: four times slower than its neighbour.
    drawn(_SLOW, unit_ns=_UNIT_NS, repeat=4, ops=_OPS, kernels=_KERNELS, shapes={"a": _ALIGNED, "i": _ODD}),
    # No shapes, but names that say for how few elements a load is aligned.
    drawn(_NAMED.format("x"), repeat=4, kernels=_KERNELS),
    drawn(_NAMED.format("y"), repeat=4, kernels=_KERNELS),
)

_SILENT = (
    # Padded to a multiple of 64 by the program itself.
    drawn(_PADDING.format("p"), repeat=4, ops=_COMPILED_OPS, kernels=_COMPILED, shapes={"p": _TO_64, "a": _ALIGNED}),
    # Compiled code that copies without rounding up.
    drawn(_PADDING.format("t"), repeat=4, ops=_COMPILED_OPS, kernels=_COMPILED, shapes={"t": _ROUNDED, "a": _ALIGNED}),
    # An odd size that runs as fast as the even one.
    drawn(_FAST, unit_ns=_UNIT_NS, repeat=4, ops=_OPS, kernels=_KERNELS, shapes={"a": _ALIGNED, "i": _ODD}),
    # A slow product whose sizes are aligned: something else ails it.
    drawn(_SLOW, unit_ns=_UNIT_NS, repeat=4, ops=_OPS, kernels=_KERNELS, shapes={"a": _ALIGNED, "i": _PADDED}),
    # Ten classes: too little work to compare.
    drawn(_FAST, unit_ns=_UNIT_NS, repeat=4, ops=_OPS, kernels=_KERNELS, shapes={"a": _ALIGNED, "i": _CLASSES}),
    # The ordinary units load element by element, whatever the sizes.
    drawn(_NAMED.format("v"), repeat=4, kernels=_KERNELS),
    # Eight elements of 16 bits: aligned.
    drawn(_NAMED.format("w"), repeat=4, kernels=_KERNELS),
)

RULE = Rule(
    "misaligned-matmul",
    check,
    fixers=("fuse-linear-cross-entropy", "pad-vocabulary"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=25,
    symptom=Symptom.KERNELS,
)
