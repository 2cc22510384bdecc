"""Where a page can be shown beside the terminal."""

from __future__ import annotations

import pytest

from diagnose.tui.browser import opens_windows


@pytest.mark.parametrize(
    ("environ", "system", "opens"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"BROWSER": "/home/user/.editor-server/open"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_window_opens_where_a_display_or_a_browser_is_named(
    environ: dict[str, str], system: str, opens: bool
) -> None:
    assert opens_windows(environ, system) is opens
