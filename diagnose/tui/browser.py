"""Opening a page in the user's browser, where there is one that opens a window."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

_WINDOWS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""One of them is set where a browser can open a window; editors that work over ssh set the last."""


def opens_windows(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> bool:
    """Whether a page can be shown beside the terminal."""
    return system in ("darwin", "win32") or any(environ.get(name) for name in _WINDOWS)


def open_page(path: Path) -> bool:
    """Show a page; False where no browser was found."""
    return opens_windows() and webbrowser.open(path.resolve().as_uri())
