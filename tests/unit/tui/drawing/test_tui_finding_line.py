"""A finding in one line of the screen."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from diagnose.measure.steps.step_share import of_step
from diagnose.model import Confidence, Finding, Place, Severity
from diagnose.tui.drawing.finding_line import finding_line, place_width

LEAK = Finding(
    "leaking-memory",
    Severity.NOTE,
    None,
    0,
    0.0,
    Confidence.HINT,
    "Memory grows from step to step.",
    where=(Place("train.py", 23, ""),),
)


def test_a_cost_that_is_not_known_is_no_zero() -> None:
    said = finding_line(LEAK, None, 80).plain
    assert "unknown" in said
    assert "0 ns" not in said


def test_columns_stand_below_each_other_whether_the_cost_is_known_or_not() -> None:
    known = replace(LEAK, recoverable_ns=5_000_000, share=0.1, confidence=Confidence.MEASURED)
    lines = [finding_line(one, None, 80).plain for one in (LEAK, known)]
    assert len({line.index("train.py") for line in lines}) == 1


def test_what_follows_places_of_different_lengths_stands_in_one_column() -> None:
    deeper = replace(LEAK, where=(Place("models/vision/net.py", 1234, ""),))
    nowhere = replace(LEAK, where=())
    findings = (LEAK, deeper, nowhere)
    lines = [finding_line(one, None, 120, place_width(findings, None)).plain for one in findings]
    assert len({line.index("Memory grows") for line in lines}) == 1


def test_wide_characters_stay_within_the_line() -> None:
    wide = replace(LEAK, summary="损失" * 40)
    for width in (60, 61, 80):
        assert cell_len(finding_line(wide, None, width).plain) <= width


def test_a_hint_shows_no_time_as_if_it_were_sure() -> None:
    said = finding_line(replace(LEAK, recoverable_ns=5_000_000, share=0.1), None, 80).plain
    assert "perhaps" in said
    assert "5.00 ms" not in said


def test_a_finding_of_which_nothing_is_sure_shows_the_share_that_it_may_have() -> None:
    said = finding_line(replace(LEAK, possible_ns=6_120_000, possible_share=0.15), None, 80).plain
    assert "perhaps   15 %" in said
    assert "0 ns" not in said


def test_one_line_spends_no_room_on_the_step_that_stands_above_the_list() -> None:
    said = of_step(289_000_000, 390_000_000, 1, "traced step")
    line = finding_line(replace(LEAK, summary=f"{said} go to matrix products"), None, 120).plain
    assert "289 ms (74 %) go to matrix products" in line
