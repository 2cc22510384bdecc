"""Recordings that look ailing and are not: none of them may get a finding of severity high or medium."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Diagnosis, Facts, Severity
from diagnose.rule import Trace, drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import MISSING, Table

SAMPLES = Path(__file__).parents[3] / "sample_traces"
_TIMELINE = ("device", "calls", "ops", "frames", "ranges", "device_ranges")
COMPILED = SAMPLES / "h200_expert_gpt" / "rank0"
BF16 = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"


def serious(trace: Trace) -> list[str]:
    """Rules with findings of severity high or medium."""
    return _serious(diagnose([trace], plugins.load()))


def _serious(diagnosis: Diagnosis) -> list[str]:
    return [found.rule for found in diagnosis.findings if found.severity in (Severity.HIGH, Severity.MEDIUM)]


HIDDEN_LOADER = drawn(
    """
    load: wwwwww      wwwwww      wwwwww      wwwwww
    host:       olol        olol        olol        olol
    gpu :         kkkkkkKKKKKKkkkkkkKKKKKKkkkkkkKKKKKKkkkkkkKKKKKK
    step:           |           |           |           |
    """,
    kernels={"k": BF16, "K": BF16},
)
ITEM_ON_A_BUSY_DEVICE = drawn(
    """
    host: olol sss ol    olol sss ol    olol sss ol    olol sss ol    olol sss ol
    gpu :   kkkkkKKKKKjjjjjkkkkkKKKKKjjjjjkkkkkKKKKKjjjjjkkkkkKKKKKjjjjjkkkkkKKKKKjjjjj
    step:                |              |              |              |              |
    """,
    kernels={"k": BF16, "K": BF16, "j": BF16},
)
GRAPHS = drawn(
    """
    host: G       ssssssssssssss
    gpu :  kkkkKKKKkkkkKKKKkkkkKK
    step:                       |
    """,
    repeat=4,
    unit_ns=100_000,
    kernels={"k": BF16, "K": "triton_poi_fused_add_0"},
)
SAME_STREAM_OVERLAP = drawn(
    """
    host: olol      olol      olol      olol      olol
    gpu :   kkkkkk    kkkkkk    kkkkkk    kkkkkk    kkkkkk
    gpu :       KKKKKKKK  KKKKKKKK  KKKKKKKK  KKKKKKKK  KKKKKKKK
    step:           |         |         |         |
    """,
    kernels={"k": BF16, "K": "triton_red_fused_native_layer_norm_1"},
)
LONG_KERNELS_WITHOUT_COUNTERS = drawn(
    """
    host: ololssssssssssssssssssssssssss
    gpu :   kkkkkkkkkkkkkkKKKKKKKKKKKKKK
    step:                               |
    """,
    repeat=4,
    unit_ns=10_000_000,
    kernels={"k": BF16, "K": BF16},
)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(HIDDEN_LOADER, id="a loader wait hidden under device work"),
        pytest.param(GRAPHS, id="graph replays: few launches, a full device"),
        pytest.param(SAME_STREAM_OVERLAP, id="kernels that overlap on one stream"),
        pytest.param(LONG_KERNELS_WITHOUT_COUNTERS, id="long kernels, no utilisation counter"),
        pytest.param(ITEM_ON_A_BUSY_DEVICE, id="item() in every step of a busy device"),
    ],
)
def test_what_costs_nothing_is_no_serious_finding(trace: Trace) -> None:
    assert Measures(trace).step_count > 0
    assert serious(trace) == []


def test_overlap_on_one_stream_is_counted_once() -> None:
    measures = Measures(SAME_STREAM_OVERLAP)
    work = measures.trace.device
    assert (work.end_ns - work.start_ns).sum() > measures.busy.total_ns
    assert measures.accounting.total_ns == measures.total_ns


@pytest.mark.parametrize(
    "name",
    [
        BF16,
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16>(Params)",
        "triton_tem_fused_addmm_3",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>",
        "void flash::compute_attn_ws<Flash_fwd_kernel_traits<128, 128, 128, 12, 2, cutlass::bfloat16_t>>",
    ],
)
def test_bf16_under_newer_names_is_not_taken_for_fp32(name: str) -> None:
    diagnosis = diagnose(
        [
            drawn(
                """
                host: olssssssss
                gpu :   kkkkkkkk
                step:           |
                """,
                repeat=4,
                kernels={"k": name},
                facts=Facts(matmul_precision="highest"),
            )
        ],
        plugins.load(),
    )
    assert "fp32-matmul" not in {found.rule for found in diagnosis.findings}


def test_a_recording_without_device_work_leaves_the_device_rules_open() -> None:
    (trace,) = open_traces([SAMPLES / "cpu_demo" / "rank0"])
    assert not trace.has_device
    diagnosis = diagnose([trace], plugins.load())
    open_rules = {answer.rule for answer in diagnosis.cannot_tell}
    device_rules = {
        "conv-heuristics",
        "exposed-copies",
        "fp32-matmul",
        "host-sync",
        "launch-bound",
        "layout-transposes",
        "pageable-copies",
        "shared-device",
        "throttled",
    }
    assert device_rules <= open_rules
    assert not device_rules & {found.rule for found in diagnosis.findings}


def test_a_host_ahead_of_a_busy_device_is_no_sign_that_the_profiler_made_steps_longer() -> None:
    (trace,) = open_traces([COMPILED])
    median = diagnose([trace], plugins.load()).steps.median_ns
    assert median is not None
    ahead = replace(trace, facts=replace(trace.facts, step_ns_watched=median // 2))
    assert not any("times as long" in warning for warning in diagnose([ahead], plugins.load()).warnings)


def test_a_first_and_a_last_step_that_are_cut_change_nothing() -> None:
    (trace,) = open_traces([COMPILED])
    steps = Measures(trace).steps
    start, end = (int(steps.start_ns[step] + steps.end_ns[step]) // 2 for step in (0, -1))
    tables: dict[str, Any] = {name: _within(getattr(trace, name), start, end) for name in _TIMELINE}
    cut = replace(trace, window_ns=(start, end), **tables)
    measures = Measures(cut)
    assert 0 < measures.step_count < len(steps)
    whole, kept = Measures(trace).mean_ns, measures.mean_ns
    assert kept == pytest.approx(whole, rel=0.05)
    assert serious(cut) == serious(trace) == ["unfused-loss"]


def _within(table: Any, start: int, end: int) -> Table:
    rows = (table.start_ns >= start) & (table.end_ns <= end)
    kept: Table = table.where(np.flatnonzero(rows))
    return kept


def test_missing_flow_arrows_change_nothing(tmp_path: Path) -> None:
    shutil.copytree(COMPILED, tmp_path / "rank0")
    path = tmp_path / "rank0" / "trace.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    arrows = [event for event in document["traceEvents"] if event.get("ph") in ("s", "f")]
    gone = {id(event) for event in arrows[::2]}
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    (before,), (after,) = open_traces([COMPILED]), open_traces([tmp_path / "rank0"])
    assert gone
    assert Measures(after).accounting == Measures(before).accounting
    assert serious(after) == serious(before) == ["unfused-loss"]


def test_work_whose_launch_is_unknown_is_no_ailment() -> None:
    (trace,) = open_traces([COMPILED])
    correlation = trace.device.correlation.copy()
    correlation[::2] = MISSING
    unlinked = replace(trace, device=replace(trace.device, correlation=correlation))
    assert Measures(unlinked).busy == Measures(trace).busy
    assert serious(unlinked) == []
