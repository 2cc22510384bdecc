"""Matrix products in plain fp32, or in fp64, on a device whose tensor cores would take them in fewer bits.

What it finds
    Matrix products and convolutions that ran on the ordinary fp32 units (`sgemm`, `simt`, `scudnn` kernels), on a
    device with tensor cores for TF32 or bf16; and those in fp64, on whatever units: NumPy's arrays are in fp64, and a
    model or a loss that meets them is soon, too.

Why it costs
    Tensor cores multiply TF32 several times as fast as the ordinary units multiply fp32, and bf16 twice that again.
    PyTorch keeps fp32 products in full fp32 unless it is told otherwise (`highest`). Double precision is at most as
    fast as fp32, on cards for graphics 32 or 64 times slower, and moves twice the bytes.

What proves it
    The time of kernels whose names say fp32 without tensor cores, or fp64. A name that says nothing is not counted, and
    products of a matrix and a vector are left out: they wait for memory, not for arithmetic. The recoverable time is an
    upper bound: that time × (1 − its rate / tensor-core rate) by the vendor's figures; small products gain less.

What fixes it
    `torch.set_float32_matmul_precision("high")` (`allow-tf32`); autocast to bf16 (`autocast-bf16`). Neither touches
    fp64: convert where the numbers come from (`torch.from_numpy(a).float()`).

Thresholds
    RATES: dense tensor-core rate over fp32 rate, from the vendors' data sheets (H100 SXM: TF32 495 and fp32 67 TFLOP/s;
    A100: 156 and 19.5; MI300X: 654 and 163). GeForce and RTX cards of the Ampere and Ada generations multiply TF32 no
    faster than fp32, but bf16 twice as fast. Fp32 rate over fp64 rate from the same sheets, the faster fp64 units
    counted (H100 SXM: 67 and 67 TFLOP/s; V100: 15.7 and 7.8; T4: 1/32, GeForce since Ampere: 1/64 of fp32).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import KernelClass, matmul_format
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Facts, Measures, Rule, Symptom, drawn, format_count
from diagnose.trace.schema import Int64


@dataclass(frozen=True)
class Rate:
    """How much faster than fp32 a device multiplies; 1.0: not at all."""

    tf32: float
    bf16: float
    over_fp64: float = 1.0
    """How much faster than fp64 it multiplies fp32."""


# First match wins. Devices before Ampere have no TF32; those without tensor cores are absent and stay unknown.
RATES: tuple[tuple[re.Pattern[str], Rate], ...] = (
    (re.compile(r"\bG?B[23]00\b"), Rate(14.0, 28.0, 2.0)),
    (re.compile(r"\b(G?H100|H200|H800|GH200|H20)\b"), Rate(7.4, 14.8)),
    (re.compile(r"\bA(100|800|30)\b"), Rate(8.0, 16.0)),
    (re.compile(r"\bRTX (PRO )?[3456]0\d0|\bRTX A\d{4}|\bRTX \d{4} Ada"), Rate(1.0, 2.0, 64.0)),
    (re.compile(r"\b(L40|A40|A10G?|A16|A2)\b"), Rate(1.0, 2.0, 64.0)),
    (re.compile(r"\bL40S\b|\bL4\b"), Rate(2.0, 4.0, 64.0)),
    (re.compile(r"\b(V100|TITAN V)\b"), Rate(1.0, 1.0, 2.0)),
    (re.compile(r"\b(T4|TITAN RTX|RTX 20\d0|Quadro RTX)\b"), Rate(1.0, 1.0, 32.0)),
    (re.compile(r"MI3\d\d", re.I), Rate(4.0, 8.0)),
    (re.compile(r"MI2\d\d", re.I), Rate(1.0, 4.0)),
    (re.compile(r"MI100", re.I), Rate(1.0, 4.0)),
)  # fmt: skip
_BY_CAPABILITY = {(8, 0): Rate(8.0, 16.0), (9, 0): Rate(7.4, 14.8), (10, 0): Rate(14.0, 28.0, 2.0)}
_MEMORY_BOUND = re.compile(r"gemv|gemmk1|dot_kernel|splitK?_?reduce|reduce_1Block", re.I)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of fp32 and fp64 products that tensor cores would take."""
    if not measures.has_device:
        yield CannotTell("fp32-matmul", "a recording of the device's work")
        return
    rows = {dtype: measures.rows_within_steps(_products_in(measures, dtype)) for dtype in ("fp32", "fp64")}
    if not any(map(len, rows.values())):
        return
    name = _device(measures)
    found = next((rate for pattern, rate in RATES if pattern.search(name)), None)
    rate = found or _BY_CAPABILITY.get(measures.trace.facts.device_capability or (0, 0))
    if rate is None:
        yield CannotTell("fp32-matmul", "which device this is: its tensor cores are unknown")
        return
    if len(rows["fp32"]):
        yield from _in_fp32(measures, rows["fp32"], rate)
    if len(rows["fp64"]):
        yield from _in_fp64(measures, rows["fp64"], rate)


