"""Products of large linear layers in bfloat16, in compiled code, on a device that multiplies fp8 twice as fast.

What it finds
    Matrix products of linear layers with at least four million weights, in 16 bits, in a program that compiles.

Why it costs
    Tensor cores from Ada and Hopper on multiply fp8 at twice the rate of bfloat16.

What proves it
    The time of these products. The number of rows, tokens of a batch, is the largest size that products of MOSTLY of
    all time have in common (an optimizer that multiplies weights has others); the other two sizes are the layer's. The
    recoverable time is an upper bound: tensors have to be rounded to fp8, which costs passes over memory. A compiler
    fuses those with what is around them; without one they cost about what the products gain, and nothing is said. Nor
    is it of devices other than NVIDIA's, on which nothing was measured.

What fixes it
    `fp8-linear`. It changes the training: operands keep 3 bits of mantissa.

Thresholds
    diagnose.kernels.fp8_linear.LEAST_WEIGHTS, MOST_WIDENING, MULTIPLE: layers that `multiply_in_fp8` changes.
    SURE 0.5: of that bound; measured by hand, a model of 1.1 B parameters took 182 ms instead of 217 a step (H200).
    LEFT 0.5: of a product's time; data sheets have fp8 at twice the rate of bfloat16 on all of these devices.
    MOSTLY 0.5: of the time of all products of known size. With less in large layers, the rest of a step bounds what can
    be gained.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, Trace, drawn
from diagnose.trace.schema import Bool, Int64

LEAST_WEIGHTS, MOST_WIDENING, MULTIPLE = 1 << 22, 8, 16
LEFT = 0.5
SURE = 0.5
MOSTLY = 0.5


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time that large products in 16 bits would take less in fp8."""
    if not measures.has_device:
        yield CannotTell("fp8-headroom", "a recording of the device's work")
        return
    ceilings, products, order = measures.ceilings, measures.products, measures.program_order
    named = [measures.trace.facts.device_name or "", *measures.trace.device_names]
    has_fp8 = ceilings is not None and "fp8" in ceilings.flops_per_s and any("NVIDIA" in name for name in named)
    if not has_fp8 or not len(products) or not len(measures.compiled_regions.rows):
        return
    layers = _layers(measures)
    large = _are_large(measures, layers)
    share = float(products.length_ns[large].sum() / max(products.length_ns.sum(), 1))
    if share < MOSTLY:
        return
    rows = order.rows[np.isin(order.op, products.op[large]) & order.product]
    time, cut = measures.time_of(rows), sped_up(measures, rows, LEFT)
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go to products of large linear layers in bfloat16; in fp8 they are "
        "up to twice as fast",
        recoverable_ns=gained_ns(measures, cut, int(time.total_ns * (1 - LEFT))),
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("products of large layers", time.total_ns // measures.step_count, "ns", tuple(rows.tolist())),
            Evidence("share of all products", share, "share"),
            Evidence("weights of the smallest layer", int(layers[large].prod(axis=1).min()), "count"),
        ],
        where=places_of_ops(measures, measures.op_of_work[rows]),
        sure=SURE,
        confirm="a trial: to round tensors to fp8 costs passes over memory, which this leaves out",
    )


def _layers(measures: Measures) -> Int64:
    """Return the inputs and outputs of each product's layer, the smaller number first."""
    products = measures.products
    sizes = np.sort(products.sizes[:, 1:], axis=1)
    shared = {value: products.length_ns[(sizes == value).any(axis=1)].sum() for value in np.unique(sizes).tolist()}
    most = min(MOSTLY * products.length_ns.sum(), max(shared.values()))
    rows = max(value for value, length in shared.items() if length >= most)
    place = np.where((sizes == rows).any(axis=1), (sizes == rows).argmax(axis=1), 2)
    others = np.array([[1, 2], [0, 2], [0, 1]])[place]
    return np.asarray(np.take_along_axis(sizes, others, axis=1), np.int64)


def _are_large(measures: Measures, layers: Int64) -> Bool:
    products = measures.products
    small, large = layers.T
    fits = (products.sizes[:, 1:] % MULTIPLE == 0).all(axis=1) & (large <= MOST_WIDENING * small)
    single = (products.sizes[:, 0] == 1) & (products.item_bytes == 2)
    return np.asarray(fits & single & (small * large >= LEAST_WEIGHTS), np.bool_)


_KERNEL = {"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"}
_STEP = """
    op  : rrrrrrrrrr
    host: olssssssss
    gpu :   kkkkkkkk
    step:           |
"""
_BF16 = '["c10::BFloat16","c10::BFloat16"]'


def _of_size(rows: int, inputs: int, outputs: int, *, device: str = "NVIDIA H200", compiled: bool = True) -> Trace:
    region = "Torch-Compiled Region: 0/0" if compiled else "forward"
    return drawn(
        _STEP,
        repeat=4,
        kernels=_KERNEL,
        ops={"r": region, "o": "aten::mm"},
        shapes={"o": (f"[[{rows},{inputs}],[{inputs},{outputs}]]", _BF16)},
        device_names=(device,),
    )


_WITH_MUON = drawn(
    """
    op  : rrrrrrrrrr
    host: olssss      plssss
    gpu :   kkkkkkkkkk  kkkkkk
    step:                     |
    """,
    repeat=4,
    kernels=_KERNEL,
    ops={"r": "Torch-Compiled Region: 0/0", "o": "aten::mm", "p": "aten::mm"},
    shapes={"o": ("[[16384,768],[768,3072]]", _BF16), "p": ("[[768,3072],[3072,768]]", _BF16)},
    device_names=("NVIDIA H200",),
)


RULE = Rule(
    "fp8-headroom",
    check,
    fixers=("fp8-linear",),
    fires=(_of_size(16384, 2048, 5632), _of_size(16384, 11008, 4096)),
    silent=(
        # A layer of 2.4 million weights.
        _of_size(16384, 768, 3072),
        # Such a layer beside an optimizer that multiplies its weights.
        _WITH_MUON,
        # The output layer of a language model.
        _of_size(16384, 768, 50304),
        # A device without fp8, and one of which nothing was measured.
        _of_size(16384, 2048, 5632, device="NVIDIA A100-SXM4-80GB"),
        _of_size(16384, 2048, 5632, device="AMD Instinct MI300X"),
        # Nothing is compiled.
        _of_size(16384, 2048, 5632, compiled=False),
    ),
    nearness=45,
    symptom=Symptom.KERNELS,
)
