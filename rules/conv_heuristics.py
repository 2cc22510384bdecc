"""Convolutions run on the algorithm that cuDNN guessed, where a search would find a faster one.

What it finds
    Convolutions of sizes that stay the same, in a program that does not let cuDNN try its algorithms
    (`torch.backends.cudnn.benchmark` is False, the default), that run on its general engines: kernels without tensor
    cores that take any shape, for operands that tensor cores multiply.

Why it costs
    The guess is good for plain 3 × 3 convolutions of many channels. For grouped, dilated, three-dimensional and odd
    ones it falls back to engines that are many times slower than the best.

What proves it
    The kernels' names, the operands' formats, and the setting where a live run recorded it. The time is what these
    kernels take beyond what the same arithmetic takes on tensor cores at REACHED of their ceiling, in whole tiles of
    TILE channels, or its bytes at REACHED_BYTES of the memory's: an upper bound, as there may be no better engine for a
    shape.

    A search that is off, and convolutions which run on tensor cores all the same, are a note without a figure: what a
    search would find is not known before it is made. Where the setting is not recorded, nothing is said of those.

What fixes it
    `torch.backends.cudnn.benchmark = True` (`cudnn-benchmark`). Each new shape is tried for a while: not for programs
    whose shapes keep changing.

Thresholds
    DOMINATE (30 %): share of the steps in convolutions from which on the setting is worth a word.
    SLOW (2 %): share of the steps in general engines below which there is nothing to find (severity low begins there).
    REACHED (30 %), REACHED_BYTES (60 %): what convolutions of middling sizes reach of a device's ceilings; NVIDIA's own
    figures for ResNet-50 in training come to a third of the data sheet.
    TILE (64): channels that the smallest of cuDNN's tensor-core engines multiply at a time. Narrower layers leave the
    tile empty: on an H200 grouped convolutions with 16 channels a group reached 2 to 4 % of the ceiling, and for a
    first layer of one channel the search itself chose a general engine.
    SIZES (3): a convolution's operator with more than so many sizes per place has no fixed shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.shapes import shapes_of
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_ns,
)
from diagnose.trace.schema import Int64

DOMINATE = 0.30
SLOW = 0.02
REACHED = 0.30
REACHED_BYTES = 0.60
TILE = 64
SIZES = 3

# cuDNN's engines for any shape: no tensor cores in them.
_GENERAL = re.compile(
    r"implicit_convolve(Nd)?_sgemm|explicit_convolve|convolve(Nd)?_\w*(dgrad|wgrad|sgemm|engine)|\b[dw]grad_(alg\d_)?\w*engine"
    r"|wgrad_alg\d|dgrad_alg\d|grouped_direct|convolve_common_engine|scudnn|winograd_nonfused|fft[12]d_|vol2col|im2col"
)
_HALF = ("fp16", "bf16")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of general engines beyond that of tensor cores."""
    if not measures.has_device:
        yield CannotTell("conv-heuristics", "a recording of the device's work")
        return
    convolutions = (measures.classes == KernelClass.CONVOLUTION) & ~measures.layout_conversions
    rows = measures.rows_within_steps(convolutions)
    facts = measures.trace.facts
    if len(rows) == 0 or facts.cudnn_benchmark or _changes(measures, rows):
        return
    names = measures.trace.names
    general = np.array([*(_GENERAL.search(name) is not None for name in names), False], np.bool_)
    slow = rows[general[measures.trace.device.name[rows]]]
    time = measures.time_of(rows)
    if measures.share(measures.time_of(slow)) >= SLOW:
        needed = _needed_ns(measures, slow)
        if needed is None and facts.cudnn_benchmark is False:
            yield CannotTell("conv-heuristics", "the shapes of the convolutions and the device's name")
            return
        claim = _beyond(measures, slow, needed) if needed is not None else None
        if claim is not None:
            yield claim
            return
    share = measures.share(time)
    if share < DOMINATE:
        return
    if facts.cudnn_benchmark is None:
        yield CannotTell("conv-heuristics", "whether cuDNN searches for algorithms: a live run (diagnose run)")
        return
    yield Claim(
        summary=f"convolutions take {of_traced_step(measures, time)}, and cuDNN's search for the fastest algorithm is "
        "off",
        confidence=Confidence.HINT,
        evidence=[Evidence("convolutions", share, "share"), Evidence("cudnn.benchmark", 0, "flag")],
        confirm="a trial with torch.backends.cudnn.benchmark = True",
    )


def _beyond(measures: Measures, slow: Int64, needed: np.typing.NDArray[np.float64]) -> Claim | None:
    device = measures.trace.device
    length = (device.end_ns - device.start_ns)[slow]
    left = np.minimum(needed / np.maximum(length, 1), 1.0)
    spared = (length * (1 - left)).astype(np.int64)
    claims = Intervals.of(device.end_ns[slow] - spared, device.end_ns[slow]) & measures.counted
    gain = recoverable_ns(measures, claims)
    if gain == 0:
        return None
    known = measures.trace.facts.cudnn_benchmark is False
    setting = "cuDNN's search for algorithms is off" if known else "cuDNN may have guessed the algorithm"
    return Claim(
        summary=f"{format_ns(measures.time_of(slow).total_ns / measures.step_count)} per step go to convolutions on "
        f"general engines without tensor cores, though their numbers and sizes suit those: {setting}",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence(
                "general engines",
                measures.time_of(slow).total_ns // measures.step_count,
                "ns",
                tuple(slow.tolist()),
            ),
            Evidence("such kernels per step", len(slow) / measures.step_count, "count"),
            Evidence("assumed of the ceiling", REACHED, "share"),
            *([Evidence("cudnn.benchmark", 0, "flag")] if known else []),
        ],
        where=places_of_ops(measures, measures.op_of_work[slow]),
        confirm="a trial with torch.backends.cudnn.benchmark = True",
    )


