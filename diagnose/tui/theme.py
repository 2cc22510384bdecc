"""The screen's colours: one dark theme, quiet everywhere but where something is to be seen."""

from __future__ import annotations

from textual.theme import Theme

from diagnose.report.style.vocabulary import ACCENT, BAD, GOOD

INK = "#d7dce2"
FAINT = "#7d8792"
PAPER = "#11151a"
BAND = "#1a2027"
LINE = "#2b333d"

WHISKER = "#4a5665"

STEP = "#4d7396"
"""The part of a step's column that is not input wait."""
WAIT = "#e3a13b"
"""The part that is."""

THEME = Theme(
    name="diagnose",
    primary="#5b8def",
    secondary="#3fb0c9",
    accent=ACCENT,
    success=GOOD,
    warning=ACCENT,
    error=BAD,
    foreground=INK,
    background=PAPER,
    surface=PAPER,
    panel=BAND,
    dark=True,
    variables={
        "faint": FAINT,
        "line": LINE,
        "footer-background": BAND,
        "footer-key-foreground": ACCENT,
        "footer-description-foreground": FAINT,
        "block-cursor-background": "#27313c",
        "block-cursor-foreground": INK,
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#1f262e",
        "block-cursor-blurred-foreground": INK,
        "block-cursor-blurred-text-style": "none",
        "block-hover-background": "#1b222a",
        "scrollbar": "#2b333d",
        "scrollbar-hover": "#3a4552",
        "scrollbar-active": "#4a5665",
        "scrollbar-background": PAPER,
        "scrollbar-background-hover": PAPER,
        "scrollbar-background-active": PAPER,
        "scrollbar-corner-color": PAPER,
    },
)
