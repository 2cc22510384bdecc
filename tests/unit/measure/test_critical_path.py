"""The critical path: what the end of the steps waited for, summing to the steps exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.replay.critical_path import critical_path
from diagnose.model import Accounting, Diagnosis
from diagnose.plugins import Catalogue
from diagnose.report.terminal import text
from diagnose.report.wording.phrases import awaited
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"


def composition(text: str) -> dict[str, int]:
    """Per counted step, in columns."""
    measures = Measures(drawn(text, repeat=4, kernels={"K": "other_kernel"}))
    path = critical_path(measures)
    assert path is not None
    assert sum(path.composition.values()) == measures.total_ns
    return {name: took // (measures.step_count * 1_000_000) for name, took in path.composition.items()}


def test_a_loader_that_the_device_waits_for_is_on_the_path() -> None:
    found = composition("""
        load: wwww
        host:     ol  olssss
        gpu :       kk  kkkk
        step:               |
    """)
    # Of the last kernel's four columns and the first launch, nothing could be hidden behind other work.
    assert found == {"compute": 4, "input": 4, "dispatch": 3, "python": 2, "launch": 1}


def test_a_busy_device_is_the_whole_path() -> None:
    found = composition("""
        host: lololol sssss
        gpu :  kkkKKKkkkKKK
        step:              |
    """)
    assert found["compute"] == 12
    assert set(found) == {"compute", "launch"}


def test_a_collective_that_compute_waits_for_is_on_the_path_and_a_hidden_one_is_not() -> None:
    exposed = composition("""
        host  : lololol sss
        gpu   :  kkk   kk
        gpu 20:     ccc  cc
        step  :            |
    """)
    hidden = composition("""
        host  : lolol  sssss
        gpu   :  kkkKKKKKKKK
        gpu 20:     ccc
        step  :             |
    """)
    assert exposed["comm"] == 5
    assert "comm" not in hidden


def test_without_a_device_or_a_trusted_replay_there_is_none() -> None:
    assert critical_path(Measures(Trace(source="nothing"))) is None
    assert critical_path(Measures(drawn("host: oooo\nstep:    |", repeat=3))) is None


@pytest.mark.parametrize("name", ["h200_expert_gpt", "h200_naive_gpt"])
def test_the_device_is_what_our_recordings_wait_for(name: str) -> None:
    measures = Measures(open_traces([SAMPLES / name])[0])
    path = critical_path(measures)
    assert path is not None
    assert sum(path.composition.values()) == pytest.approx(measures.total_ns, rel=1e-3)
    assert next(iter(path.composition)) == "compute"
    assert path.composition["compute"] > 0.9 * measures.total_ns


def diagnosed(name: str) -> Diagnosis:
    return diagnose(open_traces([SAMPLES / name]), Catalogue({}, {}, ()))


def test_a_diagnosis_has_it_per_step_and_the_report_says_what_the_accounting_hides() -> None:
    diagnosis = diagnosed("h200_allocator_churn")
    path = diagnosis.critical_path
    assert path is not None
    assert list(path) == sorted(path, key=lambda name: -path[name])
    assert sum(path.values()) == pytest.approx(diagnosis.steps.mean_ns, rel=0.01)
    assert next(iter(path)) == "allocator"
    assert diagnosis.accounting.compute > 0.5 * diagnosis.accounting.total_ns, "yet the device is mostly busy"
    words = " ".join(text.render(diagnosis).split())
    assert "A step's critical path is 80 % host (mostly memory allocator 49 %, framework dispatch 22 %" in words
    assert "and 20 % device (compute). What runs beside it, on host or device, costs no time." in words


def test_a_path_over_the_host_beside_a_busy_device_is_not_all_that_costs_time() -> None:
    diagnosis = replace(
        diagnosed("h200_allocator_churn"),
        critical_path={"launch": 80, "compute": 20},
        accounting=Accounting(compute=93, idle={"launch": 7}),
    )
    assert awaited(diagnosis) == (
        "A step's critical path is 80 % host (kernel launches) and 20 % device (compute). "
        "The device works beside it for 93 % of the step: a faster host alone gives back little."
    )
    waiting = replace(diagnosis, accounting=Accounting(compute=50, idle={"launch": 50}))
    assert awaited(waiting).endswith("What runs beside it, on host or device, costs no time.")


def test_a_report_is_silent_where_the_path_is_all_compute_or_not_known() -> None:
    assert "critical path" not in text.render(diagnosed("h200_expert_gpt"))
    unknown = diagnose([Trace(source="nothing")], Catalogue({}, {}, ()))
    assert unknown.critical_path is None
    assert "critical path" not in text.render(unknown)
