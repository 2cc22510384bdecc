"""Charts of characters, drawn small enough to be read in the source of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.tui.drawing.chart import Column, Scale, interval_line, narrowing, nice_ceiling, step_chart
from diagnose.units import NS_PER_MS

MS = NS_PER_MS


def drawn(columns: list[Column], width: int, height: int) -> list[str]:
    """A chart without colour, as strings."""
    return [line.plain for line in step_chart(columns, width, height, plain=True)]


def test_steps_are_columns_from_the_left_and_input_wait_as_shade() -> None:
    columns = [Column(40 * MS, 0), Column(20 * MS, 0), Column(38 * MS, 20 * MS)]
    assert drawn(columns, 14, 2) == [
        "   50 ms┤▅ ▄",
        "       0┤█▆░",
    ]


def test_only_the_newest_steps_are_shown() -> None:
    columns = [Column(10 * MS, 0)] * 5 + [Column(30 * MS, 0)]
    assert [line[9:] for line in drawn(columns, 12, 1)] == ["▂▂▆"]


def test_one_hiccup_does_not_flatten_the_others() -> None:
    columns = [Column(10 * MS, 0)] * 4 + [Column(10_000 * MS, 0)]
    assert drawn(columns, 14, 2) == [
        "   40 ms┤    █",
        "       0┤▄▄▄▄█",
    ]


def test_minutes_stand_on_the_axis_as_round_numbers_of_seconds() -> None:
    assert drawn([Column(140_000 * MS, 0)], 12, 2)[0] == "   150 s┤▇"


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (17, 20), (20, 20), (21, 25), (130, 150), (9_100, 10_000)])
def test_an_axis_ends_at_a_round_number(value: int, top: int) -> None:
    assert nice_ceiling(value) == top


@given(
    st.lists(st.builds(Column, st.integers(0, 10**12), st.integers(0, 10**12)), max_size=80),
    st.integers(0, 90),
    st.integers(0, 12),
)
def test_a_chart_is_never_wider_or_higher_than_its_room(columns: list[Column], width: int, height: int) -> None:
    lines = step_chart(columns, width, height)
    assert len(lines) in (0, height)
    assert all(len(line) <= max(width, 10) for line in lines)


def test_an_interval_lies_on_its_scale_beside_zero() -> None:
    scale = Scale(-0.1, 0.4, 10)
    assert interval_line(scale, 0.2, 0.27, 0.32, 0.0, "green").plain == "  │   ━●━ "


def test_intervals_narrow_from_left_to_right() -> None:
    points = [(0.10, 0.30, 0.50), (0.20, 0.30, 0.40), (0.27, 0.30, 0.33)]
    rows = [line.plain[9:] for line in narrowing(points, 14, 5, 0.0, "green")]
    assert rows[2].startswith("●●●")
    assert rows[0].rstrip() == "││"
