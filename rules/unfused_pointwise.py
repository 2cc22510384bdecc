"""Normalisations and activations are written out of primitives: each operator reads and writes the whole tensor.

What it finds
    Chains of elementwise kernels and reductions that eager operators launch one after the other where one kernel would
    do: root-mean-square and layer normalisation, GELU, softmax and the like written as arithmetic on tensors, forward
    and backward; and long chains of whatever kind.

Why it costs
    Such a kernel does hardly any arithmetic: its time is the time to read its tensors from memory and to write them
    back. A chain of eight moves eight times what one fused kernel moves.

What proves it
    The order of launches: neighbours without a product or a fused kernel between them, and what only a normalisation
    or an activation is made of among their operators. Of the chain's time one fused kernel's is left: as long as its
    longest kernel for each thing that it computes, BACKWARD_PASSES of that in a backward pass. Attention, losses and
    optimizers written out have their own rules and are left out here.
    Generated kernels are fused already. What every eager program has (residual sums, changes of format, an activation
    by PyTorch's own operator) is another finding, `memory-bound`.

What fixes it
    PyTorch's own fused operators (`nn.RMSNorm`, `nn.LayerNorm`, `F.gelu(approximate="tanh")`), compiling the model
    (`compile-model`), or the fused operators of `diagnose.kernels` in its graphs (`use-diagnose-backend`).

Thresholds
    LONG 7: large kernels in a row that are a chain whatever it computes; a transformer of PyTorch's own modules has up
    to four in a row, rotary embeddings (left out: there is no operator for them) up to ten.
    UNKNOWN_LEFT 0.4: what is left at least of a chain of which nothing is known: it may read many tensors.
    BACKWARD_PASSES 1.5: a fused backward kernel reads input and gradient and writes a gradient.
    For scale: an eager GPT with normalisation written out went from 60.5 ms to 38.5 ms per step on an H200 when it was
    compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import fused, gained_ns
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, drawn


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The time of chains, less that of one kernel for each."""
    if not measures.has_device:
        yield CannotTell("unfused-pointwise", "a recording of the device's work")
        return
    if measures.chains:
        yield from _chains(measures)


def _chains(measures: Measures) -> Iterator[Claim]:
    order, chains = measures.program_order, measures.chains
    places = np.flatnonzero(measures.chain_places)
    rows = order.rows[places]
    in_chains = [order.rows[chain.first : chain.last + 1] for chain in chains]
    time = measures.time_of(rows)
    total = sum(chain.length_ns for chain in chains)
    needed = sum(chain.needed_ns for chain in chains)
    cut = fused(measures, in_chains, [chain.needed_ns / max(chain.length_ns, 1) for chain in chains])
    saved = gained_ns(measures, cut, int(time.total_ns * (1 - needed / total)) if total else 0)
    if saved == 0:
        return
    by_kind: Counter[str] = Counter()
    for chain in chains:
        by_kind[chain.kind or "long chains of elementwise operators"] += chain.length_ns
    words = " and ".join(kind for kind, _ in by_kind.most_common(2))
    ahead = [np.arange(chain.first, chain.last + 1) for chain in chains if not chain.backward]
    written = "" if set(by_kind) == {"long chains of elementwise operators"} else " written out of primitives"
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go "
        f"to {words}{written}, in {len(places) / measures.step_count:.0f} kernels that each read and write whole "
        "tensors",
        recoverable_ns=saved,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            *(Evidence(kind, length // measures.step_count, "ns") for kind, length in by_kind.most_common()),
            Evidence("chains per step", len(chains) / measures.step_count, "count"),
            Evidence("kernels in them, per step", len(places) / measures.step_count, "count", tuple(rows.tolist())),
            Evidence("one fused kernel each would take", needed // measures.step_count, "ns"),
        ],
        where=places_of_ops(measures, order.op[np.concatenate(ahead)] if ahead else order.op[places]),
        confirm="a trial with PyTorch's fused operators or torch.compile",
    )


_OPS = {
    "a": "aten::mm",
    "i": "aten::pow",
    "o": "aten::mean",
    "x": "aten::add",
    "t": "aten::rsqrt",
    "n": "aten::mul",
    "r": "aten::tanh",
    "w": "aten::gelu",
    "g": "aten::native_layer_norm",
    "b": "triton_per_fused_rms_norm_0",
    "d": "aten::neg",
    "h": "aten::cat",
}
_KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "w": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor>",
    "x": "void at::native::elementwise_kernel<128, 2, at::native::add>",
    "y": "void at::native::reduce_kernel<512, 1, at::native::MeanOps>",
    "v": "void at::native::vectorized_layer_norm_kernel<float, float>",
    "g": "triton_per_fused_rms_norm_0",
}

_drawn = partial(drawn, repeat=4, ops=_OPS, kernels=_KERNELS)
_FIRES = (
    # Root-mean-square normalisation: power, mean, sum, root, product, product.
    _drawn("""
        host: alilolxltlnlnlal.ssssssssssssssssssssss
        gpu :  bbbbwwwwyyyyxwxxxxwwwwbbbbbbbbbbbbbbbb
        opt :                 O
    """),
    # GELU by its approximation.
    _drawn("""
        host: alilnlxlnlrlxlnlal.ssssssssssssssssssss
        gpu :  bbbbwwwxxxwwwxxxwwwxxxwwwbbbbbbbbbbbbb
        opt :                   O
    """),
)

_SILENT = (
    # PyTorch's own operators, a residual sum and a product between them.
    _drawn("""
        host: alxlglalwlal.ssssssssssssssssssssssss
        gpu :  bbbbxvvvbbbbwbbbbbbbbbbbbbbbbbbbbbbb
        opt :             O
    """),
    # Generated kernels.
    _drawn("""
        host: alblalblalblal.ssssssssssssssss
        gpu :  bbbbgggbbbbgggbbbbgggbbbbbbbbb
        opt :               O
    """),
    # Rotary embeddings: no operator fuses them.
    _drawn("""
        host: alnldlhlnlxlnlxlal.ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss
        gpu :  bbbbbbbbbbbbbbbbwxwxwxwbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
        opt :                   O
    """),
)

RULE = Rule(
    "unfused-pointwise",
    check,
    fixers=("native-norm", "native-gelu", "compile-model", "use-diagnose-backend"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=45,
    symptom=Symptom.KERNELS,
)
