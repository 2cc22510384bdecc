"""The lane of the timeline that an event of a stream or a thread is in."""

from __future__ import annotations

import pytest

from diagnose.tui.widgets.timeline_view import first_lane

NAMES = (
    "gaps",
    "stream 13",
    "stream 1, collectives",
    "pt_autograd_10: ranges",
    "pt_autograd_1: ranges",
    "main: within",
)


@pytest.mark.parametrize(
    ("lane", "found"),
    [("stream 13", 1), ("stream 1", 2), ("pt_autograd_1", 4), ("main", 5), ("stream 3", None), ("", None)],
)
def test_a_lane_is_found_by_its_whole_name(lane: str, found: int | None) -> None:
    assert first_lane(NAMES, lane) == found
