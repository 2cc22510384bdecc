"""Other tools' answers are judged by what they name, and what they do not know is no false alarm."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.plugins import load_rules
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Int64

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import nsight_form  # noqa: E402
import peers_live  # noqa: E402
import peers_nsys  # noqa: E402
from accuracy_programs import programs  # noqa: E402
from peers import MEANS, judged  # noqa: E402


@pytest.mark.parametrize("means", [MEANS, peers_live.MEANS, peers_nsys.MEANS])
def test_every_cause_means_rules_that_exist(means: Mapping[str, frozenset[str]]) -> None:
    assert set().union(*means.values()) <= set(load_rules().rules)


@pytest.mark.parametrize(
    ("causes", "verdict"),
    [
        ([], "no bottleneck"),
        (["unattributed"], "idle, cause unknown"),
        (["dataloader"], "named"),
        (["smallbatch", "dataloader"], "named, 2nd"),
        (["h2d_copy"], "another"),
    ],
)
def test_an_answer_is_worth_what_it_names(causes: list[str], verdict: str) -> None:
    assert judged(causes, "input-bound") == verdict


def test_on_a_healthy_program_every_named_cause_is_another() -> None:
    assert [judged([cause], "") for cause in MEANS] == ["another"] * len(MEANS)


ON_A_CPU = [program for program in programs() if program.device == "any" and program.ranks == 1]


@pytest.mark.parametrize("program", ON_A_CPU, ids=lambda program: program.name)
def test_a_training_loop_gets_the_two_edits_that_traceml_asks_for(program: Any) -> None:
    for arm in program.arms:
        before = ast.parse((program.folder / f"{arm}.py").read_text())
        after = ast.parse(peers_live.instrumented((program.folder / f"{arm}.py").read_text()))
        [block] = [node for node in ast.walk(after) if isinstance(node, ast.With) and "trace_step" in ast.dump(node)]
        assert "backward" in ast.dump(block)
        bodies = [_code(node.body) for node in ast.walk(before) if isinstance(node, ast.For | ast.While)]
        assert _code(block.body) in bodies
        assert "traceml.init(mode='auto')" in ast.unparse(after)


def _code(body: list[ast.stmt]) -> str:
    return ast.unparse(ast.Module(body, []))


@pytest.mark.parametrize(
    ("ailment", "arm", "said", "verdict"),
    [
        ("input_bound_images", "train", "INPUT_BOUND", "named"),
        ("periodic_checkpoint", "train", "RESIDUAL_HEAVY", "its class named"),
        ("recompiling", "train", "INPUT_BOUND", "another"),
        ("recompiling", "train", "COMPUTE_BOUND", "no cause"),
        ("recompiling", "train", "INSUFFICIENT_STEP_TIME_DATA", "no data"),
        ("recompiling", "healthy", "INPUT_BOUND", "accused"),
    ],
)
def test_a_verdict_of_traceml_is_worth_what_it_names(ailment: str, arm: str, said: str, verdict: str) -> None:
    [program] = programs([ailment])
    answer = {"first": said, "severity": "warn"}
    assert peers_live.judged(answer, program, arm, "traceml, edited").startswith(f"{verdict} (")


def test_a_right_rule_at_a_wrong_line_is_said_to_be_that() -> None:
    [program] = programs(["periodic_checkpoint"])
    answer = {"first": "periodic-stall", "severity": "high", "line": 1}
    assert peers_live.judged(answer, program, "train", "diagnose") == "named (`periodic-stall`, high, line 1, wrong)"


def test_a_pattern_of_nsys_ai_counts_at_its_place() -> None:
    [program] = programs(["pageable_copies"])
    said = ["Layer Outlier", "Pageable Memory in Async Memcpy"]
    assert peers_nsys.judged(program, "train", said) == "named, 2. of 2"
    assert peers_nsys.judged(program, "train", said[:1]) == "not named"
    assert peers_nsys.judged(program, "healthy", said) == "2 false"
    assert peers_nsys.judged(program, "healthy", []) == "right"


def test_a_recording_in_nsight_s_form_says_what_it_said(tmp_path: Path) -> None:
    [path] = (ROOT / "sample_traces" / "h200_pageable_copies").rglob("*.json.gz")
    nsight_form.write(path, tmp_path / "run.sqlite")

    def lengths(trace: Trace) -> Int64:
        return trace.device.end_ns - trace.device.start_ns

    [before], [after] = open_traces([path]), open_traces([tmp_path / "run.sqlite"])
    for column in ("kind", "device", "stream", "direction", "host_memory"):
        np.testing.assert_array_equal(getattr(after.device, column), getattr(before.device, column))
    np.testing.assert_array_equal(lengths(after), lengths(before))
    assert len(after.calls) == len(before.calls) > 0
    assert len(Measures(after).steps) == len(Measures(before).steps) > 1
