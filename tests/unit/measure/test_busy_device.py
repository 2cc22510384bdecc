"""What the busy device could save: chains that one pass replaces, 32 bits that could be 16, shapes that are new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.kernels.memory_chains import GENERATED
from diagnose.measure.lines.compute_parts import compute_parts, own_time
from diagnose.model import Facts
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn

IMAGE = 4 * 128 * 256 * 56 * 56
PAIR = ("[[128,256,56,56],[128,256,56,56],[]]", '["float","float","Scalar"]')
ONE = ("[[128,256,56,56],[]]", '["float","Scalar"]')
OPS = {"a": "aten::mm", "x": "aten::add", "r": "aten::relu", "n": "aten::native_layer_norm", "e": "aten::exp"}
SHAPES = {"x": PAIR, "r": ONE, "n": ONE, "e": ONE}
KERNELS = {
    "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "t": "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_kernel__5x_cublas",
    **dict.fromkeys("vw", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"),
}


def step(host: str, gpu: str, **known: Any) -> Measures:
    """Four steps of this picture, a column 100 µs."""
    mark = "|".rjust(len(gpu) + 1)
    picture = f"host: {host}\ngpu : {gpu}\nstep: {mark}\n"
    ops = OPS | known.pop("ops", {})
    return Measures(drawn(picture, repeat=4, unit_ns=100_000, ops=ops, kernels=KERNELS, shapes=SHAPES, **known))


def test_a_tensor_that_is_handed_on_is_neither_written_nor_read() -> None:
    (*_, chain) = step("alxlrlal.ssssssssss", " bbbvvvvwwwwbbbbbbb").memory_chains
    assert chain.kinds == {"sums of two tensors": 400_000, "ReLU": 400_000}
    # Three passes for the sum and two for the activation, less one write and one read.
    assert chain.needed_ns == pytest.approx((3 + 2 - 2) * IMAGE / (GENERATED * 4.8e12) * 1e9, rel=0.01)


def test_a_sum_that_is_normalised_is_written_all_the_same() -> None:
    (*_, chain) = step("alxlnlal.ssssssssss", " bbbvvvvwwwwbbbbbbb").memory_chains
    assert chain.needed_ns == pytest.approx((3 + 2 - 1) * IMAGE / (GENERATED * 4.8e12) * 1e9, rel=0.01)


def test_a_product_ends_a_chain() -> None:
    measures = step("alxlalrlal.sssssssssss", " bbbvvvvbbbwwwwbbbbbbb")
    assert len(measures.memory_chains) == 2 * measures.step_count
    assert all(len(chain.rows) == 1 for chain in measures.memory_chains)


def test_kernels_far_below_the_rate_of_the_memory_are_not_memory_bound() -> None:
    assert step("alxlal.ssssssssssssssssss", f" bbb{40 * 'v'}bbb").memory_chains == ()


def test_what_autocast_leaves_in_32_bits_is_not_halved() -> None:
    measures = step("alxlelal.ssssssssss", " tttvvvvwwwwttttttt")
    wide = measures.wide_formats
    assert wide is not None
    assert wide.format == "bf16"
    halved = {measures.trace.names[measures.trace.ops.name[measures.op_of_work[row]]] for row in wide.memory.tolist()}
    assert halved == {"aten::add"}
    assert wide.left[wide.products] == pytest.approx(494.7 / 989.4)


def test_products_that_the_rule_for_fp32_takes_to_16_bits_are_left_to_it() -> None:
    kernel = {"t": "ampere_sgemm_128x64_tn"}
    picture = "host: alssssss\ngpu :   tttttt\nstep:         |\n"

    def wide(**known: Any) -> int:
        found = Measures(drawn(picture, repeat=4, ops=OPS, kernels=kernel, **known)).wide_formats
        assert found is not None
        return len(found.products)

    assert wide() > 0  # TF32 first, and bfloat16 from there
    assert wide(facts=Facts(matmul_precision="high")) == 0
    assert wide(device_names=("NVIDIA GeForce RTX 4090",)) == 0
    assert wide(device_names=("Tesla V100-SXM2-16GB",)) > 0


def test_a_device_that_no_table_has_leaves_everything_unknown() -> None:
    measures = step("alxlrlal.ssssssssss", " bbbvvvvwwwwbbbbbbb", device_names=("AMD Radeon Graphics",))
    assert measures.wide_formats is None
    assert measures.memory_chains == ()


def test_overlapping_kernels_share_their_time_and_the_parts_sum_to_the_compute() -> None:
    picture = """
        host : alal ssssssss
        gpu  :   kkkkkk
        gpu 7:      qqqqqq
        step :              |
    """
    measures = Measures(drawn(picture, repeat=3, ops=OPS, kernels={"k": KERNELS["b"], "q": KERNELS["v"]}))
    own = own_time(measures)
    assert (own.ends - own.starts).sum() == measures.compute.total_ns
    assert set((own.ends - own.starts).tolist()) == {6_000_000, 3_000_000}
    parts = compute_parts(measures)
    assert sum(part.time_ns for part in parts) == measures.accounting.compute
    assert {part.bound for part in parts} == {"matmul", "memory"}


def test_parts_know_their_lines_and_modules_only_where_they_were_recorded() -> None:
    (part, *_) = compute_parts(step("alxlal.ssssssssss", " bbbvvvvbbbbbbbb"))
    assert (part.place, part.module) == (None, None)


@pytest.mark.parametrize("trace", [Trace(source="nothing"), drawn("host: oooo\nstep:    |", repeat=3)])
def test_without_a_device_there_is_nothing_to_divide(trace: Trace) -> None:
    measures = Measures(trace)
    assert compute_parts(measures) == ()
    assert measures.accounting.compute_by == {}


def test_a_larger_tensor_that_takes_longer_to_copy_is_no_new_plan() -> None:
    shapes = {letter: (f"[[{size}]]", '["float"]') for size, letter in enumerate("ABCD", start=1)}
    host = "".join(f"{30 * one}c.s" for one in "ABCD")
    measures = Measures(
        drawn(
            f"host: {host}\ngpu : {4 * (30 * '.' + 'hh.')}\nstep: {4 * '|'.rjust(33)}\n",
            ops=dict.fromkeys("ABCD", "aten::copy_"),
            shapes=shapes,
        )
    )
    assert len(measures.new_shapes) == 0
    assert np.all(measures.new_shapes.took_ns >= 0)
