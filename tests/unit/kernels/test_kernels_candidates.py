"""Every way in which a kernel may be launched computes the same, and can be built for each kind of device."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections import Counter
from typing import Any

import pytest
import torch
from kernel_checks import DEVICE, check, drawn, labels
from torch.nn import functional

from diagnose import kernels
from diagnose.kernels.launch.tuning import Config

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MOST = 6
"""Candidates of a kernel, at most; of fewer, some have several turns."""

TARGETS = {"sm_90": ("cuda", 90, 32, "cubin"), "gfx942": ("hip", "gfx942", 64, "hsaco")}

SHARED_BYTES = {"cuda": 227 << 10, "hip": 64 << 10}
"""What a program may have of the memory of a processor: CUDA's programming guide for 9.0, AMD's CDNA3 ISA guide."""


@pytest.fixture
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is launched by the candidate of this number."""
    if kernels.backend(DEVICE) != "triton":
        pytest.skip("needs a device, or TRITON_INTERPRET=1")
    number: int = request.param

    def choose(_: str, __: tuple[int, ...], ___: torch.Tensor, candidates: list[Config], ____: object) -> Config:
        assert len(candidates) <= MOST
        return candidates[number % len(candidates)]

    from diagnose.kernels import gpu

    monkeypatch.setenv("DIAGNOSE_TUNING", "off")
    patched = 0
    for found in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"diagnose.kernels.gpu.{found.name}")
        if hasattr(module, "choose"):
            monkeypatch.setattr(module, "choose", choose)
            patched += 1
    assert patched >= 3


EACH = pytest.mark.parametrize("taken", range(MOST), indirect=True)


@EACH
@pytest.mark.usefixtures("taken")
def test_gating() -> None:
    inputs = [drawn(3, 4099, seed=seed, dtype=torch.float32) for seed in (1, 2)]
    check(kernels.swiglu, lambda gate, up: functional.silu(gate) * up, inputs)
    check(
        lambda fused: kernels.swiglu(*fused.chunk(2, dim=-1)),
        lambda fused: functional.silu(fused[:, :4097]) * fused[:, 4097:],
        [drawn(3, 8194, seed=3, dtype=torch.float32)],
    )


@EACH
@pytest.mark.usefixtures("taken")
def test_adding_and_normalising() -> None:
    check(
        lambda x, residual, weight: kernels.add_rms_norm(x, residual, weight, 1e-5),
        lambda x, residual, weight: (functional.rms_norm(x + residual, (2051,), weight, 1e-5), x + residual),
        [
            *(drawn(7, 2051, seed=seed, dtype=torch.float32) for seed in (4, 5)),
            drawn(2051, seed=6, dtype=torch.float32),
        ],
    )


@EACH
@pytest.mark.usefixtures("taken")
def test_adding_and_normalising_by_mean_and_deviation() -> None:
    check(
        lambda x, residual, weight, bias: kernels.add_layer_norm(x, residual, weight, bias),
        lambda x, residual, weight, bias: (functional.layer_norm(x + residual, (2051,), weight, bias), x + residual),
        [
            *(drawn(7, 2051, seed=seed, dtype=torch.float32) for seed in (4, 5)),
            *(drawn(2051, seed=seed, dtype=torch.float32) for seed in (6, 7)),
        ],
    )


@EACH
@pytest.mark.usefixtures("taken")
def test_turning() -> None:
    angles = drawn(3, 48, seed=9).detach()

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * angles.cos().repeat(1, 2) + torch.cat((-second, first), -1) * angles.sin().repeat(1, 2)

    check(
        lambda q, k: kernels.rotary(q, k, angles.cos(), angles.sin()),
        lambda q, k: (turned(q), turned(k)),
        [drawn(2, 65, 3, 96, seed=10, dtype=torch.float32), drawn(2, 3, 3, 96, seed=11, dtype=torch.float32)],
    )


@EACH
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("columns", [77, 2100, 16_500])
def test_sharing(columns: int) -> None:
    mask = drawn(1, columns, seed=12).detach() > 0.0
    check(
        lambda x: kernels.softmax(x, mask, 0.5),
        lambda x: torch.softmax((x * 0.5).masked_fill(~mask, float("-inf")), -1),
        [drawn(3, columns, seed=13, dtype=torch.float32)],
    )


@EACH
@pytest.mark.usefixtures("taken")
def test_losses_of_logits() -> None:
    target = labels(3, 33_001, seed=7, ignored=(1,))
    check(
        lambda x: kernels.cross_entropy(x, target, label_smoothing=0.1),
        lambda x: functional.cross_entropy(x, target, label_smoothing=0.1),
        [drawn(3, 33_001, seed=8, dtype=torch.float32)],
    )


