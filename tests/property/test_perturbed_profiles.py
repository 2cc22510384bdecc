"""The same run, recorded in another way: the first finding stays, and a healthy program stays healthy."""

from __future__ import annotations

import copy
import gzip
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diagnose.model import Severity

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_traces"
sys.path.insert(0, str(ROOT / "benchmarks"))

from perturb import Said, diagnosed  # noqa: E402
from perturbations import PERTURBATIONS, Perturbation  # noqa: E402

from diagnose.plugins import load_rules  # noqa: E402

BY_NAME = {perturbation.name: perturbation for perturbation in PERTURBATIONS}


def sample(name: str) -> dict[str, Any]:
    """A recording that ships, decoded."""
    profile: dict[str, Any] = msgspec.json.decode(gzip.decompress((SAMPLES / name / "rank0.json.gz").read_bytes()))
    return profile


@pytest.fixture(scope="module")
def ailing() -> dict[str, Any]:
    return sample("h200_pageable_copies")


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    return sample("h200_item_on_busy_device")


@pytest.mark.parametrize("change", PERTURBATIONS, ids=[change.name for change in PERTURBATIONS])
def test_the_first_finding_stays(change: Perturbation, ailing: dict[str, Any]) -> None:
    assert diagnosed([change.change(ailing)], load_rules()).findings[0].rule == "pageable-copies"


@pytest.mark.parametrize("change", PERTURBATIONS, ids=[change.name for change in PERTURBATIONS])
def test_a_healthy_program_stays_healthy(change: Perturbation, healthy: dict[str, Any]) -> None:
    findings = diagnosed([change.change(healthy)], load_rules()).findings
    assert [found.rule for found in findings if found.severity in (Severity.HIGH, Severity.MEDIUM)] == []


@pytest.mark.parametrize("name", ["inner steps", "two steps", "one step", "last step"])
def test_fewer_steps_predict_the_same_saving(name: str, ailing: dict[str, Any]) -> None:
    whole, fewer = (diagnosed([profile], load_rules()) for profile in (ailing, BY_NAME[name].change(ailing)))
    assert whole.steps.count > fewer.steps.count >= 1
    before, after = (one.findings[0].recoverable_ns for one in (whole, fewer))  # per step, and steps are alike
    assert after == pytest.approx(before, rel=0.25)


def test_times_scale_and_shares_stay(ailing: dict[str, Any]) -> None:
    profiles = (ailing, BY_NAME["twice as long"].change(ailing))
    whole, longer = (diagnosed([profile], load_rules()) for profile in profiles)
    assert longer.steps.median_ns == pytest.approx(2 * (whole.steps.median_ns or 0), rel=0.001)
    assert longer.accounting.compute == pytest.approx(2 * whole.accounting.compute, rel=0.001)


@pytest.mark.parametrize("change", PERTURBATIONS, ids=[change.name for change in PERTURBATIONS])
def test_a_change_leaves_its_profile_as_it_is(change: Perturbation) -> None:
    profile = small()
    before = copy.deepcopy(profile)
    after = change.change(profile)
    assert profile == before
    assert change.name == "as recorded" or after != before


def small() -> dict[str, Any]:
    """Four steps of one kernel and one copy each, with something of all that is changed."""

    def event(category: str, name: str, at: float, lasts: float, **arguments: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": lasts, "args": arguments}

    events = []
    for step in range(4):
        at, linked = 1000.0 * step, {"correlation": 10 + step}
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 1000),
            event("user_annotation", "Optimizer.step#AdamW.step", at + 800, 100),
            event("python_function", "train.py(4): main", at, 900),
            event("cpu_op", "aten::mm", at + 10, 20, **{"Input Dims": [[8, 8], [8, 8]]}),
            event("cuda_runtime", "cudaLaunchKernel", at + 15, 5, **linked),
            event("kernel", "nvjet_sm90_tst_128x256", at + 100, 500, stream=7, grid=[1, 1, 1], **linked),
            {"ph": "s", "id": 10 + step, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": at + 15},
        ]
    return {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}


def test_a_recording_of_fewer_steps_holds_the_work_of_its_launches() -> None:
    events = BY_NAME["two steps"].change(small())["traceEvents"]
    assert [event["name"] for event in events if event["name"].startswith("Prof")] == [
        "ProfilerStep#1",
        "ProfilerStep#2",
    ]
    assert [event["args"]["correlation"] for event in events if event.get("cat") == "kernel"] == [11, 12]


@pytest.mark.parametrize(
    ("said", "holds"),
    [
        (Said("r", "c", ("a", "b"), ("a",), ("a",), (), "a"), True),
        (Said("r", "c", ("a", "b"), ("b", "a"), ("b",), (), "a"), False),
        (Said("r", "c", ("a",), (), (), ("a",), "a"), True),
        (Said("r", "c", ("b",), ("b",), (), (), "a"), True),
        (Said("r", "c", (), ("b",), ("b",), (), ""), False),
        (Said("r", "c", (), ("b",), (), (), ""), True),
    ],
)
def test_an_answer_holds_where_it_stays_or_is_left_open(said: Said, holds: bool) -> None:
    assert said.holds is holds
