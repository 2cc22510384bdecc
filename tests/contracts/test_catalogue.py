"""docs/catalogue.md says of every fixer what it gained, in figures that benchmarks/RESULTS.md has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose.plugins import load

ROOT = Path(__file__).resolve().parents[2]
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines()
STAYING, GONE = (ROOT / "docs" / "catalogue.md").read_text().split("## Tried and taken out")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in STAYING.splitlines() if line[:3] == "| `"]


def test_every_fixer_has_one_row() -> None:
    assert sorted(f"`{name}`" for name in load().fixers) == sorted(row[0] for row in ROWS)


def test_what_was_taken_out_is_gone() -> None:
    cells = [line.split("|")[1] for line in GONE.splitlines() if line.startswith("| `")]
    names = {name for cell in cells if " in place of " not in cell for name in re.findall(r"`([a-z-]+)`", cell)}
    assert len(names) >= 10
    assert not names & set(load().fixers)


@pytest.mark.parametrize("row", [row for row in ROWS if len(row) == 4], ids=lambda row: row[0].strip("`"))
def test_a_figure_stands_in_the_results_beside_its_program(row: list[str]) -> None:
    fixer, program, gain, date = row
    named = program.split(",")[0] if "`" not in program else re.findall(r"`([^`]+)`", program)[0]
    beside = [line for line in RESULTS if gain in line and (named in line or fixer in line)]
    assert beside, f"no line of RESULTS.md has {gain} with {named}"
    assert any(date in line for line in RESULTS)
