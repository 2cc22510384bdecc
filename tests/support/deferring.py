"""Programs whose reads of the device `defer-item` puts off."""

from __future__ import annotations

from diagnose.fixer import Advice, Edits, example_request, lines_with
from diagnose.plugins import load

FIXER = load().fixers["defer-item"]


def fixed(text: str) -> Edits | Advice | None:
    lines = lines_with(text, ".item()")
    return FIXER.rewrite(example_request("host-sync", text, lines=lines))