def built(kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], threads: int) -> bool:
    """Whether a kernel becomes machine code for so many threads of a program."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kind, architecture, width, binary = TARGETS[target]
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constexprs=constants)
    place = GPUTarget(kind, architecture, width)
    found = triton.compile(source, target=place, options={"num_warps": max(1, threads // width)})
    assert found.metadata.shared <= SHARED_BYTES[kind], "memory that a program's threads share"
    return binary in found.asm


needs_a_compiler = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_all_candidates_of_gating_are_built(target: str, activation: str) -> None:
    from diagnose.kernels.gpu import gated_unit

    strides = ("gate_stride", "up_stride", "out_stride", "columns")
    types = dict.fromkeys(("gate", "up", "out"), "*bf16") | dict.fromkeys(strides, "i64") | {"blocks": "i32"}
    back = dict.fromkeys(("by_out", "gate", "up", "by_gate", "by_up"), "*bf16") | {"blocks": "i32"}
    back |= dict.fromkeys(("by_out_stride", "gate_stride", "up_stride", "gradient_stride", "columns"), "i64")
    for config in gated_unit.CANDIDATES:
        constants = {"ACTIVATION": activation, "DTYPE": triton.language.float32, "BLOCK": config.block}
        assert built(gated_unit.forward_kernel, target, types, constants, config.threads)
        assert built(gated_unit.backward_kernel, target, back, constants, config.threads)


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [256, 16384])
def test_all_candidates_of_norms_are_built(target: str, block: int) -> None:
    from diagnose.kernels.gpu import parts, residual_norm

    types = dict.fromkeys(("x", "residual", "weight", "normed", "summed"), "*bf16") | {"scales": "*fp32"}
    types |= {"x_stride": "i64", "residual_stride": "i32", "columns": "i32"}
    back = dict.fromkeys(("by_normed", "by_summed", "summed", "weight", "by_inputs"), "*bf16")
    back |= {"scales": "*fp32", "by_weight_parts": "*fp32", "rows": "i32", "columns": "i32"}
    shared = {"WEIGHTED": True, "ROUND_FIRST": False, "DTYPE": triton.language.float32, "BLOCK": block}
    for threads in parts.threads_for_row(block):
        assert built(residual_norm.forward_kernel, target, types, shared | {"EPS": 1e-6}, threads)
        constants = shared | {"SUM_USED": True, "ROWS_OF_PART": 16}
        assert built(residual_norm.backward_kernel, target, back, constants, threads)


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("half", [32, 128])
def test_all_candidates_of_turning_are_built(target: str, half: int) -> None:
    from diagnose.kernels.gpu import rotary

    types = dict.fromkeys(("q", "k", "new_q", "new_k", "cos", "sin"), "*bf16")
    constants = {"INTERLEAVED": True, "WIDE": False, "BACK": True, "DTYPE": triton.language.float32, "HALF": half}
    for config in rotary.candidates_of_heads(64, half):
        these = constants | {"HEADS": config.block // (2 * half)}
        others = {name: "i32" for name in rotary.rotary_kernel.arg_names if name not in types | these}
        assert built(rotary.rotary_kernel, target, types | others, these, config.threads)


@pytest.mark.parametrize(
    ("heads", "half", "held"),
    [
        (24, 64, {32: 2, 16: 1, 8: 2}),
        (12, 32, {16: 3}),
        (32, 64, {32: 2, 16: 1, 8: 2}),
        (64, 64, {64: 1}),
        (1, 4096, {1: 3}),
    ],
)
def test_no_way_of_turning_is_tried_twice(heads: int, half: int, held: dict[int, int]) -> None:
    """How many ways there are for numbers of heads that a program holds: no more than there are, and one at least."""
    from diagnose.kernels.gpu import rotary

    found = rotary.candidates_of_heads(heads, half)
    assert len(set(found)) == len(found) <= MOST
    counts = Counter(config.block // (2 * half) for config in found)
    assert all(config.block % (2 * half) == 0 for config in found) and held.items() <= counts.items()


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [128, 16384])
def test_all_candidates_of_sharing_are_built(target: str, block: int) -> None:
    from diagnose.kernels.gpu import masked_softmax

    types = {"scores": "*bf16", "mask": "*u8", "shares": "*bf16", "scale": "fp64"}
    back = dict.fromkeys(("by_shares", "shares", "by_scores"), "*bf16") | {"scale": "fp64"}
    back |= dict.fromkeys(("rows", "tokens", "columns"), "i32")
    shared = {"CAUSAL": True, "TURNS": 1, "DTYPE": triton.language.float32, "BLOCK": block}
    for config in masked_softmax.candidates_of_rows(block):
        constants = shared | {"ROWS": config.rows}
        masked = constants | {"MASKED": True, "ADDED": False}
        others = {name: "i32" for name in masked_softmax.forward_kernel.arg_names if name not in types | masked}
        assert built(masked_softmax.forward_kernel, target, types | others, masked, config.threads)
        assert built(masked_softmax.backward_kernel, target, back, constants, config.threads)


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_adding_and_normalising_by_mean_and_deviation_is_built(target: str, dtype: str) -> None:
    from diagnose.kernels.gpu import residual_layer_norm

    kernel = residual_layer_norm.forward_kernel
    types = dict.fromkeys(("x", "residual", "weight", "bias", "normed", "summed"), "*bf16")
    types |= dict.fromkeys(("means", "scales"), f"*{dtype}") | {"eps": "fp64"}
    wide = triton.language.float32 if dtype == "fp32" else triton.language.float64
    constants = {"WEIGHTED": True, "BIASED": True, "DTYPE": wide, "BLOCK": 1024}
    others = {name: "i32" for name in kernel.arg_names if name not in types | constants}
    assert built(kernel, target, types | others, constants, 128)


@needs_a_compiler
def test_numbers_are_handed_on_as_they_are() -> None:
    """Triton takes a float of Python for float32 where nothing else is said: float64 would be off by 3e-8 of it."""
    from diagnose.kernels.gpu import masked_softmax, residual_layer_norm

    wide = [
        (masked_softmax.forward_kernel, "scale"),
        (masked_softmax.backward_kernel, "scale"),
        (residual_layer_norm.forward_kernel, "eps"),
    ]
    for kernel, name in wide:
        assert kernel.params[kernel.arg_names.index(name)].annotation_type == "fp64"


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_all_candidates_of_losses_are_built(target: str) -> None:
    from diagnose.kernels.gpu import row_loss

    rows = {"logits": "*bf16", "target": "*i64", "logsumexps": "*fp32", "row_stride": "i64", "ignore_index": "i32"}
    back = rows | {"scales": "*fp32", "gradients": "*bf16", "gradient_stride": "i64"}
    back |= dict.fromkeys(("columns", "first_column", "vocabulary"), "i32")
    shared = {"SMOOTHING": 0.0, "Z_LOSS": 0.0, "DTYPE": triton.language.float32, "ALIGNED": 8}
    for config in row_loss.LOSS_CANDIDATES:
        whole = 128256 // config.block * config.block
        constants = shared | {"BLOCK": config.block, "WHOLE": whole, "END": whole + config.block}
        types = rows | {"losses": "*fp32", "columns": "i32"}
        assert built(row_loss.loss_kernel, target, types, constants, config.threads)
    for config in row_loss.GRADIENT_CANDIDATES:
        constants = shared | {"BLOCK": config.block, "ALIKE": True}
        assert built(row_loss.gradient_kernel, target, back, constants, config.threads)


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_scaling_and_summing_are_built(target: str) -> None:
    from diagnose.kernels.gpu import parts, scaling

    types = {"values": "*bf16", "out": "*bf16", "factor": "*fp32", "count": "i64"}
    constants = {"IN_PLACE": True, "DTYPE": triton.language.float32, "BLOCK": scaling.BLOCK}
    assert built(scaling.scale_kernel, target, types, constants, scaling.THREADS)
    types = {"parts": "*fp32", "out": "*bf16", "second_out": "*fp32", "count": "i32", "columns": "i32"}
    constants = {"DTYPE": triton.language.float32, "TURNS": 4, "AT_ONCE": parts.PARTS_AT_ONCE, "BLOCK": parts.BLOCK}
    assert built(parts.sum_kernel, target, types, constants, parts.THREADS)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 70), (130, 45), (64, 32), (0, 5), (3, 0)])
def test_sums_of_parts(shape: tuple[int, int], wanted: tuple[bool, bool]) -> None:
    if kernels.backend(DEVICE) != "triton":
        pytest.skip("needs a device, or TRITON_INTERPRET=1")
    from diagnose.kernels.gpu import parts

    given = drawn(2, *shape, seed=9).detach()
    dtypes = [dtype if want else None for dtype, want in zip((torch.float64, torch.float32), wanted, strict=True)]
    found = parts.sums_of_parts(given, dtypes)
    for one, dtype, exact in zip(found, dtypes, given.sum(1), strict=True):
        assert (None if one is None else one.dtype) is dtype
        assert one is None or torch.allclose(one.double(), exact, rtol=1e-5, atol=1e-5)
