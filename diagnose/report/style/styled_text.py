"""Building lines of styled text, piece by piece, and printing them."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text

from diagnose.report.style.vocabulary import MUTED


def styled(words: str, style: str = "") -> Text:
    """A line that begins with `words`. Only they have the style: what is appended to it has its own."""
    return Text(no_wrap=True, end="").append(words, style)


def heading(words: str, beside: str, width: int) -> Text:
    """The first line of a section; what stands beside it is left out where `width` has no room for it."""
    line = styled(words, "bold")
    return line.append(f"   {beside}", MUTED) if beside and len(words) + len(beside) + 3 <= width else line


def print_sections(sections: Sequence[Sequence[Text]], colour: bool) -> str:
    """Sections with an empty line between them; those without lines are left out. Colour is ANSI escapes."""
    lines = [line for section in sections if section for line in (*section, Text())][:-1]
    if not colour:
        return "".join(f"{line.plain.rstrip()}\n" for line in lines)
    file = StringIO()
    console = Console(file=file, width=1000, color_system="256", force_terminal=True, no_color=False, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True, end="\n")
    return file.getvalue()
