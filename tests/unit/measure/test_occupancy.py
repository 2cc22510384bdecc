"""How much of the device kernels fill, and what the rules that look at it say of real and drawn runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.measure.roofline.occupancy import FULL_WARPS
from diagnose.rule import Claim
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

SAMPLES = Path(__file__).parents[3] / "sample_traces"
RULES = plugins.load().rules


def filling(trace: Trace, blocks: float, warps: float) -> Trace:
    count = len(trace.device)
    per_sm = np.full(count, blocks, np.float32)
    return replace(trace, device=replace(trace.device, blocks_per_sm=per_sm, warps_per_sm=per_sm * (warps / blocks)))


PRODUCT_AND_SUM = drawn(
    """
    gpu : kkss
    step:     |
    """,
    repeat=3,
    kernels={"k": "nvjet_tst_64x64", "s": "void at::native::vectorized_elementwise_kernel<4>"},
)


def test_a_product_fills_with_one_block_what_waits_for_memory_with_many_warps() -> None:
    fill = Measures(filling(PRODUCT_AND_SUM, 1.0, FULL_WARPS / 2)).fill
    assert fill.tolist() == [1.0, 0.5] * 3


def test_no_grid_is_unknown_and_a_larger_one_is_full() -> None:
    assert np.isnan(Measures(PRODUCT_AND_SUM).fill).all()
    assert Measures(filling(PRODUCT_AND_SUM, 40.0, 320.0)).fill.tolist() == [1.0] * 6


def test_recurrent_layers_are_not_judged_by_their_grids() -> None:
    trace = drawn(
        """
        host: olul
        gpu :   kkss
        step:       |
        """,
        repeat=3,
        kernels={"k": "void persistRNN<float>", "s": "ampere_sgemm_32x32"},
        ops={"o": "aten::op", "u": "aten::_cudnn_rnn"},
    )
    assert Measures(filling(trace, 0.1, 0.8)).fill.tolist() == [1.0] * 6


@pytest.mark.parametrize("sample", ["h200_naive_gpt", "h200_expert_gpt"])
def test_recorded_training_fills_its_device(sample: str) -> None:
    measures = Measures(open_traces([SAMPLES / sample])[0])
    device = measures.trace.device
    known = ~np.isnan(measures.fill)
    length = (device.end_ns - device.start_ns)[known]
    assert length.sum() > 0.9 * (device.end_ns - device.start_ns).sum()
    assert (measures.fill[known] * length).sum() > 0.95 * length.sum()
    for rule in ("small-batch", "kernel-hotspot"):
        assert list(RULES[rule].check(measures)) == []


def test_a_batch_grows_as_far_as_memory_holds_it() -> None:
    alone, bounded = (
        next(answer for answer in RULES["small-batch"].check(Measures(trace)) if isinstance(answer, Claim))
        for trace in (RULES["small-batch"].fires[0], RULES["small-batch"].fires[2])
    )
    assert "is not known" in (alone.confirm or "")
    assert "memory has room for 7.2 times the batch" in bounded.summary
    tight = replace(RULES["small-batch"].fires[2].facts, peak_memory_bytes=36 << 30)
    trace = replace(RULES["small-batch"].fires[2], facts=tight)
    less = next(answer for answer in RULES["small-batch"].check(Measures(trace)) if isinstance(answer, Claim))
    assert "a batch 2 times as large" in less.summary
    assert less.recoverable_ns < bounded.recoverable_ns


def test_a_hot_kernel_comes_with_the_command_that_looks_into_it() -> None:
    claim = next(
        answer
        for answer in RULES["kernel-hotspot"].check(Measures(RULES["kernel-hotspot"].fires[0]))
        if isinstance(answer, Claim)
    )
    assert "tensor_kernel_scan_innermost_dim" in (claim.confirm or "")
    assert (claim.confirm or "").startswith("ncu ")
    assert "of aten::cumsum" in claim.summary
    assert any("data sheet of NVIDIA H200" in evidence.measure for evidence in claim.evidence)


def test_the_command_is_that_of_the_devices_vendor() -> None:
    trace = replace(RULES["kernel-hotspot"].fires[0], device_names=("AMD Instinct MI300X",))
    claim = next(answer for answer in RULES["kernel-hotspot"].check(Measures(trace)) if isinstance(answer, Claim))
    command = "rocprof-compute profile --name hotspot --kernel tensor_kernel_scan_innermost_dim -- the program"
    assert claim.confirm == command
