"""Products, attention, losses and chains of primitives: what is seen in the order of launches, and what it weighs."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.kernels.matmuls import best_rate
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn

HALF = '["c10::BFloat16", "c10::BFloat16"]'
OPS = {
    "a": "aten::bmm",
    "b": "aten::_softmax",
    "d": "aten::triu",
    "e": "aten::mm",
    "g": "aten::mul",
    "h": "aten::tanh",
    "i": "aten::_log_softmax",
    "j": "aten::gather",
    "n": "aten::_log_softmax_backward_data",
    "o": "aten::nll_loss_forward",
    "q": "aten::mul_",
    "r": "aten::add",
}
KERNELS = {
    "w": "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
    "x": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "y": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor>",
    "z": "void at::native::elementwise_kernel<128, 2, at::native::AddFunctor>",
}


def traced(operators: str, **shapes: tuple[str, str]) -> Measures:
    """A step of operators that launch one kernel of a millisecond each, after the host issued them all; four times."""
    host = "".join(f"{letter}l" for letter in operators)
    # Neighbours that are equal would be drawn as one kernel.
    work = "".join(("wx" if letter in "ae" else "yz")[place % 2] for place, letter in enumerate(operators))
    picture = f"host: {host}\ngpu : {' ' * len(host)}{work}\nopt : {' ' * (len(host) - 1)}O"
    return Measures(drawn(picture, repeat=4, ops=OPS, kernels=KERNELS, shapes=shapes))


def test_a_product_has_sizes_arithmetic_and_a_rate() -> None:
    products = traced("er", e=("[[16, 32], [32, 64]]", HALF)).products
    assert products.sizes[0].tolist() == [1, 16, 64, 32]
    assert products.flop[0] == 2 * 16 * 64 * 32
    assert products.rate[0] == pytest.approx(2 * 16 * 64 * 32 / 1_000_000)
    assert products.aligned.all()


@pytest.mark.parametrize(
    ("shapes", "aligned"),
    [
        (("[[16, 32], [32, 64]]", HALF), True),
        (("[[16, 32], [32, 57]]", HALF), False),
        (("[[16, 36], [36, 64]]", HALF), False),
        (("[[16, 36], [36, 64]]", '["float", "float"]'), True),
    ],
)
def test_sizes_are_aligned_to_sixteen_bytes_of_their_format(shapes: tuple[str, str], aligned: bool) -> None:
    assert set(traced("er", e=shapes).products.aligned.tolist()) == {aligned}


@pytest.mark.parametrize("shapes", ["[[16, 32], [33, 64]]", "[[16], [16]]", "[]", "[[16, 32]]", "[[0, 32], [32, 64]]"])
def test_shapes_that_are_no_product_are_left_out(shapes: str) -> None:
    assert len(traced("er", e=(shapes, HALF)).products) == 0


def test_the_best_rate_is_that_of_the_faster_half_of_the_arithmetic() -> None:
    products = traced("eer", e=("[[16, 32], [32, 64]]", HALF)).products
    fast, every = products.rate.max(), np.ones(len(products), np.bool_)
    assert best_rate(products, every) == pytest.approx(fast)
    assert best_rate(products, ~every) is None


def test_attention_reaches_from_product_to_product() -> None:
    found = traced("agbar").written_attention
    assert {(one.last - one.first, len(one.products), one.backward, one.causal) for one in found} == {
        (3, 2, False, False)
    }


def test_a_triangle_in_the_mask_is_a_causal_one() -> None:
    found = traced("adgbar").written_attention
    assert found
    assert all(one.causal for one in found)


@pytest.mark.parametrize("operators", ["egber", "agber", "aebar", "ab", "ba", "ag" + "g" * 20 + "bar"])
def test_a_softmax_without_batched_products_near_on_both_sides_is_no_attention(operators: str) -> None:
    assert traced(operators + "er").written_attention == ()


def test_a_loss_lies_between_the_last_product_forward_and_the_first_backward() -> None:
    loss = traced("eijner").loss_work
    assert loss.by_hand
    assert len(loss) == 3 * traced("eijner").step_count


def test_a_called_loss_is_not_by_hand() -> None:
    loss = traced("eioner").loss_work
    assert len(loss)
    assert not loss.by_hand


def test_without_a_turn_to_the_backward_pass_there_is_no_loss() -> None:
    assert len(traced("eijer").loss_work) == 0


def test_an_activation_of_four_primitives_is_a_chain_and_leaves_one_kernel() -> None:
    chains = traced("eggghe").chains
    assert {(chain.kind, chain.kernels, chain.needed_ns) for chain in chains} == {("activation", 4, 1_000_000)}


def test_few_primitives_are_no_chain() -> None:
    assert traced("egge").chains == ()


def test_long_chains_count_whatever_they_compute_but_for_updates_in_place() -> None:
    assert len(traced("e" + "g" * 8 + "e").chains) > 0
    assert traced("e" + "q" * 8 + "e").chains == ()


def test_an_empty_recording_has_none_of_it() -> None:
    measures = Measures(Trace(source="nothing"))
    assert len(measures.products) == len(measures.loss_work) == len(measures.chains) == 0
    assert measures.written_attention == ()
    assert len(measures.misaligned.places) == 0


@pytest.mark.parametrize(
    ("kernel", "left"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x64_tn_align1", 0.25),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align2", 0.35),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_tensor16x8x16_aligna4_alignc4", 0.6),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8", None),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align1", 0.5),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", None),
        ("cutlass_80_simt_sgemm_128x256_8x4_nt_align1", None),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", None),
    ],
)
def test_a_kernels_name_tells_how_its_loads_are_aligned(kernel: str, left: float | None) -> None:
    trace = drawn("gpu : xy\nstep:   |", repeat=4, kernels={"x": kernel, "y": "other"})
    assert set(Measures(trace).misaligned.left.tolist()) == ({left} if left else set())
