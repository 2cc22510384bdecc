"""What rules say in their summaries: each figure is what its sentence names."""

from __future__ import annotations

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Trace, drawn

RULES = plugins.load().rules


def summaries(rule: str, trace: Trace) -> list[str]:
    return [one.summary for one in RULES[rule].check(Measures(trace)) if isinstance(one, Claim)]


def test_kernels_that_take_longer_than_their_launch_are_not_called_faster_than_the_host() -> None:
    """The optimizer's are late all the same: the host has issued the model's work until then."""
    late = """
    host: ol ol ol ol ol ol ol ol ol ol ol
    opt :                               oo
    gpu :   k  k  k  k  k  k  k  k  k  k  eeeeeee
    step:                                        |
    """
    trace = drawn(late, repeat=4, unit_ns=10_000, kernels={"e": "FusedAdamMathFunctor"})
    model, optimizer = summaries("launch-bound", trace)
    assert model.endswith("per kernel, the median kernel takes 10.0 µs")
    assert optimizer.endswith("for launches of the optimizer: the host is late when it issues them")


def test_turns_of_other_processes_are_counted_per_step() -> None:
    trace = RULES["shared-device"].fires[1]
    turns = Measures(trace).handed_over
    assert len(turns) == 10
    (said,) = summaries("shared-device", trace)
    assert said.startswith("launched work waits 5 times per step while the device is idle")


def test_another_process_on_the_device_is_told_in_the_singular() -> None:
    (said,) = summaries("shared-device", RULES["shared-device"].fires[2])
    assert "NVML lists another process with 18.6 GiB" in said


def test_unaligned_sizes_are_those_of_the_product_that_is_named() -> None:
    """Of two slow products, the longer one is named; the other's size of 4099 is no part of it."""
    unaligned = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align1>(Params)"
    half = '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]'
    waits, longer, long = 64 * "s", 36 * "x", 28 * "y"
    trace = drawn(
        f"host: alilol.{waits}\ngpu :  bbbbbb{longer}{long}\nopt :       O",
        unit_ns=20_000,
        repeat=4,
        ops={"a": "aten::mm", "i": "aten::addmm", "o": "aten::addmm"},
        kernels={"b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "x": unaligned, "y": unaligned},
        shapes={
            "a": ("[[16384, 768], [768, 3072]]", half),
            "i": ("[[], [16384, 768], [768, 6145]]", half),
            "o": ("[[], [16384, 768], [768, 4099]]", half),
        },
    )
    (said,) = summaries("misaligned-matmul", trace)
    assert "(16384 × 768 by 768 × 6145: 6145 elements are no multiple of 16 bytes)" in said
