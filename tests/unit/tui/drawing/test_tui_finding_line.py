"""A finding in one line of the screen."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from diagnose.measure.steps.step_share import of_step
from diagnose.model import Confidence, Finding, Place, Severity
from diagnose.tui.drawing.finding_line import finding_lines

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
    said = finding_lines([LEAK], None, 80)[0].plain
    assert "unknown" in said
    assert "0 ns" not in said


def test_columns_stand_below_each_other_whether_the_cost_is_known_or_not() -> None:
    known = replace(LEAK, recoverable_ns=5_000_000, share=0.1, confidence=Confidence.MEASURED)
    lines = [line.plain for line in finding_lines((LEAK, known), None, 80)]
    assert len({line.index("train.py") for line in lines}) == 1


def test_what_follows_places_of_different_lengths_stands_in_one_column() -> None:
    deeper = replace(LEAK, where=(Place("models/vision/net.py", 1234, ""),))
    nowhere = replace(LEAK, where=())
    findings = (LEAK, deeper, nowhere)
    lines = [line.plain for line in finding_lines(findings, None, 120)]
    assert len({line.index("Memory grows") for line in lines}) == 1


def test_wide_characters_stay_within_the_line() -> None:
    wide = replace(LEAK, summary="损失" * 40)
    for width in (60, 61, 80):
        assert cell_len(finding_lines([wide], None, width)[0].plain) <= width


def test_a_hint_shows_no_time_as_if_it_were_sure() -> None:
    said = finding_lines([replace(LEAK, recoverable_ns=5_000_000, share=0.1)], None, 80)[0].plain
    assert "perhaps" in said
    assert "5.00 ms" not in said


def test_a_finding_of_which_nothing_is_sure_shows_the_share_that_it_may_have() -> None:
    said = finding_lines([replace(LEAK, possible_ns=6_120_000, possible_share=0.15)], None, 80)[0].plain
    assert "perhaps   15 %" in said
    assert "0 ns" not in said


def test_one_line_spends_no_room_on_the_step_that_stands_above_the_list() -> None:
    said = of_step(289_000_000, 390_000_000, 1, "traced step")
    line = finding_lines([replace(LEAK, summary=f"{said} go to matrix products")], None, 120)[0].plain
    assert "289 ms (74 %) go to matrix products" in line


def test_names_take_no_more_room_than_the_longest_so_that_the_place_has_it() -> None:
    deep = replace(LEAK, rule="host-sync", where=(Place("models/vision/backbone.py", 1234, ""),))
    (short,) = finding_lines([deep], None, 56)
    _, beside_a_long_name = finding_lines([replace(LEAK, rule="unused-parameter-search"), deep], None, 56)
    assert "backbone.py:1234" in short.plain
    assert "backbone.py:1234" not in beside_a_long_name.plain
    assert "host-sync" in beside_a_long_name.plain
