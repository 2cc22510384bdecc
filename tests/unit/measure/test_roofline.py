"""How near the ceilings a step came, and what the ceilings are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.roofline.ceilings import TERA, of_table
from diagnose.model import Diagnosis, Facts
from diagnose.plugins import Catalogue
from diagnose.report.terminal import text
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

SAMPLES = Path(__file__).parents[3] / "sample_traces"
PRODUCT = ("[[4096,4096],[4096,4096]]", '["c10::BFloat16","c10::BFloat16"]')
FLOPS = 2 * 4096**3
PLAIN = "ampere_sgemm_128x64_tn"


def step(kernel: str = "nvjet_tst_128x256", shapes: tuple[str, str] = PRODUCT, **known: Any) -> Trace:
    """Steps of 8 ms, each with one product that the device takes 4 ms for; the second one counts."""
    return drawn(
        """
        host: ol
        gpu :   kkkk
        step:         |
        """,
        repeat=2,
        kernels={"k": kernel},
        ops={"o": "aten::mm"},
        shapes={"o": shapes},
        **known,
    )


@pytest.mark.parametrize(
    ("name", "bf16", "memory"),
    [
        ("NVIDIA H200", 989.4, 4.8),
        ("NVIDIA H100 80GB HBM3", 989.4, 3.35),
        ("NVIDIA H100 PCIe", 756, 2.0),
        ("NVIDIA A100-SXM4-40GB", 312, 1.555),
        ("NVIDIA A100-SXM4-80GB", 312, 2.039),
        ("NVIDIA B200", 2250, 8.0),
        ("NVIDIA L40S", 362, 0.864),
        ("NVIDIA GeForce RTX 4090", 165.2, 1.008),
        ("AMD Instinct MI300X", 1307.4, 5.3),
        ("AMD Instinct MI250X", 191.5, 1.6),
    ],
)
def test_the_table_of_devices(name: str, bf16: float, memory: float) -> None:
    found = of_table(name)
    assert found is not None
    assert found.flops_per_s["bf16"] == bf16 * TERA
    assert found.bytes_per_s == memory * TERA
    assert found.source == f"data sheet of {name}"
    assert not found.is_measured


def test_a_device_that_no_table_has_is_unknown() -> None:
    assert of_table("NVIDIA GeForce GTX 1080") is None
    assert Measures(step(device_names=("AMD Radeon Graphics",))).step_work is None


def test_a_format_that_the_device_does_not_multiply_has_no_ceiling() -> None:
    sheet = of_table("Tesla V100-SXM2-16GB")
    assert sheet is not None
    assert "bf16" not in sheet.flops_per_s
    assert Measures(step(device_names=("Tesla V100-SXM2-16GB",))).step_work is None


def test_the_fraction_of_the_nearer_ceiling() -> None:
    roofline = Measures(step()).roofline
    assert roofline is not None
    assert roofline.device_ns.tolist() == [4_000_000]
    np.testing.assert_allclose(roofline.compute_ns, FLOPS / 989.4e12 * 1e9)
    np.testing.assert_allclose(roofline.memory_ns, 3 * 2 * 4096**2 / 4.8e12 * 1e9)
    np.testing.assert_allclose(roofline.least_ns / roofline.device_ns, FLOPS / 989.4e12 * 1e9 / 4e6)


def test_the_utilisation_is_of_the_whole_step() -> None:
    work = Measures(step()).step_work
    assert work is not None
    assert work.flops_per_step == FLOPS
    assert work.flops_per_s == pytest.approx(FLOPS / 8e-3)
    assert work.ceiling_flops_per_s == pytest.approx(989.4e12)
    assert (work.ceiling_format, work.in_use) == ("bf16", {"bf16": 1.0})
    assert work.utilisation == pytest.approx(FLOPS / 8e-3 / 989.4e12)
    assert (work.modelled, work.ceiling_source) == (1.0, "data sheet of NVIDIA H200")


def test_measured_ceilings_go_before_the_table() -> None:
    facts = Facts(ceilings={"bf16": 700e12, "memory": 4e12})
    work = Measures(step(facts=facts)).step_work
    assert work is not None
    assert work.ceiling_flops_per_s == pytest.approx(700e12)
    assert work.ceiling_source == "measured"


def test_products_of_fp32_on_tensor_cores_are_in_tf32() -> None:
    fp32 = (PRODUCT[0], '["float","float"]')
    tensor = Measures(step("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4", fp32)).step_work
    plain = Measures(step(PLAIN, fp32)).step_work
    assert tensor is not None and plain is not None
    assert tensor.in_use == {"tf32": 1.0} and tensor.in_use_flops_per_s == pytest.approx(494.7e12)
    assert plain.in_use == {"fp32": 1.0} and plain.in_use_flops_per_s == pytest.approx(67e12)


@pytest.mark.parametrize(
    ("device", "form", "peak"),
    [("NVIDIA H200", "bf16", 989.4e12), ("Tesla T4", "fp16", 65e12), ("AMD Instinct MI100", "fp16", 184.6e12)],
)
def test_the_utilisation_is_of_the_best_format_whatever_is_in_use(device: str, form: str, peak: float) -> None:
    """What runs in FP32 at half of FP32's peak is far from what the device does."""
    work = Measures(step(PLAIN, ("[[2048,2048],[2048,2048]]", '["float","float"]'), device_names=(device,))).step_work
    assert work is not None
    assert work.ceiling_format == form
    assert work.ceiling_flops_per_s == pytest.approx(peak)
    assert work.utilisation == pytest.approx(work.flops_per_s / peak)


