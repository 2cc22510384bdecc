"""How much work operators are: against PyTorch's own counter, and by hand where it counts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import flop_counter

from diagnose.measure import Measures
from diagnose.measure.roofline.op_costs import UNKNOWN, Work, work_of, work_of_op
from diagnose.trace.readers import open_traces

sizes = st.integers(1, 40)
SAMPLES = Path(__file__).parents[3] / "sample_traces"


def work(name: str, *shapes: object, dtypes: str = "float", values: tuple[str, ...] | None = None) -> Work:
    """The work of `aten::name` on tensors of these shapes, all of one format; None is no tensor."""
    dims = json.dumps([[] if shape is None else list(shape) for shape in shapes])  # type: ignore[call-overload]
    formats = json.dumps(["Scalar" if shape is None else dtypes for shape in shapes])
    return work_of_op(f"aten::{name}", dims, formats, json.dumps(values) if values else None)


@given(sizes, sizes, sizes, sizes)
def test_products_are_counted_as_pytorch_counts_them(b: int, m: int, k: int, n: int) -> None:
    assert work("mm", (m, k), (k, n)).flops == flop_counter.mm_flop((m, k), (k, n))
    assert work("addmm", (n,), (m, k), (k, n)).flops == flop_counter.addmm_flop((n,), (m, k), (k, n))
    assert work("bmm", (b, m, k), (b, k, n)).flops == flop_counter.bmm_flop((b, m, k), (b, k, n))
    assert work("baddbmm", (b, m, n), (b, m, k), (b, k, n)).flops == 2 * b * m * n * k


def test_a_product_reads_its_operands_and_writes_the_result_in_their_format() -> None:
    assert work("mm", (2, 3), (3, 5)) == Work(60, 4 * (6 + 15 + 10), "fp32")
    assert work("mm", (2, 3), (3, 5), dtypes="c10::BFloat16") == Work(60, 2 * (6 + 15 + 10), "bf16")
    assert work("addmm", (5,), (2, 3), (3, 5), dtypes="double").bytes == 8 * (5 + 6 + 15 + 10)
    assert work("_scaled_mm", (2, 3), (3, 5), dtypes="c10::Float8_e4m3fn") == Work(60, 6 + 15 + 2 * 10, "fp8")


@settings(max_examples=40)
@given(st.data())
def test_convolutions_are_counted_as_pytorch_counts_them(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 3))
    each = st.lists(st.integers(1, 3), min_size=axes, max_size=axes)
    kernel, stride, padding, dilation = (data.draw(each) for _ in range(4))
    groups, transposed = data.draw(st.sampled_from([1, 2])), data.draw(st.booleans())
    channels = (4, 6)
    image = torch.zeros(2, channels[0], *data.draw(st.lists(st.integers(7, 9), min_size=axes, max_size=axes)))
    ends = (channels[0], channels[1] // groups) if transposed else (channels[1], channels[0] // groups)
    weight = torch.zeros(*ends, *kernel)
    arguments = (stride, padding, dilation, transposed, [0] * axes, groups)
    output = torch.ops.aten.convolution(image, weight, None, *arguments)
    values = ("", "", "", *map(str, arguments))
    shapes = (image.shape, weight.shape, *[None] * 7)
    counted = flop_counter.conv_flop_count(list(image.shape), list(weight.shape), list(output.shape), transposed)
    assert work("convolution", *shapes, values=values).flops == counted
    assert work("convolution", *shapes, values=values).bytes >= 4 * (image.numel() + weight.numel())
    backward = (output.shape, image.shape, weight.shape, *[None] * 8)
    masked = ("", "", "", "[0]", *map(str, arguments), "[True, True, False]")
    assert work("convolution_backward", *backward, values=masked).flops == 2 * counted
    only = (*masked[:-1], "[False, True, False]")
    assert work("convolution_backward", *backward, values=only).flops == counted


def test_cudnn_has_the_padding_before_the_stride() -> None:
    values = ("", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False", "False", "True")
    shapes = ((8, 3, 224, 224), (64, 3, 7, 7), *[None] * 7)
    assert work("cudnn_convolution", *shapes, values=values).flops == 2 * 64 * 3 * 49 * 8 * 112 * 112


def test_a_convolution_without_its_strides_is_unknown() -> None:
    assert work("cudnn_convolution", (8, 3, 224, 224), (64, 3, 7, 7), *[None] * 7) == Work()


@given(st.integers(1, 4), st.integers(1, 4), sizes, sizes, sizes)
def test_attention_is_counted_as_pytorch_counts_it(b: int, h: int, t: int, s: int, d: int) -> None:
    q, k = (b, h, t, d), (b, h, s, d)
    plain = ("", "", "", "0.0", "False", "False", "")
    forward = work("_scaled_dot_product_flash_attention", q, k, k, *[None] * 4, values=plain)
    assert forward.flops == flop_counter.sdpa_flop_count(q, k, k)  # type: ignore[no-untyped-call]
    none = [None] * 10
    values = (*[""] * 11, "False")
    backward = work("_scaled_dot_product_flash_attention_backward", q, q, k, k, q, *none, values=values)
    assert backward.flops == flop_counter.sdpa_backward_flop_count(q, q, k, k)  # type: ignore[no-untyped-call]
    assert backward.flops - backward.recomputed == 2 * forward.flops


def test_masked_pairs_of_causal_attention_are_no_work() -> None:
    q = (2, 3, 4, 8)
    causal = work("_scaled_dot_product_flash_attention", q, q, q, *[None] * 4, values=(*[""] * 4, "True", "False", ""))
    assert causal.flops == 2 * 2 * 3 * (4 * 5 // 2) * (8 + 8)
    # The layout of the operator beneath has time before heads.
    time_first = (2, 4, 3, 8)
    beneath = work("_flash_attention_forward", *[time_first] * 3, *[None] * 6, values=(*[""] * 8, "True"))
    assert beneath.flops == causal.flops
    efficient = work("_efficient_attention_forward", *[time_first] * 3, *[None] * 7, values=(*[""] * 9, "1"))
    assert efficient.flops == causal.flops


def test_packed_sequences_are_unknown() -> None:
    q = (1, 64, 3, 8)
    assert work("_flash_attention_forward", q, q, q, (5,), (5,), *[None] * 4, values=(*[""] * 8, "True")) == Work()


def test_elementwise_operators_move_what_they_read_and_write() -> None:
    assert work("add", (4, 8), (4, 8), None) == Work(32, 4 * 3 * 32)
    assert work("mul", (4, 8), (8,)) == Work(32, 4 * (32 + 8 + 32))
    assert work("mul", (4, 1), (1, 8)) == Work(32, 4 * (4 + 8 + 32))
    assert work("add_", (4, 8), (4, 8), None) == Work(32, 4 * 3 * 32)
    assert work("gt", (4, 8), None) == Work(32, 4 * 32 + 32)
    assert work("sum", (4, 8), None) == Work(32, 4 * 32)
    assert work("_softmax", (4, 8), None, dtypes="c10::Half").bytes == 2 * 2 * 32
    assert work("native_layer_norm_backward", (4, 8), (4, 8), None, (4, 1), (4, 1), (8,), (8,)).bytes == 3 * 4 * 32
    assert work("add", (4, 8), (5, 8)) == Work()
    assert work_of_op("aten::copy_", "[[4,8],[4,8],[]]", '["float","c10::BFloat16","Scalar"]') == Work(0, 32 * 6)


def test_a_kernel_of_inductor_moves_its_buffers_unless_it_may_leave_parts_of_them() -> None:
    shapes, dtypes = "[[4,8],[4,8],[]]", '["c10::BFloat16","float","Scalar"]'
    assert work_of_op("triton_poi_fused_add_silu_3", shapes, dtypes) == Work(32, 32 * 6)
    assert work_of_op("triton_poi_fused_embedding_0", shapes, dtypes) == Work()


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("aten::mm", "[[2,3],[4,5]]", '["float","float"]'),
        ("aten::mm", "[[2,3]]", '["float","float"]'),
        ("aten::mm", "[[2,3],[3,5]]", '["float","QInt8"]'),
        ("aten::mm", "[[2,3],[3,5]]", "[]"),
        ("aten::mm", "nonsense", '["float","float"]'),
        ("aten::something", "[[2,3],[3,5]]", '["float","float"]'),
        ("mine::mm", "[[2,3],[3,5]]", '["float","float"]'),
    ],
)
def test_what_is_not_recorded_is_unknown(name: str, shapes: str, dtypes: str) -> None:
    assert work_of_op(name, shapes, dtypes) == Work(UNKNOWN, UNKNOWN)


def test_a_recorded_program_has_the_work_that_pytorch_counts(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Flatten(), nn.Linear(8 * 7 * 7, 10))
    images = torch.randn(4, 3, 16, 16)
    with flop_counter.FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        model(images).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = open_traces([tmp_path / "trace.json"])[0]
    counted = {"aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::mm"}
    rows = np.flatnonzero([trace.names[name] in counted for name in trace.ops.name.tolist()])
    flops = work_of(trace, rows).flops[rows]
    assert len(rows) >= 4
    assert flops.sum() == counter.get_total_flops()


def test_nearly_all_device_time_of_a_recorded_run_is_modelled() -> None:
    for sample, least in (("h200_naive_gpt", 0.95), ("h200_expert_gpt", 0.8)):
        measures = Measures(open_traces([SAMPLES / sample])[0])
        of_work, device = measures.op_of_work, measures.trace.device
        moved = work_of(measures.trace, np.unique(of_work)).bytes
        known = (of_work >= 0) & (moved[np.maximum(of_work, 0)] >= 0)
        length = device.end_ns - device.start_ns
        assert length[known].sum() >= least * length.sum()
