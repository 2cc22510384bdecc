"""Which device work only changes a memory format: by kernel names, by operators, by what stands beside it."""

from __future__ import annotations

import pytest

from diagnose.measure import Measures
from diagnose.measure.kernels.layout_conversions import CONVERSIONS
from diagnose.trace import Thread, Trace
from diagnose.trace.schema import DeviceWork, HostCalls, Ops

COPY = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIteratorBase&)>"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
NAMES = ("aten::conv2d", "aten::cudnn_convolution", "aten::contiguous", "aten::copy_", "aten::relu", COPY, CONVOLUTION)
IMAGE, MATRIX = "[[8, 64, 32, 32], []]", "[[8, 64, 32], []]"

Op = tuple[str, int, int, str]
Work = tuple[str, int]


def recorded(ops: list[Op], work: list[Work]) -> Trace:
    """Operators (name, begin, end, shapes) and kernels (name, the moment of their launch) of one thread."""
    texts = (IMAGE, MATRIX)
    launched = [at for _, at in work]
    return Trace(
        source="test",
        names=(*NAMES, "cudaLaunchKernel"),
        texts=texts,
        threads=(Thread(1, 1),),
        ops=Ops.build(
            {
                "start_ns": [begin for _, begin, _, _ in ops],
                "end_ns": [end for _, _, end, _ in ops],
                "name": [NAMES.index(name) for name, _, _, _ in ops],
                "thread": [0] * len(ops),
                "shapes": [texts.index(shapes) for _, _, _, shapes in ops],
            }
        ).sorted_by_start(),
        calls=HostCalls.build(
            {
                "start_ns": launched,
                "end_ns": [at + 1 for at in launched],
                "name": [len(NAMES)] * len(work),
                "thread": [0] * len(work),
                "correlation": range(1, len(work) + 1),
            }
        ),
        device=DeviceWork.build(
            {
                "start_ns": [1000 + 10 * place for place in range(len(work))],
                "end_ns": [1010 + 10 * place for place in range(len(work))],
                "name": [NAMES.index(name) for name, _ in work],
                "device": [0] * len(work),
                "stream": [7] * len(work),
                "correlation": range(1, len(work) + 1),
            }
        ),
    )


def conversions(trace: Trace) -> list[bool]:
    found: list[bool] = Measures(trace).layout_conversions.tolist()
    return found


@pytest.mark.parametrize(
    "name",
    [
        "void nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>",
        "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)2>",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>",
        "void tensorTransformGeneric<float, float, float, false, false, false, (cudnnKernelDataType_t)0>",
        "batched_transpose_16x32_half.kd",
    ],
)
def test_conversions_of_the_libraries_are_known_by_name(name: str) -> None:
    assert CONVERSIONS.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "void cudnn::ops::nhwcAddPaddingKernel<__half, __half, float, true>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>",
        "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
        "void conv2d_c1_k1_nhwc_kernel<float, float, float, float, float, 3, 1, 8, 3, 1, false, true>",
        "SubTensorOpWithCastTensor1d.kd",
        COPY,
    ],
)
def test_kernels_that_stay_in_either_format_are_none(name: str) -> None:
    assert not CONVERSIONS.search(name)


def test_a_copy_inside_a_convolution_is_one() -> None:
    ops = [
        ("aten::conv2d", 0, 100, IMAGE),
        ("aten::cudnn_convolution", 10, 90, IMAGE),
        ("aten::contiguous", 20, 40, IMAGE),
        ("aten::copy_", 25, 35, IMAGE),
    ]
    assert conversions(recorded(ops, [(COPY, 30), (CONVOLUTION, 60)])) == [True, False]


def test_a_copy_of_an_image_beside_a_convolution_is_one() -> None:
    ops = [
        ("aten::contiguous", 0, 20, IMAGE),
        ("aten::copy_", 5, 15, IMAGE),
        ("aten::conv2d", 30, 60, IMAGE),
        ("aten::relu", 70, 80, IMAGE),
        ("aten::contiguous", 90, 110, IMAGE),
        ("aten::copy_", 95, 105, IMAGE),
    ]
    work = [(COPY, 10), (CONVOLUTION, 40), (COPY, 75), (COPY, 100)]
    assert conversions(recorded(ops, work)) == [True, False, False, False]


def test_a_copy_of_a_sequence_beside_a_convolution_is_none() -> None:
    ops = [("aten::contiguous", 0, 20, MATRIX), ("aten::conv2d", 30, 60, IMAGE)]
    assert conversions(recorded(ops, [(COPY, 10), (CONVOLUTION, 40)])) == [False, False]


def test_a_cast_inside_a_convolution_is_none() -> None:
    ops = [("aten::conv2d", 0, 100, IMAGE), ("aten::copy_", 20, 40, IMAGE)]
    assert conversions(recorded(ops, [(COPY, 30), (CONVOLUTION, 60)])) == [False, False]