def test_more_than_the_ceiling_allows_is_not_said() -> None:
    huge = ("[[65536,65536],[65536,65536]]", PRODUCT[1])
    assert Measures(step(shapes=huge)).step_work is None


def test_without_shapes_nothing_is_known() -> None:
    trace = step()
    bare = replace(trace, ops=replace(trace.ops, shapes=np.full(len(trace.ops), -1, np.int32)))
    assert Measures(bare).step_work is None
    assert Measures(Trace(source="nothing")).step_work is None


@pytest.mark.parametrize(("sample", "least", "most"), [("h200_naive_gpt", 0.03, 0.04), ("h200_expert_gpt", 0.3, 0.45)])
def test_a_gpt_of_124_million_parameters_needs_six_operations_for_each_and_token(
    sample: str, least: float, most: float
) -> None:
    work = Measures(open_traces([SAMPLES / sample])[0]).step_work
    assert work is not None
    parameters, tokens = 124e6, 16 * 1024
    # Attention adds some 5 % with a causal mask, 10 % without; embeddings of positions multiply nothing.
    assert 1.0 <= work.flops_per_step / (6 * parameters * tokens) <= 1.2
    assert least < work.utilisation < most
    assert work.modelled > 0.99


def _diagnosis(trace: Trace) -> Diagnosis:
    return diagnose([trace], Catalogue({}, {}, ()))


def test_the_diagnosis_and_the_report_say_it() -> None:
    diagnosis = _diagnosis(step())
    assert diagnosis.work == Measures(step()).step_work
    words = " ".join(text.render(diagnosis).split())
    assert "Matmuls: 137 GFLOP per step at 17.2 TFLOP/s: 1.7 % of bf16 peak (989 TFLOP/s, data sheet of" in words
    assert "runs in bf16." in words


def test_the_format_in_use_stands_beside_with_its_own_peak() -> None:
    trace = step(PLAIN, ("[[2048,2048],[2048,2048]]", '["float","float"]'))
    assert "; runs in fp32, whose peak is 67.0 TFLOP/s." in " ".join(text.render(_diagnosis(trace)).split())


def test_the_report_is_silent_where_nothing_is_known_and_says_where_much_is_not() -> None:
    assert "FLOP" not in text.render(_diagnosis(step(device_names=("AMD Radeon Graphics",))))
    diagnosis = _diagnosis(step())
    assert diagnosis.work is not None
    partly = replace(diagnosis, work=replace(diagnosis.work, modelled=0.5))
    assert "Matmuls: at least 137 GFLOP" in text.render(partly)


def test_a_step_of_which_most_products_are_unknown_has_no_figure() -> None:
    trace = drawn(
        """
        host: olul
        gpu :   kkkkkkkqqq
        step:             |
        """,
        repeat=2,
        kernels={"k": "nvjet_tst_128x256", "q": "nvjet_tst_64x64"},
        ops={"o": "mine::product", "u": "aten::mm"},
        shapes={"u": PRODUCT},
    )
    roofline = Measures(trace).roofline
    assert roofline is not None and len(roofline) == 1
    assert Measures(trace).step_work is None
