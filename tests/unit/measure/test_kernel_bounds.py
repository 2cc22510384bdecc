"""What bounds each kernel: its class, its operations and bytes, and what it would take at the ceiling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.roofline.kernel_bounds import Bound
from diagnose.measure.roofline.kernel_counters import counted_launches, kernel_key
from diagnose.measure.roofline.kernel_work import divided
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import KernelMetrics, WorkKind

H200_BYTES, H200_TF32, H200_BF16 = 4.8e12, 494.7e12, 989.4e12
BIG = ("[[4096,4096],[4096,4096]]", '["c10::BFloat16","c10::BFloat16"]')
THIN = ("[[4194304,16],[16,16]]", '["c10::BFloat16","c10::BFloat16"]')
SUM = ("[[64,1048576],[64,1048576],[]]", '["float","float","Scalar"]')
SMALL = ("[[64],[64],[]]", '["float","float","Scalar"]')
GEMM, ADD = (
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>",
)


def one(op: str, shapes: tuple[str, str], kernel: str) -> Measures:
    """Steps of 8 ms, each with one operator and its kernel of 4 ms."""
    picture = """
        host: ol
        gpu :   kkkk
        step:         |
    """
    return Measures(drawn(picture, repeat=2, kernels={"k": kernel}, ops={"o": op}, shapes={"o": shapes}))


def only(measures: Measures) -> int:
    """The row of the counted step's kernel."""
    (row,) = measures.rows_within_steps(measures.trace.device.kind == WorkKind.KERNEL).tolist()
    return int(row)


def test_a_large_product_is_bound_by_the_units_that_multiply_its_format() -> None:
    measures = one("aten::mm", BIG, GEMM)
    row, bounds = only(measures), measures.kernel_bounds
    assert bounds.kind[row] == Bound.MATMUL
    assert bounds.format_of(row) == "bf16"
    assert bounds.flops[row] == 2 * 4096**3
    assert bounds.least_ns[row] == pytest.approx(2 * 4096**3 / H200_BF16 * 1e9)


def test_a_product_with_few_operations_for_its_bytes_is_bound_by_memory() -> None:
    measures = one("aten::mm", THIN, GEMM)
    row, bounds = only(measures), measures.kernel_bounds
    assert bounds.kind[row] == Bound.MEMORY
    assert bounds.least_ns[row] == pytest.approx(2 * (2 * 4194304 * 16 + 256) / H200_BYTES * 1e9)


def test_an_elementwise_operator_is_bound_by_memory_unless_it_is_small() -> None:
    large, small = one("aten::add", SUM, ADD), one("aten::add", SMALL, ADD)
    assert large.kernel_bounds.kind[only(large)] == Bound.MEMORY
    assert large.kernel_bounds.bytes[only(large)] == 3 * 64 * 1048576 * 4
    assert small.kernel_bounds.kind[only(small)] == Bound.LATENCY


def test_what_nobody_knows_stays_unknown() -> None:
    measures = one("mine::step", ("[[8]]", '["float"]'), "my_own_kernel")
    row, bounds = only(measures), measures.kernel_bounds
    assert bounds.kind[row] == Bound.UNKNOWN
    assert (bounds.flops[row], bounds.bytes[row]) == (-1, -1)
    assert np.isnan(bounds.least_ns[row])


def test_a_class_needs_no_shapes_and_a_bound_does() -> None:
    measures = one("aten::add", ("", ""), ADD)
    row, bounds = only(measures), measures.kernel_bounds
    assert bounds.kind[row] == Bound.MEMORY
    assert np.isnan(bounds.least_ns[row])


