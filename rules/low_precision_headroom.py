"""Products in TF32 or fp32, and tensors of 32 bits around them, on a device that is twice as fast in 16 bits.

What it finds
    Matrix products, convolutions and attention that multiply TF32 or fp32, and the elementwise work around them that
    moves tensors of fp32, in a program whose products are mostly in 32 bits.

Why it costs
    Tensor cores multiply bfloat16 and float16 twice as fast as TF32, and a tensor of 16 bits takes half the time to
    read or to write. Attention in fp32 multiplies every pair of numbers three times, in TF32.

What proves it
    The time of these kernels, by what bounds each: a product takes as much less as the ceiling of the narrower format
    is higher, what waits for memory takes half. What autocast leaves in 32 bits (normalisation over layers, softmax,
    losses), optimizers, and kernels too small to gain are not counted. The recoverable time is an upper bound: small
    products gain less, and autocast adds changes of format. Plain fp32 counts from TF32 on: the way there is another
    finding, `fp32-matmul`.

What fixes it
    Autocast (`autocast-bf16`), or the program's own switch for it. Where the device has no bfloat16: float16 with a
    `GradScaler`. It changes the training, if seldom its end.

Thresholds
    MOSTLY 0.5: of the time of all products, that in 32 bits. Below, the program has chosen 16 bits, and what is left in
    32 is so on purpose.
    WORTH 0.02: of the step; without ceilings of the device, less time in such products is not worth a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.steps.step_share import of_step
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_count,
    format_ns,
)

MOSTLY = 0.5
WORTH = 0.02
_NO_BFLOAT16 = "this device has no bfloat16, and training in float16 needs a GradScaler"
_WORDS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "TF32", "fp32": "fp32"}


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time that products and the tensors around them would take less in 16 bits."""
    if not measures.has_device:
        yield CannotTell("low-precision-headroom", "a recording of the device's work")
        return
    wide = measures.wide_formats
    if wide is None:
        formats = measures.kernel_bounds.format
        rows = measures.rows_within_steps(np.isin(formats, (FORMATS.index("fp32"), FORMATS.index("tf32"))))
        if measures.ceilings is None and measures.share(measures.time_of(rows)) >= WORTH:
            yield CannotTell("low-precision-headroom", "which device this is: how fast it is in 16 bits is unknown")
        return
    whole = wide.wide_ns + wide.narrow_ns
    if not len(wide.products) or wide.wide_ns < MOSTLY * whole:
        return
    rows = np.sort(np.concatenate((wide.products, wide.memory)))
    time, length = measures.time_of(rows), (measures.trace.device.end_ns - measures.trace.device.start_ns)[rows]
    cut = sped_up(measures, rows, wide.left[rows])
    saved = float((length * (1 - wide.left[rows])).sum() / max(length.sum(), 1))
    gained = gained_ns(measures, cut, int(time.total_ns * saved))
    assert measures.ceilings is not None  # else nothing is known of wide formats
    rates, steps = measures.ceilings.flops_per_s, measures.step_count
    by_format = _by_format(measures)
    used = by_format.most_common(1)[0][0]
    moved = measures.time_of(wide.memory).total_ns
    beside = f", and {format_ns(moved / steps)} to elementwise work on tensors of fp32" if moved else ""
    products = of_step(sum(by_format.values()), measures.total_ns, steps, "traced step")
    yield Claim(
        summary=f"{products} go to products in {_WORDS[used]}{beside}; in {_WORDS[wide.format]} the products are up to "
        f"{format_count(rates[wide.format] / rates[used])} times as fast, and the tensors half as large",
        recoverable_ns=gained,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            *(Evidence(f"products in {_WORDS[form]}", length // steps, "ns") for form, length in by_format.items()),
            *([Evidence("elementwise work on fp32", moved // steps, "ns", tuple(wide.memory.tolist()))] * (moved > 0)),
            Evidence("share of all products in 32 bits", wide.wide_ns / max(whole, 1), "share"),
            Evidence(f"{wide.format} over {used}, {measures.ceilings.source}", rates[wide.format] / rates[used], "×"),
        ],
        where=places_of_ops(measures, measures.op_of_work[wide.products]),
        confirm="a trial with autocast: products of this program's sizes may gain less, and changes of format cost"
        + (f"; {_NO_BFLOAT16}" if wide.format == "fp16" else ""),
    )


def _by_format(measures: Measures) -> Counter[str]:
    """Device time by number format of the products that would gain, the most common first."""
    wide = measures.wide_formats
    assert wide is not None
    device = measures.trace.device
    found: Counter[str] = Counter()
    for row in wide.products.tolist():
        found[measures.kernel_bounds.format_of(row)] += int(device.end_ns[row] - device.start_ns[row])
    return Counter(dict(found.most_common()))


_TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1_execute_kernel__5x_cublas"
_STEP = """
    host: olssssssss
    gpu :   kkkkkkkk
    step:           |
"""
_PRODUCT = ("[[8192,8192],[8192,8192]]", '["float","float"]')

_FIRES = (
    drawn(_STEP, repeat=4, kernels={"k": _TF32}, ops={"o": "aten::mm"}, shapes={"o": _PRODUCT}),
    # Without shapes: the kernel's name says TF32.
    drawn(_STEP, repeat=4, kernels={"k": _TF32}),
    # A device without bfloat16.
    drawn(
        _STEP,
        repeat=4,
        kernels={"k": "volta_sgemm_128x64_nn"},
        ops={"o": "aten::mm"},
        shapes={"o": _PRODUCT},
        device_names=("Tesla V100-SXM2-16GB",),
    ),
)
_SILENT = (
    # In 16 bits already.
    drawn(
        _STEP,
        repeat=4,
        kernels={"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"},
        ops={"o": "aten::mm"},
        shapes={"o": ("[[8192,8192],[8192,8192]]", '["c10::BFloat16","c10::BFloat16"]')},
    ),
    # One product in TF32 beside many in 16 bits: that is so on purpose.
    drawn(
        """
        host: ololssssssss
        gpu :   kkkkkkknnn
        step:             |
        """,
        repeat=4,
        kernels={"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "n": _TF32},
    ),
    # A device that multiplies 16 bits no faster is not in any table.
    drawn(_STEP, repeat=4, kernels={"k": _TF32}, device_names=("NVIDIA GeForce GTX 1080",)),
)

RULE = Rule(
    "low-precision-headroom",
    check,
    fixers=("autocast-bf16",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=40,
    symptom=Symptom.KERNELS,
)
