"""docs/thresholds.md lists every number that decides, with what it rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.cli.threshold_page import page, thresholds

ROOT = Path(__file__).resolve().parents[2]


def test_every_number_that_decides_says_what_it_rests_on() -> None:
    without = [f"{one.path}: {one.name}" for one in thresholds(ROOT) if not one.basis]
    assert without == [], "say beside it what it is and where it comes from; `chosen, not measured` will do"


def test_the_page_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "thresholds.md").read_text() == page(ROOT), "run: make reference"


@pytest.mark.parametrize(
    ("text", "bases"),
    [
        ('A = 1\n"""Chosen."""\n', ["Chosen."]),
        ("A = 1  # chosen\n", ["chosen"]),
        ("# Chosen.\nA = 1\n", ["Chosen."]),
        ('A = 1\nB = 2.0\n"""Both."""\n', ["Both.", "Both."]),
        ('A = 1\n\nB = 2 << 3\n"""Its own."""\n', ["", "Its own."]),
        (
            '"""Finds.\n\nThresholds\n    FEW (1): seen\n    in two runs.\n    MANY: chosen.\n"""\n\nFEW = 1\n',
            ["FEW (1): seen in two runs."],
        ),
        ("NAME = 'text'\nON = True\nsmall = 3\n_LIST = (1, 2)\n", []),
    ],
)
def test_what_a_number_rests_on_stands_beside_it_or_in_the_section_on_thresholds(
    tmp_path: Path, text: str, bases: list[str]
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "one.py").write_text(text)
    assert [one.basis for one in thresholds(tmp_path)] == bases
