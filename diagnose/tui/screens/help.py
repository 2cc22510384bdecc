"""The keys, and how to read the screen."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from diagnose.report.style.vocabulary import ACCENT, DECISIONS, SEVERITIES
from diagnose.tui.commands import COMMANDS
from diagnose.tui.theme import FAINT

KEYS = (
    ("1 – 9, tab", "the tabs: those that have something to say"),
    ("↑ ↓  j k", "move in a list, scroll a text; h l sideways"),
    ("enter", "open a finding, then its events; a kernel on the timeline"),
    ("esc", "back to the list"),
    ("← → + − 0", "timeline: move, zoom, all; [ ] by step, w b by span"),
    ("n N", "timeline: the next finding, the one before"),
    ("s S r", "tables: sort by the next column; reverse"),
    *((command.shown, command.about) for command in COMMANDS),
    ("ctrl+p", "all commands by name"),
    ("q", "quit; while the program runs, detach from it or end it"),
)


def help_text() -> Text:
    """All of it."""
    text = Text()
    for keys, effect in KEYS:
        text.append(f"{keys:<13}", f"bold {ACCENT}").append(f"{effect}\n")
    text.append("\nA step's time is counted once: its classes sum to the step exactly.\n", FAINT)
    text.append("Findings give back time of each step; nothing is claimed twice.\n", FAINT)
    text.append("Fixes are measured on a copy; your files change when you say so.\n\n", FAINT)
    for look in SEVERITIES.values():
        text.append(f"{look.mark} {look.label}  ", look.colour)
    text.append("share of the step: 10 %, 5 %, 2 %, less\n", FAINT)
    for name in ("kept", "no change", "slower", "changes numbers", "failed"):
        look = next(look for look in DECISIONS.values() if look.label == name)
        text.append(f"{look.mark} {look.label}  ", look.colour)
    return text


class HelpScreen(ModalScreen[None]):
    """A card over the screen; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        card = VerticalScroll(Static(help_text()), id="help-card")
        card.border_title = "Help"
        card.border_subtitle = "↑ ↓ scroll, esc closes"
        yield card
