"""Products in fp32 and in fp64 are told apart: what each could be faster by, and what helps it, is its own."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, drawn

RULE = plugins.load_rules().rules["fp32-matmul"]

BOTH = """
    host: ololsssssssss
    gpu :   kkkkkkkkKKK
    step:              |
"""


def claims(device: str) -> list[Claim]:
    """What is claimed of a step of 8 ms in fp32 and 3 ms in fp64."""
    kernels = {"k": "ampere_sgemm_128x64_tn", "K": "volta_dgemm_64x64_tn"}
    found = RULE.check(Measures(drawn(BOTH, repeat=4, kernels=kernels, device_names=(device,))))
    return [one for one in found if isinstance(one, Claim)]


@pytest.mark.parametrize(
    ("device", "single", "double"),
    [("NVIDIA GeForce RTX 4090", 2, 128), ("NVIDIA H200", 7.4, 7.4), ("NVIDIA A100-SXM4-80GB", 8, 8)],
)
def test_each_is_told_by_its_own_rate(device: str, single: float, double: float) -> None:
    in_fp32, in_fp64 = claims(device)
    assert in_fp32.evidence[-1].value == single and in_fp64.evidence[-1].value == double
    assert (
        f"8.00 ms of each traced step of 13.0 ms (62 %) go to matrix products in plain fp32 on {device}"
        in in_fp32.summary
    )
    assert (
        f"3.00 ms of each traced step of 13.0 ms (23 %) go to matrix products in double precision (fp64) on {device}"
        in in_fp64.summary
    )
    assert f"up to {single:.3g} times as fast" in in_fp32.summary
    assert f"up to {double:.3g} times as fast" in in_fp64.summary


def test_a_little_fp64_takes_no_fixer_from_fp32_and_gets_none() -> None:
    in_fp32, in_fp64 = claims("NVIDIA H200")
    assert in_fp32.fixers == ("allow-tf32", "autocast-bf16") and in_fp64.fixers == ()


def test_fp64_is_not_said_to_be_for_tensor_cores_where_none_take_fp32() -> None:
    (in_fp64,) = claims("Tesla V100-SXM2-16GB")
    assert in_fp64.summary.endswith("on Tesla V100-SXM2-16GB, which multiplies fp32 up to 2 times as fast")
