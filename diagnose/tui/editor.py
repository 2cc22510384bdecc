"""The line of a finding in the user's editor."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from diagnose.model import Place

_TAKE_PLACES = ("code", "codium", "cursor", "windsurf")
"""Editors that are told of a line by `-g FILE:LINE`; others take `+LINE FILE`, as vi, nano and emacs do."""


def editor_command(place: Place, root: str | None, environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the command that opens a place in `$VISUAL` or `$EDITOR`; None where neither is set, or the file is not
    here.
    """
    words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "")
    path = Path(root or ".") / place.file
    if not words or not path.is_file():
        return None
    if Path(words[0]).name in _TAKE_PLACES:
        return [*words, "-g", f"{path}:{place.line}"]
    return [*words, f"+{max(place.line, 1)}", str(path)]
