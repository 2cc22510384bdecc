"""The ladder: its rungs add up, and no program that was measured comes below the practical ceiling."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.model import Diagnosis, Ladder
from diagnose.plugins import load, load_rules
from diagnose.report.export import markdown
from diagnose.report.terminal import text
from diagnose.trace.readers import open_traces

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FASTEST_MS = {
    "h200_naive_gpt": 31.81,
    "h200_expert_gpt": 31.81,
    "h200_gc_pause": 19.10,
    "h200_input_bound_tokenizer": 18.37,
    "h200_python_stall_metric": 18.11,
    "h200_slow_optimizer": 19.14,
    "h200_unfused_loss": 20.19,
    "h200_pageable_copies": 36.13,
}
"""The shortest step of the recorded model that was ever measured, by whoever wrote it (`benchmarks/RESULTS.md`)."""


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Diagnosis]:
    catalogue = load()
    return {name: diagnose(open_traces([SAMPLES / name]), catalogue) for name in (*FASTEST_MS, "h200_straggler")}


def ladder_of(diagnosis: Diagnosis) -> Ladder:
    assert diagnosis.ladder is not None
    return diagnosis.ladder


@pytest.mark.parametrize("name", FASTEST_MS)
def test_no_measured_program_beats_the_practical_ceiling(name: str, diagnoses: dict[str, Diagnosis]) -> None:
    ceiling = ladder_of(diagnoses[name]).ceiling
    assert ceiling is not None
    assert ceiling.step_ns < FASTEST_MS[name] * 1e6
    assert ceiling.step_ns > 0.4 * FASTEST_MS[name] * 1e6, "a ceiling that nothing comes near says nothing"
    assert ceiling.step_ns == ceiling.matmul_ns + ceiling.memory_ns + ceiling.launch_ns
    assert ceiling.utilisation <= 0.82


@pytest.mark.parametrize("name", FASTEST_MS)
def test_what_lies_above_the_ceiling_is_divided_exactly(name: str, diagnoses: dict[str, Diagnosis]) -> None:
    ladder = ladder_of(diagnoses[name])
    assert ladder.ceiling is not None
    assert sum(ladder.apart.values()) == ladder.step_ns - ladder.ceiling.step_ns


def test_the_same_model_has_nearly_the_same_ceiling_however_it_is_written(diagnoses: dict[str, Diagnosis]) -> None:
    """One in fp32 with attention written out, the other in bfloat16 with a fused kernel and compiled."""
    naive, expert = (ladder_of(diagnoses[name]).ceiling for name in ("h200_naive_gpt", "h200_expert_gpt"))
    assert naive is not None and expert is not None
    assert naive.step_ns == pytest.approx(expert.step_ns, rel=0.2)


def test_rungs_go_down_from_the_largest_and_end_above_the_ceiling(diagnoses: dict[str, Diagnosis]) -> None:
    for diagnosis in diagnoses.values():
        ladder = ladder_of(diagnosis)
        steps = [ladder.step_ns, *(rung.likely_ns for rung in ladder.rungs)]
        saved = [before - after for before, after in pairwise(steps)]
        assert all(one >= 0 for one in saved)
        floor_ns = ladder.ceiling.step_ns if ladder.ceiling else 0
        for rung in ladder.rungs:
            low, high = rung.step_ns
            assert floor_ns <= low <= rung.likely_ns <= high <= ladder.step_ns


def test_the_report_ends_with_it_on_one_screen(diagnoses: dict[str, Diagnosis]) -> None:
    said = text.render(diagnoses["h200_naive_gpt"], width=100)
    section = next(part for part in said.split("\n\n") if part.startswith("The ladder"))
    assert len(section.splitlines()) <= 24
    words = " ".join(section.split())
    assert "Matmuls: 14.0 TFLOP per step" in words and "runs in fp32, whose peak is 67.0 TFLOP/s." in words
    assert "1 fp32-matmul" in words and "practical ceiling" in words
    assert "autocast-bf16 (changes training)" in words
    assert said.count("Matmuls:") == 1
    assert "## The ladder" in markdown.render(diagnoses["h200_naive_gpt"])


def test_a_finding_without_a_fixer_is_a_rung_to_climb_by_hand(diagnoses: dict[str, Diagnosis]) -> None:
    (rung,) = [one for one in ladder_of(diagnoses["h200_straggler"]).rungs if one.rule == "straggler"]
    assert not rung.fixers
    assert rung.utilisation is None, "without shapes the arithmetic is not known"


def test_which_fixers_change_the_training_is_known_without_loading_them() -> None:
    loaded, named = load(), load_rules()
    assert {name for name in loaded.fixers if loaded.changes_training(name)} == set(named.training) != set()
