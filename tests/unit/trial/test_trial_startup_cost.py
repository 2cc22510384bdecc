"""What a fix adds to the start of the program, and after how many steps that is earned back."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.model import Decision, Verdict
from diagnose.program import Program
from diagnose.report.wording.phrases import startup
from diagnose.trial.ab.result import Comparison
from diagnose.trial.ab.startup_cost import StartupCosts, pays_after
from diagnose.units import NS_PER_MS, NS_PER_S


def program(name: str) -> Program:
    root = Path("/copies") / name
    return Program(("train.py",), "script", root / "train.py", root, root)


def comparison(originals: list[float], patched: list[float]) -> Comparison:
    found = Comparison()
    for side, seconds in zip(found.starts_ns, (originals, patched), strict=True):
        side += [round(second * NS_PER_S) for second in seconds]
    return found


VERDICT = Verdict("compile-model", Decision.KEPT, "", saving_ns=40 * NS_PER_MS)


def test_the_first_start_of_each_is_told_since_later_ones_find_everything_compiled() -> None:
    original, patched, startups = program("original"), program("patched"), StartupCosts()
    startups.saw(comparison([10, 9], [74, 20]), original, patched)
    startups.saw(comparison([11], [19]), original, patched)
    verdict = startups.beside(VERDICT, original, patched)
    assert verdict.startup_ns == (10 * NS_PER_S, 74 * NS_PER_S)
    assert verdict.pays_after_steps == 1600
    assert startups.longest_ns == 74 * NS_PER_S
    assert startup(verdict) == "10.0 s → 1 min 14 s until the end of warm-up, earned back after 1,600 steps"


def test_a_program_that_never_got_ready_has_no_figure() -> None:
    original, patched, startups = program("original"), program("patched"), StartupCosts()
    startups.saw(comparison([10], []), original, patched)
    assert startups.beside(VERDICT, original, patched) == VERDICT
    assert startup(VERDICT) == ""


@pytest.mark.parametrize(("before", "after"), [(10, 10.5), (10, 11.9), (0.1, 1.0), (20, 5)])
def test_a_start_that_is_hardly_longer_is_not_worth_a_line(before: float, after: float) -> None:
    startups = StartupCosts()
    startups.saw(comparison([before], [after]), program("a"), program("b"))
    verdict = startups.beside(VERDICT, program("a"), program("b"))
    assert verdict.startup_ns is not None
    assert startup(verdict) == ""


@pytest.mark.parametrize(("more", "saving", "steps"), [(100, 10, 10), (101, 10, 11), (-5, 10, 0), (100, 0, None)])
def test_steps_until_a_longer_start_is_earned_back(more: int, saving: int, steps: int | None) -> None:
    assert pays_after(more, saving) == steps
