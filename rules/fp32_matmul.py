"""Matrix products in plain fp32 on a device whose tensor cores would take them.

What it finds
    Matrix products and convolutions that ran on the ordinary fp32 units (`sgemm`, `simt`, `scudnn` kernels), on a
    device with tensor cores for TF32 or bf16.

Why it costs
    Tensor cores multiply TF32 several times as fast as the ordinary units multiply fp32, and bf16 twice that again.
    PyTorch keeps fp32 products in full fp32 unless it is told otherwise (`highest`).

What proves it
    The time of kernels whose names say fp32 without tensor cores. A name that says nothing is not counted, and products
    of a matrix and a vector are left out: they wait for memory, not for arithmetic. The recoverable time is an upper
    bound: that time × (1 − fp32 rate / tensor-core rate) by the vendor's figures; small products gain less.

What fixes it
    `torch.set_float32_matmul_precision("high")` (`allow-tf32`); autocast to bf16 (`autocast-bf16`).

Thresholds
    RATES: dense tensor-core rate over fp32 rate, from the vendors' data sheets (H100 SXM: TF32 495 and fp32 67 TFLOP/s;
    A100: 156 and 19.5; MI300X: 654 and 163). GeForce and RTX cards of the Ampere and Ada generations multiply TF32 no
    faster than fp32, but bf16 twice as fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    KernelClass,
    Measures,
    Rule,
    drawn,
    format_ns,
    format_share,
    gained_ns,
    matmul_format,
    sped_up,
)


@dataclass(frozen=True)
class Rate:
    """How much faster than fp32 a device multiplies; 1.0: not at all."""

    tf32: float
    bf16: float


# First match wins. Devices before Ampere have no TF32; those without tensor cores are absent and stay unknown.
RATES: tuple[tuple[re.Pattern[str], Rate], ...] = (
    (re.compile(r"\bG?B[23]00\b"), Rate(14.0, 28.0)),
    (re.compile(r"\b(G?H100|H200|H800|GH200|H20)\b"), Rate(7.4, 14.8)),
    (re.compile(r"\bA(100|800|30)\b"), Rate(8.0, 16.0)),
    (re.compile(r"\bRTX (PRO )?[3456]0\d0|\bRTX A\d{4}|\bRTX \d{4} Ada|\b(L40|A40|A10G?|A16|A2)\b"), Rate(1.0, 2.0)),
    (re.compile(r"\bL40S\b|\bL4\b"), Rate(2.0, 4.0)),
    (re.compile(r"\b(V100|T4|TITAN V|TITAN RTX|RTX 20\d0|Quadro RTX)\b"), Rate(1.0, 1.0)),
    (re.compile(r"MI3\d\d", re.I), Rate(4.0, 8.0)),
    (re.compile(r"MI2\d\d", re.I), Rate(1.0, 4.0)),
    (re.compile(r"MI100", re.I), Rate(1.0, 4.0)),
)  # fmt: skip
_BY_CAPABILITY = {(8, 0): Rate(8.0, 16.0), (9, 0): Rate(7.4, 14.8), (10, 0): Rate(14.0, 28.0)}
_MEMORY_BOUND = re.compile(r"gemv|gemmk1|dot_kernel|splitK?_?reduce|reduce_1Block", re.I)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of fp32 products that tensor cores would take."""
    if not measures.has_device:
        yield CannotTell("fp32-matmul", "a recording of the device's work")
        return
    rows = measures.rows_within_steps(_plain_fp32(measures))
    if len(rows) == 0:
        return
    rate = _rate(measures)
    if rate is None:
        yield CannotTell("fp32-matmul", "which device this is: its tensor cores are unknown")
        return
    facts = measures.trace.facts
    allowed = facts.matmul_precision in ("high", "medium")
    gain = max(rate.bf16 if allowed or rate.tf32 <= 1 else rate.tf32, 1.0)
    if gain <= 1:
        return
    time = measures.time_of(rows)
    cut = sped_up(measures, rows, 1 / gain)
    gained = gained_ns(measures, cut, int(time.total_ns * (1 - 1 / gain)))
    if gained == 0:
        return
    products = measures.rows_within_steps(np.isin(measures.classes, (KernelClass.MATMUL, KernelClass.CONVOLUTION)))
    fixers = ("autocast-bf16",) if allowed or rate.tf32 <= 1 else ("allow-tf32", "autocast-bf16")
    state = f"; TF32 is allowed ({facts.matmul_precision}), these kernels do not use it" if allowed else ""
    yield Claim(
        summary=f"{format_ns(time.total_ns / measures.step_count)} per step ({format_share(measures.share(time))}) go "
        f"to matrix products in plain fp32 on {_device(measures)}, whose tensor cores are up to {gain:.3g} times as "
        f"fast{state}",
        recoverable_ns=gained,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("fp32 products", time.total_ns // measures.step_count, "ns", tuple(rows[:5].tolist())),
            Evidence("fp32 products per step", len(rows) / measures.step_count, "count"),
            Evidence("share of all products", time.total_ns / max(measures.time_of(products).total_ns, 1), "share"),
            Evidence("tensor cores over fp32, data sheet", gain, "×"),
        ],
        fixers=fixers,
        confirm="a trial: products of this program's sizes may gain less than the data sheet says",
    )


