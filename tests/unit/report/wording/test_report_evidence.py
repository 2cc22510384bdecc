"""How one figure behind a finding is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.model import Accounting, Confidence, Diagnosis, Evidence, Finding, Severity, Steps, StepWork
from diagnose.report.wording.phrases import arithmetic, evidence, gain


@pytest.mark.parametrize(("count", "said"), [(5.0, "5"), (1.5, "1.5"), (202, "202"), (1234.0, "1,234")])
def test_a_count_has_no_decimals_that_say_nothing(count: float, said: str) -> None:
    assert evidence(Evidence("waits per step", count, "count")) == f"waits per step {said}"


def test_a_measure_keeps_its_digits() -> None:
    assert evidence(Evidence("bandwidth", 5.0, "GB/s")) == "bandwidth 5.00 GB/s"


@pytest.mark.parametrize(
    ("name", "said"),
    [("aten::as_strided per step", "aten::as_strided per step 763"), ("free_memory", "free memory 763")],
)
def test_an_operator_in_the_name_of_a_measure_keeps_its_own_name(name: str, said: str) -> None:
    assert evidence(Evidence(name, 763, "count")) == said


@pytest.mark.parametrize(
    ("sure_ms", "possible_ms", "said"),
    [
        (11.3, 15.8, "11.3 ms of each step (11 %), perhaps up to 15.8 ms"),
        (11.3, 11.34, "11.3 ms of each step (11 %), measured"),
        (11.3, 11.4, "11.3 ms of each step (11 %), measured"),
        (0, 4.32, "perhaps up to 4.32 ms, none of it sure"),
    ],
)
def test_what_may_be_saved_besides_is_said_only_where_it_is_more(sure_ms: float, possible_ms: float, said: str) -> None:
    severity = Severity.of_share(sure_ms / 100)
    found = Finding("python-stall", severity, None, round(sure_ms * 1e6), sure_ms / 100, Confidence.MEASURED, "waits")
    assert gain(replace(found, possible_ns=round(possible_ms * 1e6), possible_share=possible_ms / 100)) == said


def test_a_format_of_few_operations_is_named_where_the_peak_of_all_depends_on_it() -> None:
    work = StepWork(
        10**12, 1e13, 9.9e14, 0.01, 1.0, "data sheet of NVIDIA H200", "bf16", {"tf32": 0.953, "fp32": 0.047}
    )
    run = Diagnosis(
        1, ("rank0",), 1, "NVIDIA H200", Steps(1, 1), Accounting(), work=replace(work, in_use_flops_per_s=3.92e14)
    )
    assert arithmetic(run).endswith("runs in tf32 and fp32, whose peak together is 392 TFLOP/s.")
