"""A library's kernel for a layer is no hotspot that can be removed; tiles that channels leave empty are no loss."""

from __future__ import annotations

import pytest

from diagnose.measure import Measures
from diagnose.plugins import load_rules
from diagnose.rule import Claim, Confidence, Facts, drawn
from diagnose.trace import Trace

STEP = """
    host: olrlSSSSS
    gpu :   kkkssss
    step:          |
"""
GROUPED = "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64"
GENERAL = "void implicit_convolveNd_sgemm<__nv_bfloat16, 3, 1024, 5, 5, 3, 3, 3, 1, false, false, true>"
BF16 = '["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar", "", "", ""]'
CONCRETE = '["", "", "[1, 1, 1]", "[1, 1, 1]", "[1, 1, 1]", "{groups}", "False", "False", "True"]'


def convolution(kernel: str, image: list[int], weight: list[int], unit_ns: int = 100_000) -> Trace:
    """A product, then a convolution of these shapes that takes four columns."""
    groups = image[1] // weight[1]
    return drawn(
        STEP,
        repeat=4,
        unit_ns=unit_ns,
        kernels={"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "s": kernel},
        ops={"o": "aten::mm", "r": "aten::cudnn_convolution"},
        shapes={"r": (f"[{image}, {weight}, [], [], [], [], [], [], []]", BF16, CONCRETE.format(groups=groups))},
        facts=Facts(cudnn_benchmark=False),
    )


def claims(rule: str, trace: Trace) -> list[Claim]:
    return [answer for answer in load_rules().rules[rule].check(Measures(trace)) if isinstance(answer, Claim)]


def test_a_grouped_convolution_far_below_the_ceiling_is_a_note_without_a_cost() -> None:
    # 49 GFLOP in 1.6 ms are 3 % of an H200's ceiling, which is what the best engine reached there.
    found = claims("kernel-hotspot", convolution(GROUPED, [4, 128, 48, 48, 48], [128, 16, 3, 3, 3], unit_ns=400_000))
    assert [(one.confidence, one.recoverable_ns) for one in found] == [(Confidence.HINT, 0)]


def test_a_convolution_that_reaches_next_to_nothing_is_a_hotspot() -> None:
    found = claims("kernel-hotspot", convolution(GROUPED, [4, 128, 48, 48, 48], [128, 16, 3, 3, 3], unit_ns=10_000_000))
    assert [one.recoverable_ns > 0 for one in found] == [True]


@pytest.mark.parametrize(("channels", "loses"), [(1, False), (64, True)])
def test_a_general_engine_is_no_loss_where_tiles_would_be_empty(channels: int, loses: bool) -> None:
    trace = convolution(GENERAL, [4, channels, 48, 48, 48], [128, channels, 3, 3, 3], unit_ns=channels * 100_000)
    costs = [one.recoverable_ns for one in claims("conv-heuristics", trace)]
    assert any(costs) is loses