def _needed_ns(measures: Measures, slow: Int64) -> np.typing.NDArray[np.float64] | None:
    """Per kernel what its operator would take on tensor cores; its own time where that is not known or no use.

    An operator's arithmetic is shared out over its kernels by their length. None where nothing is known at all.
    """
    ceilings, work = measures.ceilings, measures.op_work
    op = measures.op_of_work[slow]
    if ceilings is None or not len(measures.trace.ops):
        return None
    names = np.array(FORMATS)[work.format[op]]
    rate = {name: ceilings.flops_per_s[name] for name in _HALF if name in ceilings.flops_per_s}
    # In fp32 these engines may be what the program asked for: they are only wrong where TF32 is known to be allowed.
    if measures.trace.facts.cudnn_tf32 and "tf32" in ceilings.flops_per_s:
        rate["fp32"] = ceilings.flops_per_s["tf32"]
    known = (op >= 0) & (work.flops[op] > 0) & np.isin(names, list(rate))
    if not known.any():
        return None
    device = measures.trace.device
    length = (device.end_ns - device.start_ns)[slow].astype(np.float64)
    per_op = np.bincount(op[known], weights=length[known], minlength=len(measures.trace.ops))
    per_second = np.array([rate.get(name, np.inf) for name in names])
    arithmetic = work.flops[op] / (REACHED * per_second) * 1e9
    moving = np.maximum(work.bytes[op], 0) / (REACHED_BYTES * ceilings.bytes_per_s) * 1e9
    arithmetic *= _emptiness(measures, op)
    needed = np.maximum(arithmetic, moving) * length / np.maximum(per_op[op], 1)
    return np.where(known, needed, length)


def _emptiness(measures: Measures, ops: Int64) -> np.typing.NDArray[np.float64]:
    """Per operator, the size of the tiles over what of them its channels fill; 1.0 where its shapes are not known."""
    factor = {-1: 1.0}
    for op in np.unique(ops[ops >= 0]).tolist():
        shapes = [shape for shape in shapes_of(measures.trace, op) or () if shape is not None and len(shape) >= 3]
        factor[op] = 1.0
        if len(shapes) >= 2:
            # Input (n, c, …) and weight (o, c / groups, …) are last: before them comes the gradient of the output.
            image, weight = shapes[-2], shapes[-1]
            groups = max(image[1] // max(weight[1], 1), 1)
            widths = (weight[1], max(weight[0] // groups, 1))
            factor[op] = math.prod(-(-width // TILE) * TILE / max(width, 1) for width in widths)
    return np.array([factor[op] for op in ops.tolist()], np.float64)


def _changes(measures: Measures, rows: Int64) -> bool:
    """Whether the convolutions' sizes differ from step to step."""
    trace, steps = measures.trace, measures.steps
    op = measures.op_of_work[rows]
    known = op >= 0
    if not known.any() or measures.step_count < 2:
        return False
    texts = trace.ops.shapes[op[known]]
    step = np.searchsorted(steps.end_ns, trace.device.start_ns[rows[known]], side="right")
    different = len(np.unique(texts))
    per_step = max(len(np.unique(texts[step == one])) for one in np.unique(step).tolist())
    return different > SIZES + per_step


_ENGINE = "void cudnn::cnn::implicit_convolveNd_sgemm<__nv_bfloat16, 3, 1024, 5, 5, 3, 3, 3, 1, false, false, true>"
_FAST = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
_SHAPES = {
    "o": (
        "[[8, 64, 32, 32, 32], [64, 8, 3, 3, 3], [], [], [], [], [], [], []]",
        '["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar", "", "", ""]',
        '["", "", "[1, 1, 1]", "[1, 1, 1]", "[1, 1, 1]", "8", "False", "False", "True"]',
    )
}
_OPS = {"o": "aten::cudnn_convolution"}
_STEP = """
    host: olol sssssssss
    gpu :   kkkkkkKKKKKK
    step:               |
"""

_FIRES = (
    # The search is off, and a grouped convolution runs on an engine without tensor cores.
    drawn(
        _STEP,
        repeat=4,
        ops=_OPS,
        shapes=_SHAPES,
        kernels={"k": _ENGINE, "K": _FAST},
        facts=Facts(cudnn_benchmark=False),
    ),
)

_SILENT = (
    # The search is on: this is the fastest that there is.
    drawn(
        _STEP,
        repeat=4,
        ops=_OPS,
        shapes=_SHAPES,
        kernels={"k": _ENGINE, "K": _FAST},
        facts=Facts(cudnn_benchmark=True),
    ),
    # Tensor cores multiply already, and nobody recorded the setting.
    drawn(_STEP, repeat=4, ops=_OPS, shapes=_SHAPES, kernels={"k": _FAST, "K": _FAST}),
)

RULE = Rule(
    "conv-heuristics",
    check,
    fixers=("cudnn-benchmark", "channels-last"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=32,
    symptom=Symptom.KERNELS,
)