def _in_fp32(measures: Measures, rows: Int64, rate: Rate) -> Iterator[Claim]:
    """Yield what tensor cores would save of products on the ordinary fp32 units."""
    precision = measures.trace.facts.matmul_precision
    allowed = precision in ("high", "medium")
    only_bf16 = allowed or rate.tf32 <= 1
    faster = rate.bf16 if only_bf16 else rate.tf32
    state = f"; TF32 is allowed ({precision}), these kernels do not use it" if allowed else ""
    said = (
        f"plain fp32 on {_device(measures)}, whose tensor cores are up to {format_count(faster)} times as fast{state}"
    )
    for claim in _claimed(measures, rows, faster, "fp32", said):
        yield replace(
            claim,
            fixers=("autocast-bf16",) if only_bf16 else ("allow-tf32", "autocast-bf16"),
            confirm="a trial: products of this program's sizes may gain less than the data sheet says",
        )


def _in_fp64(measures: Measures, rows: Int64, rate: Rate) -> Iterator[Claim]:
    """Yield what fewer bits would save of products in fp64: neither autocast nor TF32 takes them."""
    tensor_cores = rate.tf32 if rate.tf32 > 1 else rate.bf16
    faster = rate.over_fp64 * tensor_cores
    quicker = "whose tensor cores are" if tensor_cores > 1 else "which multiplies fp32"
    said = f"double precision (fp64) on {_device(measures)}, {quicker} up to {format_count(faster)} times as fast"
    for claim in _claimed(measures, rows, faster, "fp64", said):
        yield replace(
            claim,
            where=places_of_ops(measures, measures.op_of_work[rows]),
            fixers=(),
            confirm="whether double precision is meant: arrays of NumPy bring it in unasked",
        )


def _claimed(measures: Measures, rows: Int64, faster: float, dtype: str, said: str) -> Iterator[Claim]:
    """Yield the claim of these products if they were so many times as fast; nothing where that saves nothing."""
    if faster <= 1:
        return
    time = measures.time_of(rows)
    cut = sped_up(measures, rows, 1 / faster)
    gained = gained_ns(measures, cut, int(time.total_ns * (1 - 1 / faster)))
    products = measures.rows_within_steps(np.isin(measures.classes, (KernelClass.MATMUL, KernelClass.CONVOLUTION)))
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go to matrix products in {said}",
        recoverable_ns=gained,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence(f"{dtype} products", time.total_ns // measures.step_count, "ns", tuple(rows.tolist())),
            Evidence(f"{dtype} products per step", len(rows) / measures.step_count, "count"),
            Evidence("share of all products", time.total_ns / max(measures.time_of(products).total_ns, 1), "share"),
            Evidence(f"fewer bits over {dtype}, data sheet", faster, "×"),
        ],
    )


def _products_in(measures: Measures, dtype: str) -> np.typing.NDArray[np.bool_]:
    """Rows of products known to have run in fp64, or in fp32 on the ordinary units."""

    def is_one(name: str) -> bool:
        form = matmul_format(name)
        plain = form.tensor_cores is False or dtype == "fp64"
        return form.dtype == dtype and plain and not _MEMORY_BOUND.search(name)

    by_name = np.array([*map(is_one, measures.trace.names), False], np.bool_)
    product = np.isin(measures.classes, (KernelClass.MATMUL, KernelClass.CONVOLUTION))
    return np.asarray(by_name[measures.trace.device.name] & product, np.bool_)


def _device(measures: Measures) -> str:
    names = [measures.trace.facts.device_name, *measures.trace.device_names]
    return next((name for name in names if name), "this device")


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
    # In fp64, on tensor cores that have it, and on a card that hardly has any.
    drawn(_STEP, repeat=4, kernels={"k": "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1>"}),
    drawn(_STEP, repeat=4, kernels={"k": "volta_dgemm_64x64_tn"}, device_names=("NVIDIA GeForce RTX 4090",)),
    drawn(_STEP, repeat=4, kernels={"k": "volta_dgemm_64x64_tn"}, device_names=("Tesla V100-SXM2-16GB",)),
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

RULE = Rule(
    "fp32-matmul",
    check,
    fixers=("allow-tf32", "autocast-bf16"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=30,
    symptom=Symptom.KERNELS,
)