def test_a_convolution_divides_its_work_among_products_and_conversions() -> None:
    shapes = json.dumps([[8, 64, 56, 56], [8, 32, 56, 56], [64, 32, 3, 3], [], [], [], [], [], [], [], []])
    formats = json.dumps(["float", "float", "float", *["Scalar"] * 8])
    values = json.dumps(
        ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    )
    gradient, image, weight = 4 * 8 * 64 * 56 * 56, 4 * 8 * 32 * 56 * 56, 4 * 64 * 32 * 9
    to, back = "void cudnn::ops::nchwToNhwcKernel<float>", "void cudnn::ops::nhwcToNchwKernel<float>"
    kernels = (
        (to, 0, 2 * weight),
        (to, 0, 2 * gradient),
        ("sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32", 2 * weight // 4 * 8 * 56 * 56, gradient + weight + image),
        (back, 0, 2 * image),
        (to, 0, 2 * image),
        (to, 0, 2 * gradient),
        ("sm90_xmma_wgrad_implicit_gemm_f32f32_tf32f32", 2 * weight // 4 * 8 * 56 * 56, gradient + weight + image),
        (back, 0, 2 * weight),
    )
    found = divided("aten::convolution_backward", (shapes, formats, values), tuple(name for name, _, _ in kernels))
    assert found == tuple((flops, moved) for _, flops, moved in kernels)


def test_of_a_normalisation_the_gradients_of_its_parameters_read_gradient_and_input_again() -> None:
    shapes, formats = "[[64,768],[64,768],[],[64,1],[64,1],[768],[768],[]]", json.dumps(["float"] * 7 + ["Scalar"])
    kernels = ("layer_norm_grad_input_kernel_vectorized<float>", "GammaBetaBackwardCUDAKernelTemplate<float>")
    ahead, parameters = divided("aten::native_layer_norm_backward", (shapes, formats, None), kernels)
    assert (ahead[1], parameters[1]) == (3 * 4 * 64 * 768, 2 * 4 * 64 * 768)


def test_counters_of_the_hardware_settle_class_and_bytes() -> None:
    trace = one("aten::mm", BIG, GEMM).trace
    metrics = {"dram__bytes.sum": 5e8, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 80.0}
    metrics["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"] = 30.0
    measures = Measures(counted(trace, metrics))
    row, bounds = only(measures), measures.kernel_bounds
    assert bounds.kind[row] == Bound.MEMORY
    assert bounds.bytes[row] == 500_000_000


def test_rocprof_counts_kilobytes() -> None:
    trace = counted(one("aten::mm", BIG, GEMM).trace, {"FETCH_SIZE": 1000.0, "WRITE_SIZE": 24.0})
    (launches,) = counted_launches(trace).values()
    assert launches[0].bytes == 1024 * 1024


def counted(trace: Trace, metrics: dict[str, float]) -> Trace:
    """The trace with counters of one launch of its kernel, as Nsight Compute names that."""
    names = (*trace.names, *metrics)
    kernel = trace.names.index(GEMM)
    columns = {
        "launch": [0] * len(metrics),
        "kernel": [kernel] * len(metrics),
        "metric": [names.index(name) for name in metrics],
        "unit": [-1] * len(metrics),
        "value": list(metrics.values()),
    }
    return replace(trace, names=names, kernel_metrics=KernelMetrics.build(columns))


@pytest.mark.parametrize(
    ("profiled", "counted_as"),
    [
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)",
            "void at::<unnamed>::vectorized_layer_norm_kernel<float, float, 0>(int, T2, T3)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>,"
            " std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "void at::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>, std::array<char *, 3>>(int, T2, T3)",
        ),
        (
            "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true,"
            " (cudnnKernelDataType_t)0>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, float const*, float*)",
            "void cudnn::nchwToNhwcKernel<float, float, float, 0, 1, 0>(cudnn::nchw2nhwc_params_t<T3>, T1 *, T2 *)",
        ),
    ],
)
def test_a_kernel_is_known_by_what_all_tools_call_it(profiled: str, counted_as: str) -> None:
    assert kernel_key(profiled) == kernel_key(counted_as)


def test_bounds_of_a_recorded_program_stay_below_what_was_measured() -> None:
    measures = Measures(open_traces([Path(__file__).parents[3] / "sample_traces" / "h200_expert_gpt"])[0])
    rows = measures.rows_within_steps(measures.trace.device.kind == WorkKind.KERNEL)
    length = (measures.trace.device.end_ns - measures.trace.device.start_ns)[rows]
    least = measures.kernel_bounds.least_ns[rows]
    known = ~np.isnan(least)
    assert 0.9 * length.sum() < length[known].sum()
    assert least[known].sum() < length[known].sum()
