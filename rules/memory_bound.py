"""Eager operators that wait for memory, one after the other, where one pass over memory would do.

What it finds
    Kernels of PyTorch's own operators that move tensors and compute little: normalisations, activations, sums of a
    residual network, dropout, pooling, copies, and their backward passes, as they stand between products.

Why it costs
    Their time is the time to read their tensors from memory and to write them back. Each operator does so for itself:
    what the next one reads has just been written. Compiled, neighbours become one kernel.

What proves it
    The bytes of every kernel, from the shapes of its operator, over the ceiling of the memory: what takes longer for
    its bytes than for its operations is memory-bound. A chain of such neighbours would move, fused, what it moves now
    without the tensors that one hands on to the next, at the rate that generated kernels reach. The recoverable time is
    an upper bound: what is saved for the backward pass is written all the same, and a compiler does not fuse all.
    What has a rule of its own is left out: optimizers, losses, attention and normalisation written out by hand,
    conversions of the memory format. So are generated kernels, which are fused already.

What fixes it
    Compiling the model (`compile-model`, `use-diagnose-backend`), `channels-last` for batch normalisation around
    convolutions. Half of the bytes in bfloat16 is another finding, `low-precision-headroom`.

Thresholds
    GENERATED, ALIKE: see `diagnose.measure.kernels.memory_chains`.
    SURE 0.5: the part of the bound that severity goes by. Half of the passes that a chain saves are writes, and a
    compiler keeps those that the backward pass reads. Reasoned, not measured: no trial of such a finding by itself is
    on record.
    KNOWN 0.5: of the time of such kernels, the part whose bytes must be known.
    WORTH 0.02: of the step; less in kernels of unknown bytes is not worth a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import fused, gained_ns
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, drawn

SURE = 0.5
KNOWN = 0.5
WORTH = 0.02
_NAMED = 3  # kinds of kernels that a sentence names; chosen, not measured


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time of chains, less that of one pass over memory for each."""
    if not measures.has_device:
        yield CannotTell("memory-bound", "a recording of the device's work")
        return
    chains = measures.memory_chains
    known = sum(chain.length_ns for chain in chains)
    eager = measures.eager_memory_ns
    if known < KNOWN * eager:
        if eager >= WORTH * measures.total_ns:
            yield CannotTell("memory-bound", "shapes of the operators (record_shapes=True), on a device whose data "
                             "sheet is known")  # fmt: skip
        return
    if not chains:
        return
    rows = np.concatenate([chain.rows for chain in chains])
    left = [chain.needed_ns / max(chain.length_ns, 1) for chain in chains]
    time, needed = measures.time_of(rows), sum(chain.needed_ns for chain in chains)
    cut = fused(measures, [chain.rows for chain in chains], left)
    gained = gained_ns(measures, cut, int(time.total_ns * (1 - needed / known)))
    if gained == 0:
        return
    kinds: Counter[str] = Counter()
    for chain in chains:
        kinds.update(chain.kinds)
    words = [kind for kind, _ in kinds.most_common(_NAMED)]
    bounds = measures.kernel_bounds
    assert measures.ceilings is not None  # there are no chains without
    reached = bounds.memory_ns[rows].sum() / max(known, 1)
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go "
        f"to {len(rows) / measures.step_count:.0f} eager kernels that wait for memory: {', '.join(words)}",
        recoverable_ns=gained,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        sure=SURE,
        evidence=[
            *(Evidence(kind, length // measures.step_count, "ns") for kind, length in kinds.most_common()),
            Evidence("chains per step", len(chains) / measures.step_count, "count"),
            Evidence("kernels in them, per step", len(rows) / measures.step_count, "count", tuple(rows.tolist())),
            Evidence("moved per step", int(bounds.bytes[rows].sum()) // measures.step_count, "bytes"),
            Evidence(f"of the memory's rate ({measures.ceilings.source})", float(reached), "share"),
            Evidence("one pass each would take", needed // measures.step_count, "ns"),
        ],
        where=places_of_ops(measures, measures.op_of_work[rows]),
        fixers=None if "batch normalisation" in kinds else _FIXERS,
        confirm="a trial with torch.compile",
    )


_FIXERS = ("compile-model", "use-diagnose-backend")
_IMAGES = "[[128,256,56,56],[128,256,56,56],[]]"
_OPS = {"a": "aten::mm", "n": "aten::native_batch_norm", "r": "aten::relu", "x": "aten::add", "w": "aten::gelu"}
_KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "n": "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>",
    "r": "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar>",
    "x": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "g": "triton_poi_fused_add_native_batch_norm_relu_0",
}
_SHAPES = {
    "n": ("[[128,256,56,56],[256],[256],[256],[256]]", '["float","float","float","float","float"]'),
    "r": ("[[128,256,56,56]]", '["float"]'),
    "x": (_IMAGES, '["float","float","Scalar"]'),
    "w": ("[[128,256,56,56],[]]", '["float","Scalar"]'),
}  # fmt: skip

_FIRES = (
    # Normalisation, activation and sum, each of 0.4 GB: three and a half passes over memory instead of seven.
    drawn(
        """
        host: alnlrlxlal.sssssssss
        gpu :  bbbbnnrrxxxbbbbbbbb
        step:                      |
        """,
        repeat=4,
        unit_ns=100_000,
        ops=_OPS,
        kernels=_KERNELS,
        shapes=_SHAPES,
    ),
)

_SILENT = (
    # Generated kernels.
    drawn(
        """
        host: alglal.sssssssssssss
        gpu :  bbbbgggbbbbbbbbbbbb
        """,
        repeat=4,
        unit_ns=100_000,
        ops={**_OPS, "g": "triton_poi_fused_add_native_batch_norm_relu_0"},
        kernels=_KERNELS,
        shapes={**_SHAPES, "g": _SHAPES["x"]},
    ),
    # An activation alone between two products, near the memory's rate: nobody hands anything on.
    drawn(
        """
        host: alwlal.sssssssssssss
        gpu :  bbbbrrbbbbbbbbbbbbb
        """,
        repeat=4,
        unit_ns=100_000,
        ops=_OPS,
        kernels=_KERNELS,
        shapes=_SHAPES,
    ),
)

RULE = Rule(
    "memory-bound",
    check,
    fixers=(*_FIXERS, "channels-last"),
    fires=_FIRES,
    silent=_SILENT,
    symptom=Symptom.KERNELS,
    nearness=48,
)
