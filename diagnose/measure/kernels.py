"""What a piece of device work is: its class, and for matrix products the number format and the unit that ran it.

Read from kernel names. Names of vendors' libraries change with every generation, so a name that says nothing stays
unknown (None): it is never taken for "no tensor cores".
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, WorkKind


class KernelClass(enum.IntEnum):
    """What a piece of device work does."""

    OTHER = 0
    MATMUL = 1
    CONVOLUTION = 2
    ATTENTION = 3
    NORM = 4
    POINTWISE = 5
    REDUCTION = 6
    OPTIMIZER = 7
    COLLECTIVE = 8
    COPY = 9
    SET = 10


@dataclass(frozen=True, slots=True)
class MatmulFormat:
    """How a matrix product or convolution was computed; None is unknown."""

    dtype: str | None
    """`fp32`, `tf32`, `fp16`, `bf16`, `fp8`, `int8`, `fp64`: the format of the operands as multiplied."""
    tensor_cores: bool | None


# Collectives of NCCL and RCCL, of torch's symmetric memory, of vLLM's custom all-reduce, of NVSHMEM and DeepEP.
_COLLECTIVE = re.compile(
    r"nccl|rccl|oneccl|cross_device_reduce|multimem_|one_shot_all_?reduce|two_shot_all_?reduce|nvshmem|deep_ep|mscclpp"
    r"|symm_mem|all_?reduce_kernel|reduce_scatter_kernel|all_?gather_kernel",
    re.IGNORECASE,
)
# First match wins; the order puts what is more specific first.
_CLASSES: tuple[tuple[KernelClass, re.Pattern[str]], ...] = (
    (KernelClass.OPTIMIZER, re.compile(r"fused_?(adam|sgd|lamb|adagrad|lion)|multi_tensor_apply|adam_kernel", re.I)),
    (
        KernelClass.ATTENTION,
        re.compile(r"flash|fmha|attn|attention|sdpa|_mha_|scaled_dot|aiter::.*mha|ck_tile.*fmha", re.I),
    ),
    (
        KernelClass.CONVOLUTION,
        re.compile(
            r"conv|winograd|wgrad|dgrad|fprop|scudnn|hcudnn|cudnn_.*(relu|small|medium|large)|igemm_(fwd|bwd|wrw)|miopen",
            re.I,
        ),
    ),
    (
        KernelClass.MATMUL,
        re.compile(
            r"gemm|gemv|cijk_|matmul|nvjet|splitk|_mm_|\bmm_|triton_tem_fused_.*mm|dot_kernel|gemmk1|cublas|xmma|wgmma",
            re.I,
        ),
    ),
    (
        KernelClass.NORM,
        re.compile(
            r"layer_?norm|batch_?norm|group_?norm|rms_?norm|instance_?norm|\bbn_(fw|bw)|GammaBeta|rowwisemoments", re.I
        ),
    ),
    (
        KernelClass.REDUCTION,
        re.compile(r"softmax|reduce|triton_(red|per)_|\bsum_|norm_kernel|argmax|cub::|nll_loss", re.I),
    ),
    (
        KernelClass.POINTWISE,
        re.compile(
            r"elementwise|triton_poi_|CatArray|copy_kernel|fill|dropout|gelu|relu|silu|index|gather|embedding", re.I
        ),
    ),
)

_TENSOR_CORES = re.compile(
    r"tensorop|wgmma|gmma|nvjet|[hs]884|[his]1688|[his]8816|s16816|h16816|i16832|s16832|hmma|imma|mfma|_MI\d+x\d+|wmma"
    r"|tf32f32|tf32tf32|bf16bf16|f16f16|e4m3|flash|sm(90|100|103|120)_xmma_gemm_(bf16|f16|f32f32_tf32)|cutlass3x_sm(90|100)",
    re.I,
)
_SIMT = re.compile(
    r"simt|(?<![a-z0-9])(ampere|volta|turing|maxwell|pascal|hopper)_(s|d)gemm|_sgemm_|sgemm_largek|scudnn|_f32f32_f32f32_",
    re.I,
)
_DTYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|_F8", re.I)),
    ("int8", re.compile(r"int8|i8816|i16832|imma|s8s8|igemm_int8", re.I)),
    ("tf32", re.compile(r"tf32|(tensorop|ampere|turing)_s1688(gemm|fprop|dgrad|wgrad|cudnn)", re.I)),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_t|_BBS_|_BB_|_BSS_", re.I)),
    (
        "fp16",
        re.compile(r"f16|fp16|half|hgemm|h884|h1688|h16816|s884|nvjet_h|_HHS_|_HB_|_HH_|_HSS_|s16816gemm|hcudnn", re.I),
    ),
    ("fp64", re.compile(r"dgemm|double|f64|d884|_DB_", re.I)),
    ("fp32", re.compile(r"sgemm|scudnn|f32f32_f32f32|_SB_|<float|, float|simt_s|ffma|s_gemm", re.I)),
)
_MATRIX_WORK = (KernelClass.MATMUL, KernelClass.CONVOLUTION)


@lru_cache(maxsize=65536)
def class_of(name: str) -> KernelClass:
    """The class of a kernel by its name."""
    if _COLLECTIVE.search(name):
        return KernelClass.COLLECTIVE
    for kind, pattern in _CLASSES:
        if pattern.search(name):
            return kind
    return KernelClass.OTHER


@lru_cache(maxsize=65536)
def matmul_format(name: str) -> MatmulFormat:
    """Number format and unit of a matrix product or convolution, as far as its name tells."""
    dtype = next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), None)
    if _SIMT.search(name) and not re.search(r"tensorop|tf32f32", name):
        return MatmulFormat(dtype, False)
    if _TENSOR_CORES.search(name):
        return MatmulFormat(dtype, True)
    return MatmulFormat(dtype, None)


def classes_of(trace: Trace) -> npt.NDArray[np.uint8]:
    """The `KernelClass` of every row of device work."""
    by_name = np.array([*(class_of(name) for name in trace.names), KernelClass.OTHER], np.uint8)
    result = by_name[trace.device.name]
    result[trace.device.collective != MISSING] = KernelClass.COLLECTIVE
    result[trace.device.kind == WorkKind.COPY] = KernelClass.COPY
    result[trace.device.kind == WorkKind.SET] = KernelClass.SET
    return result


def is_matrix_work(kind: int) -> bool:
    """Whether a class is one that tensor cores can run."""
    return kind in _MATRIX_WORK
