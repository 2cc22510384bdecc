"""The Triton kernels compile for NVIDIA's and AMD's devices; no device is needed for that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled"
)

TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
THREADS = 256
STAGES = {"sm_90": ("ptx", "ld.global.v4", "st.global.v4"), "gfx942": ("amdgcn", "load_dwordx4", "store_dwordx4")}
"""The text that shows them, and the loads and stores of 16 bytes."""


def compiled(kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any]) -> set[str]:
    """The stages that the kernel was lowered to."""
    return set(lowered(kernel, target, types, constants))


def lowered(
    kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], aligned: Sequence[str] = ()
) -> dict[str, Any]:
    """What the kernel was lowered to, by stage; addresses and strides that are multiples of 16 may be named."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = types | dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in kernel.arg_names}
    place = GPUTarget(*TARGETS[target])
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, ordered, constexprs=constants, attrs=attributes)
    return dict(triton.compile(source, target=place, options={"num_warps": THREADS // place.warp_size}).asm)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_cross_entropy_of_rows(target: str, dtype: str) -> None:
    """Rows of an odd length too are moved 16 bytes at a time, but for their ends."""
    from diagnose.kernels.gpu import row_loss

    options = {"SMOOTHING": 0.1, "Z_LOSS": 1e-4, "DTYPE": triton.language.float32, "BLOCK": 4096}
    options |= {"ALIGNED": 8 if dtype == "bf16" else 4}
    rows = {"logits": f"*{dtype}", "target": "*i64", "logsumexps": "*fp32", "row_stride": "i64", "ignore_index": "i32"}
    stage, load, store = STAGES[target]
    types = rows | {"losses": "*fp32", "columns": "i32"}
    found = lowered(row_loss.loss_kernel, target, types, options | {"WHOLE": 49152, "END": 53248}, ["logits"])
    assert load in found[stage]
    types = rows | {"scales": "*fp32", "gradients": f"*{dtype}", "gradient_stride": "i64"}
    types |= dict.fromkeys(("columns", "first_column", "vocabulary"), "i32")
    for alike in (True, False):
        aligned = ["logits", "gradients"]
        found = lowered(row_loss.gradient_kernel, target, types, options | {"ALIKE": alike}, aligned)
        assert load in found[stage] and (store in found[stage]) == alike


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rounded", [False, True])
def test_residual_add_and_norm(target: str, rounded: bool) -> None:
    from diagnose.kernels.gpu import residual_norm

    options = {"WEIGHTED": True, "ROUND_FIRST": rounded, "DTYPE": triton.language.float32, "BLOCK": 4096}
    binary = {"cubin"} if target == "sm_90" else {"hsaco"}
    types = dict.fromkeys(("x", "residual", "weight", "normed", "summed"), "*bf16") | {"scales": "*fp32"}
    types |= {"x_stride": "i64", "residual_stride": "i32", "columns": "i32"}
    assert binary <= compiled(residual_norm.forward_kernel, target, types, options | {"EPS": 1e-6})
    types = dict.fromkeys(("by_normed", "by_summed", "summed", "weight", "by_inputs"), "*bf16")
    types |= {"scales": "*fp32", "by_weight_parts": "*fp32", "rows": "i32", "columns": "i32"}
    options |= {"SUM_USED": True, "ROWS_OF_PART": 8}
    assert binary <= compiled(residual_norm.backward_kernel, target, types, options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", ["i32", "i64"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_units(target: str, length: str, activation: str) -> None:
    from diagnose.kernels.gpu import gated_unit

    options = {"ACTIVATION": activation, "DTYPE": triton.language.float32, "BLOCK": gated_unit.CANDIDATES[0].block}
    binary = {"cubin"} if target == "sm_90" else {"hsaco"}
    sizes = dict.fromkeys(("gate_stride", "up_stride", "columns"), length) | {"blocks": "i32"}
    types = dict.fromkeys(("gate", "up", "out"), "*bf16") | sizes | {"out_stride": length}
    assert binary <= compiled(gated_unit.forward_kernel, target, types, options)
    types = dict.fromkeys(("by_out", "gate", "up", "by_gate", "by_up"), "*bf16") | sizes
    types |= {"by_out_stride": length, "gradient_stride": length}
    assert binary <= compiled(gated_unit.backward_kernel, target, types, options)


@pytest.mark.parametrize("target", TARGETS)
def test_an_odd_number_of_elements_is_moved_16_bytes_at_a_time(target: str) -> None:
    """The whole blocks of a contiguous input: only its last, partial block goes element by element."""
    from diagnose.kernels.gpu import gated_unit

    pointers, strides = ("gate", "up", "out"), ("gate_stride", "up_stride", "out_stride")
    types = dict.fromkeys(pointers, "*bf16") | dict.fromkeys((*strides, "columns"), "i64") | {"blocks": "i32"}
    options = {"ACTIVATION": "silu", "DTYPE": triton.language.float32, "BLOCK": 2048}
    found = lowered(gated_unit.forward_kernel, target, types, options, aligned=(*pointers, *strides))
    stage, load, store = STAGES[target]
    assert found[stage].count(load) >= 2, "gate and up"
    assert store in found[stage]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("used", [False, True])
def test_residual_add_and_layer_norm(target: str, used: bool) -> None:
    from diagnose.kernels.gpu import residual_layer_norm

    options = {"WEIGHTED": True, "DTYPE": triton.language.float32, "BLOCK": 4096}
    binary = {"cubin"} if target == "sm_90" else {"hsaco"}
    types = dict.fromkeys(("x", "residual", "weight", "bias", "normed", "summed"), "*bf16")
    types |= {"means": "*fp32", "scales": "*fp32", "x_stride": "i64", "residual_stride": "i32", "columns": "i32"}
    types |= {"eps": "fp64"}
    assert binary <= compiled(residual_layer_norm.forward_kernel, target, types, options | {"BIASED": used})
    types = dict.fromkeys(("by_normed", "by_summed", "summed", "weight", "by_inputs"), "*bf16")
    types |= dict.fromkeys(("means", "scales", "sums"), "*fp32") | dict.fromkeys(("rows", "columns", "parts"), "i32")
    options |= {"SUMS_WANTED": used, "SUM_USED": used, "ROWS_OF_PART": 8}
    assert binary <= compiled(residual_layer_norm.backward_kernel, target, types, options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_rotary(target: str, interleaved: bool, wide: bool) -> None:
    from diagnose.kernels.gpu import rotary

    options = {"INTERLEAVED": interleaved, "WIDE": wide, "BACK": interleaved, "DTYPE": triton.language.float32}
    options |= {"HEADS": 32, "HALF": 64}
    types = dict.fromkeys(("q", "k", "new_q", "new_k"), "*bf16") | {"cos": "*fp32", "sin": "*fp32"}
    others = [name for name in rotary.rotary_kernel.arg_names if name not in types and name not in options]
    types |= {name: "i64" if "stride" in name else "i32" for name in others}
    binary = {"cubin"} if target == "sm_90" else {"hsaco"}
    assert binary <= compiled(rotary.rotary_kernel, target, types, options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("turns", [1, 4])
def test_softmax(target: str, causal: bool, turns: int) -> None:
    from diagnose.kernels.gpu import masked_softmax

    options = {"CAUSAL": causal, "TURNS": turns, "DTYPE": triton.language.float32}
    options |= {"ROWS": 2 // min(turns, 2), "BLOCK": 2048 if turns == 1 else masked_softmax.BLOCK_OF_WIDER}
    types = {"scores": "*bf16", "mask": "*bf16" if causal else "*u8", "shares": "*bf16", "scale": "fp64"}
    masked = options | {"MASKED": True, "ADDED": causal}
    others = [name for name in masked_softmax.forward_kernel.arg_names if name not in types and name not in masked]
    binary = {"cubin"} if target == "sm_90" else {"hsaco"}
    types |= {name: "i64" if "stride" in name else "i32" for name in others}
    assert binary <= compiled(masked_softmax.forward_kernel, target, types, masked)
    types = dict.fromkeys(("by_shares", "shares", "by_scores"), "*bf16") | {"scale": "fp64"}
    types |= dict.fromkeys(("rows", "tokens", "columns"), "i32")
    assert binary <= compiled(masked_softmax.backward_kernel, target, types, options)
