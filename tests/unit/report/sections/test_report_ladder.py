"""The ladder in the terminal: its columns have headings, and only those that have something to say are there."""

from __future__ import annotations

from dataclasses import replace

import journals
import pytest

from diagnose.model import Diagnosis, Ladder, Rung
from diagnose.report.sections.ladder import ladder_lines
from diagnose.session import fold

MS = 1_000_000


def drawn(width: int, utilisation: float | None) -> list[str]:
    rungs = (Rung("input-bound", None, {"loader-workers": False}, 60 * MS, (50 * MS, 70 * MS), utilisation),)
    known = fold(journals.cpu()).diagnosis
    assert isinstance(known, Diagnosis)
    diagnosis = replace(known, ladder=Ladder(100 * MS, utilisation, rungs, None), work=None)
    return [line.plain for line in ladder_lines(diagnosis, width)]


def test_a_rung_is_the_step_that_is_predicted() -> None:
    _, head, now, rung = drawn(100, None)
    assert head.split() == ["rung", "predicted", "step"]
    assert now.split() == ["now", "100", "ms"]
    assert rung.split()[:2] == ["1", "input-bound"]
    assert head.index("predicted step") + len("predicted step") == rung.index("70.0 ms") + len("70.0 ms")


def test_the_share_of_the_peak_has_a_column_where_it_is_known() -> None:
    assert "of peak" in drawn(100, 0.3)[1]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert max(map(len, drawn(width, 0.3))) <= width