def _plain_fp32(measures: Measures) -> np.typing.NDArray[np.bool_]:
    """Rows of products known to have run in fp32 on the ordinary units."""

    def is_plain(name: str) -> bool:
        form = matmul_format(name)
        return form.dtype == "fp32" and form.tensor_cores is False and not _MEMORY_BOUND.search(name)

    by_name = np.array([*map(is_plain, measures.trace.names), False], np.bool_)
    product = np.isin(measures.classes, (KernelClass.MATMUL, KernelClass.CONVOLUTION))
    return np.asarray(by_name[measures.trace.device.name] & product, np.bool_)


def _device(measures: Measures) -> str:
    names = [measures.trace.facts.device_name, *measures.trace.device_names]
    return next((name for name in names if name), "this device")


def _rate(measures: Measures) -> Rate | None:
    name = _device(measures)
    found = next((rate for pattern, rate in RATES if pattern.search(name)), None)
    return found or _BY_CAPABILITY.get(measures.trace.facts.device_capability or (0, 0))


_SGEMM = {"k": "ampere_sgemm_128x64_tn"}
_STEP = """
    host: olssssssss
    gpu :   kkkkkkkk
    step:           |
"""

_FIRES = (
    drawn(_STEP, repeat=4, kernels=_SGEMM, facts=Facts(matmul_precision="highest")),
    drawn(_STEP, repeat=4, kernels={"k": "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(Params)"}),
    drawn(_STEP, repeat=4, kernels={"k": "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_cublas"}),
    drawn(
        _STEP,
        repeat=4,
        kernels={"k": "ampere_scudnn_128x64_relu_medium_nn_v1"},
        device_names=("NVIDIA A100-SXM4-80GB",),
    ),
    # The card multiplies TF32 no faster, but bf16 twice as fast.
    drawn(_STEP, repeat=4, kernels=_SGEMM, device_names=("NVIDIA GeForce RTX 4090",)),
)

_NOT_FP32 = (
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(Params)",
    "void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16>(Params)",
    "triton_tem_fused_mm_3",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>(Params)",
    "void flash::compute_attn_ws<Flash_fwd_kernel_traits<128, 128, 128, 12>>(FlashFwdParams)",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParams)",
)

_SILENT = (
    *(drawn(_STEP, repeat=4, kernels={"k": name}) for name in _NOT_FP32),
    # No tensor cores that would take fp32 products.
    drawn(_STEP, repeat=4, kernels=_SGEMM, device_names=("Tesla V100-SXM2-16GB",)),
)

RULE = Rule("fp32-matmul", check, fixers=("allow-tf32", "autocast-bf16"), fires=_FIRES, silent=_SILENT, nearness=30)
