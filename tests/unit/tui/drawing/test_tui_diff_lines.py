"""A unified diff on a narrow screen."""

from __future__ import annotations

from diagnose.tui.drawing.diff_lines import diff_lines

CHANGED = "+loader = DataLoader(data, batch_size=64, num_workers=2)"


def test_a_line_longer_than_the_screen_shows_its_end_below_in_its_colour() -> None:
    head, *rest = diff_lines(f"@@ -1 +1 @@\n{CHANGED}", 30)
    assert head.plain == "@@ -1 +1 @@".ljust(30)
    assert [line.plain for line in rest] == [
        "+loader = DataLoader(data, bat",
        "    ch_size=64, num_workers=2)",
    ]
    assert rest[0].spans[0].style == rest[1].spans[0].style != head.spans[0].style


def test_a_line_that_fits_is_one_line() -> None:
    assert [line.plain for line in diff_lines(CHANGED, 60)] == [CHANGED.ljust(60)]
