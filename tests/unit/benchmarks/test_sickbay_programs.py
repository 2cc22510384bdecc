"""The programs of the sick bay say truly what is wrong with them, and their twins differ by that alone."""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

import pytest

from diagnose.plugins import load_rules

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from accuracy_programs import Program, programs

PROGRAMS = programs()
AILING = [program for program in PROGRAMS if program.ailment]
HEALTHY = [program for program in PROGRAMS if not program.ailment]
SCRIPTS = [program.folder / f"{arm}.py" for program in PROGRAMS for arm in program.arms]

AILMENTS = frozenset(
    {
        "input-bound",
        "pageable-copies",
        "exposed-copies",
        "device-to-host-copies",
        "host-sync",
        "python-stall",
        "gc-pause",
        "launch-bound",
        "allocator-churn",
        "recompiling",
        "graph-breaks",
        "periodic-stall",
        "cpu-contention",
        "debug-leftovers",
        "fp32-matmul",
        "low-precision-headroom",
        "fp8-headroom",
        "memory-bound",
        "plan-building",
        "misaligned-matmul",
        "unfused-pointwise",
        "unfused-attention",
        "unfused-loss",
        "slow-optimizer",
        "layout-transposes",
        "conv-heuristics",
        "small-batch",
        "kernel-hotspot",
        "throttled",
        "shared-device",
        "memory-pressure",
        "over-checkpointing",
        "fragmented-memory",
        "leaking-memory",
        "exposed-communication",
        "small-buckets",
        "unoverlapped-gradients",
        "syncing-every-microstep",
        "unused-parameter-search",
        "regathering-parameters",
        "straggler",
        "slow-link",
        "data-parallel-module",
    }
)
"""All that have a name; rules that find them may come later."""
NO_PROGRAM = frozenset({"throttled", "slow-link", "conv-heuristics", "fp8-headroom"})
"""Faults of a machine or of a library, and room that only some devices have: no program has them everywhere."""


def named(program: Program) -> str:
    return program.name


def test_every_ailment_that_a_program_can_have_is_there() -> None:
    assert {program.ailment for program in AILING} == AILMENTS - NO_PROGRAM


def test_all_rules_find_ailments_that_have_a_name() -> None:
    assert set(load_rules().rules) <= AILMENTS


@pytest.mark.parametrize("program", HEALTHY, ids=named)
def test_a_healthy_program_blames_no_line_and_no_rule(program: Program) -> None:
    assert (program.where, program.code, program.also) == ("", (), frozenset())


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_other_true_findings_have_names_and_are_not_the_ailment(program: Program) -> None:
    assert program.also | program.healthy_also <= AILMENTS - {program.ailment}


@pytest.mark.parametrize("program", AILING, ids=named)
def test_lines_at_fault_stand_once_and_are_code(program: Program) -> None:
    assert (program.where == "train.py") == bool(program.code)
    if program.code:
        tree = ast.parse((program.folder / program.where).read_text())
        code_lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr | ast.keyword)}
        assert len(set(program.lines()) & code_lines) == len(program.code)


def texts(program: Program) -> tuple[list[str], list[str]]:
    ailing, healthy = ((program.folder / f"{arm}.py").read_text().splitlines() for arm in program.arms)
    return ailing, healthy


@pytest.mark.parametrize("program", AILING, ids=named)
def test_twins_differ_by_little(program: Program) -> None:
    ailing, healthy = texts(program)
    assert ailing != healthy
    assert difflib.SequenceMatcher(None, ailing, healthy, autojunk=False).ratio() > 0.75


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_scripts_say_what_they_train_and_never_wait_for_nothing(script: Path) -> None:
    source = script.read_text()
    assert ast.get_docstring(ast.parse(source))
    assert "time.sleep" not in source
