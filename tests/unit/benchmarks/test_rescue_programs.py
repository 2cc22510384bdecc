"""The programs of `benchmarks/rescue.py`: what is expected of a fixer there is what it has an answer for."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from rescue import CASES, PROGRAMS, Case, compared, how, said

from diagnose.fixer import Edits, Gate, example_request
from diagnose.plugins import load

WITHOUT_BLOCKS = [case for case in CASES if case.name not in ("activations", "batch_norm")]
"""What is done about blocks rests on what a run records of them."""


@pytest.mark.parametrize("case", WITHOUT_BLOCKS, ids=lambda case: case.name)
def test_the_expected_fixer_edits_the_program_unasked(case: Case) -> None:
    fixer = load().fixers[case.expected[0]]
    text = (PROGRAMS / f"{case.program or case.name}.py").read_text()
    request = example_request("memory-pressure", text)
    request = replace(request, words=("train.py", *case.words(True, False)))
    answer = fixer.rewrite(replace(request, setting=fixer.settings(request)[0]))
    assert isinstance(answer, Edits), answer
    assert (answer.gate or fixer.gate) is not Gate.TRAINING


def test_a_limit_is_asked_for_and_left_out() -> None:
    case = Case("leak", 15.5, 0.15, 40, ("detach-kept",))
    assert case.words(True, False) == ["--limit", "15.5"]
    assert case.words(False, True) == ["--limit", "0", "--tiny", "--steps", "40"]


def test_losses_are_equal_or_so_far_apart_or_unknown() -> None:
    assert compared(2.0, 2.0) == "equal"
    assert compared(2.002, 2.0) == "1.0e-03 apart"
    assert compared(None, 2.0) == "unknown"


def test_a_row_tells_what_was_kept_and_how_the_runs_ended() -> None:
    ran = {"exit": 0, "loss": 2.5, "peak": 3 << 30, "last words": "loss 2.5 peak 3221225472"}
    died = {"exit": 1, "loss": None, "peak": None, "last words": "torch.OutOfMemoryError: CUDA out of memory."}
    gate = {"gate": "bitwise", "passed": True}
    tried = [{"fixer": "detach-kept", "setting": {}, "decision": "kept", "gate": gate}]
    fix = {"tried": tried, "kept": ["detach-kept"], "problem": None, "seconds": 51.2}
    runs = {"patched": ran, "found": died, "unlimited": ran}
    row = said("leak", {"limit": 15.5, "expected": ["detach-kept"], "fix": fix, "runs": runs, "died": True})
    assert row[:6] == [
        "leak",
        "15.5 GiB",
        "out of memory",
        "`detach-kept` (bitwise: passed)",
        "detach-kept: kept",
        "51 s",
    ]
    assert row[6:] == ["exit 0, loss 2.5, peak 3.00 GiB", "exit 0, loss 2.5, peak 3.00 GiB", "equal"]
    assert how(died) == "exit 1: torch.OutOfMemoryError: CUDA out of memory."
