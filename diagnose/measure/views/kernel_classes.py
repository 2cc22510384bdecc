"""The class of a piece of device work, and for matmuls the number format and the unit that ran them.

    classes_of(trace)                     # from kernel names alone
    classes_of(trace, op_of_work)         # from names and from the operators that launched the kernels

Names of vendors' libraries change with every generation, so a name that says nothing stays unknown (None): it is never
taken for "no tensor cores". Operators of the framework keep their names, and say what an unknown kernel is for.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64, WorkKind


class KernelClass(enum.IntEnum):
    """The class of a piece of device work."""

    OTHER = 0
    MATMUL = 1
    CONVOLUTION = 2
    ATTENTION = 3
    NORM = 4
    POINTWISE = 5
    """Every element by itself: arithmetic, conversions, copies and transposes by kernels, gathers, random numbers."""
    REDUCTION = 6
    """Sums, softmax, losses, pooling, scans, sorting."""
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
    r"|symm_mem|all_?reduce_kernel|reduce_scatter_kernel|all_?gather_kernel|allreduce_fusion|quick_?reduce",
    re.IGNORECASE,
)
# Inductor writes the kind of its kernel first and then all operators that it fused, which say little: `triton_poi_fused
# __scaled_mm_div_0` prepares a product.
_TRITON = re.compile(
    r"^triton_(poi|per|red|for|tem|mm|bmm|addmm|baddbmm|flex_attention|flex_decoding|convolution)", re.I
)
_NORMALISES = r"layer_?norm|batch_?norm|group_?norm|rms_?norm|instance_?norm"
# First match wins; the order puts what is more specific first.
_CLASSES: tuple[tuple[KernelClass, re.Pattern[str]], ...] = (
    (KernelClass.OPTIMIZER, re.compile(r"fused_?(adam|sgd|lamb|adagrad|lion)|multi_tensor_apply|adam_kernel", re.I)),
    (
        KernelClass.POINTWISE,
        re.compile(r"\b_?(dynamic_)?(scaled_fp8_)?quant(ize)?_|reshape_and_cache|::quantize", re.I),
    ),
    (
        KernelClass.ATTENTION,
        re.compile(r"flash|fmha|attn|attention|sdpa|_mha_|scaled_dot|aiter::.*mha|\bsage_[fb]wd", re.I),
    ),
    (
        KernelClass.NORM,
        re.compile(rf"{_NORMALISES}|\bbn_(fw|bw)|GammaBeta|rowwisemoments|cuCompute(Part)?Grad|\bl2_norm", re.I),
    ),
    (
        KernelClass.POINTWISE,
        re.compile(
            r"nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose|transpose_(NCHW|CNHW|readWrite)|SubTensorOp", re.I
        ),
    ),
    (
        KernelClass.CONVOLUTION,
        re.compile(
            r"conv(?!ert|ersion)|winograd|wgrad|dgrad|fprop|scudnn|hcudnn|cudnn_.*(relu|small|medium|large)"
            r"|igemm_(fwd|bwd|wrw)|miopen",
            re.I,
        ),
    ),
    (
        KernelClass.MATMUL,
        re.compile(
            r"gemm|gemv|cijk_|mat_?mul|\blinear_\w*kernel|XXT_kernel|ba_plus_cAA|nvjet|splitk|_mm_|\bmm_|\bbmm_|mul_mat"
            r"|dot_kernel|cublas(?!Transpose)|xmma|wgmma",
            re.I,
        ),
    ),
    (
        KernelClass.REDUCTION,
        re.compile(
            r"soft_?max|reduc|\bsum_|norm_kernel|norm_forward|argmax|argmin|cub::|nll_loss|entropy"
            r"|nvfuser_.*(persistent|reduction)|(max|avg|average)_?pool|pooling|_scan_|::scan|sort|top_?k|cumsum",
            re.I,
        ),
    ),
    (
        KernelClass.POINTWISE,
        re.compile(
            r"element_?wise|nvfuser_pointwise|CatArray|copy_?(kernel|buffer)|fill|dropout|gelu|relu|silu|index|gather"
            r"|scatter|embedding|permute|transpose|rotary|rope_|upsample|scalePackedTensor",
            re.I,
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
_SMALL = (KernelClass.POINTWISE, KernelClass.REDUCTION)


@lru_cache(maxsize=65536)
def class_of(name: str) -> KernelClass:
    """The class of a kernel by its name."""
    if _COLLECTIVE.search(name):
        return KernelClass.COLLECTIVE
    if (triton := _TRITON.match(name)) is not None:
        return _class_of_triton(triton[1], name)
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), KernelClass.OTHER)


def _class_of_triton(kind: str, name: str) -> KernelClass:
    if kind in ("poi", "for"):
        return KernelClass.POINTWISE
    if kind in ("per", "red"):
        return KernelClass.NORM if re.search(_NORMALISES, name) else KernelClass.REDUCTION
    if re.search(r"flex_|attention", name):
        return KernelClass.ATTENTION
    return KernelClass.CONVOLUTION if "conv" in name else KernelClass.MATMUL


@lru_cache(maxsize=65536)
def matmul_format(name: str) -> MatmulFormat:
    """Number format and unit of a matrix product or convolution, as far as its name tells."""
    dtype = next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), None)
    if _SIMT.search(name) and not re.search(r"tensorop|tf32f32", name):
        return MatmulFormat(dtype, False)
    if _TENSOR_CORES.search(name):
        return MatmulFormat(dtype, True)
    return MatmulFormat(dtype, None)


_AN_OPERATOR_OF = "^(?:aten|_C|_custom_C)::"
_CLASSES_OF_OPS: tuple[tuple[KernelClass, re.Pattern[str]], ...] = (
    (
        KernelClass.ATTENTION,
        re.compile(
            r"^aten::_?(scaled_dot_product_|flash_attention_|efficient_attention_|cudnn_attention_)|^flash_attn|FlashAttn"
            r"|^xformers.*::efficient_attention|unified_attention|::mha_"
        ),
    ),
    (
        KernelClass.CONVOLUTION,
        re.compile(
            r"^aten::(_?convolution|conv(_tbc|_transpose)?\dd?|(cudnn|miopen|mkldnn|thnn|_?slow|_?depthwise)_(\w*_)?conv)"
        ),
    ),
    (KernelClass.NORM, re.compile(rf"{_AN_OPERATOR_OF}\w*(layer|batch|group|rms|instance)_norm")),
    (KernelClass.OPTIMIZER, re.compile(r"^aten::_fused_(adam|sgd|adagrad)")),
    (
        KernelClass.MATMUL,
        re.compile(
            r"^aten::(_?(scaled_|grouped_|scaled_grouped_|int_)?mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot|matmul|linear"
            r"|_addmm_activation|_(cudnn|thnn_fused|miopen)_(rnn|lstm|gru)\w*|miopen_rnn\w*)(_backward)?_?$|::wvSplitK"
        ),
    ),
    (
        KernelClass.REDUCTION,
        re.compile(
            r"^aten::(sum|mean|prod|max|min|amax|amin|argmax|argmin|std|var|var_mean|norm|linalg_vector_norm|all|any"
            r"|_?(log_)?softmax(_backward_data)?|nll_loss\w*|cumsum|cumprod|topk|sort|nonzero|_unique2?|bincount|histc"
            r"|_?foreach_norm|_foreach_max|\w*(max|avg|adaptive)_pool\w*|_?embedding_bag|logsumexp|linalg_\w*norm)$"
        ),
    ),
    (
        KernelClass.POINTWISE,
        re.compile(
            r"^aten::(_foreach_\w+|_amp_\w+|copy_|_to_copy|fill_|zero_|cat|stack|index\w*|gather|scatter\w*|embedding\w*"
            r"|(add|sub|rsub|mul|div|addcmul|addcdiv|lerp|neg|exp|log|sqrt|rsqrt|pow|tanh|sigmoid|silu|gelu|relu|abs|eq"
            r"|ne|lt|le|gt|ge|where|clamp\w*|threshold|native_dropout|masked_fill|normal|uniform|bernoulli|random|cos|sin"
            r"|triu|tril|mse_loss|upsample\w*|arange|\w+_backward)_?)$"
        ),
    ),
)


@lru_cache(maxsize=65536)
def class_of_op(name: str) -> KernelClass:
    """Return the class of an operator's kernels, by the operator's name; OTHER where it does not tell."""
    return next((kind for kind, pattern in _CLASSES_OF_OPS if pattern.search(name)), KernelClass.OTHER)


def classes_of(
    trace: Trace, op_of_work: Int64 | None = None, in_optimizer: Bool | None = None
) -> npt.NDArray[np.uint8]:
    """The `KernelClass` of every row of device work, by its name, by the operator that launched it, and by where.

    `op_of_work` is per row the operator's row in `trace.ops`, -1 for none; `in_optimizer` whether `optimizer.step`
    launched it: what is small there is the optimizer's. Collectives, copies and sets do not depend on either.
    """
    by_name = np.array([*(class_of(name) for name in trace.names), KernelClass.OTHER], np.uint8)
    result = by_name[trace.device.name]
    if op_of_work is not None and len(trace.ops):
        ops, place = np.unique(trace.ops.name, return_inverse=True)
        by_op = np.array([class_of_op(trace.names[name]) if name >= 0 else 0 for name in ops.tolist()], np.uint8)
        of_op = np.where(op_of_work == MISSING, np.uint8(KernelClass.OTHER), by_op[place[op_of_work]])
        result = _BY_BOTH[result, of_op]
    if in_optimizer is not None:
        result[in_optimizer & np.isin(result, _SMALL)] = KernelClass.OPTIMIZER
    result[trace.device.collective != MISSING] = KernelClass.COLLECTIVE
    result[trace.device.kind == WorkKind.COPY] = KernelClass.COPY
    result[trace.device.kind == WorkKind.SET] = KernelClass.SET
    return result


def _by_both() -> npt.NDArray[np.uint8]:
    """By class of the name and class of the operator, the class of the work."""
    kinds = np.arange(len(KernelClass), dtype=np.uint8)
    table = np.repeat(kinds[:, None], len(kinds), axis=1)
    table[KernelClass.OTHER] = kinds
    for inside, op in (
        ((*_SMALL, *_MATRIX_WORK), KernelClass.ATTENTION),  # what prepares, corrects and casts within one operator
        ((KernelClass.MATMUL,), KernelClass.CONVOLUTION),  # a convolution computed as a product
        ((*_SMALL, KernelClass.CONVOLUTION), KernelClass.NORM),
        (_SMALL, KernelClass.OPTIMIZER),
        ((KernelClass.OPTIMIZER,), KernelClass.REDUCTION),  # `_foreach_norm`: the norm of gradients, not a step
    ):
        table[inside, op] = op
    return table


_BY_BOTH = _by_both()
