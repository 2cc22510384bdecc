"""Lines of the user's source around a place, highlighted, with the place marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from diagnose.model import Place
from diagnose.report.style.styled_text import styled
from diagnose.tui.theme import FAINT, LINE

ReadSource = Callable[[str], str | None]
STYLE = "nord"
AROUND = 3
"""Lines shown before and after a place."""
_MARKED = "#2a3440"


def read_source(file: str) -> str | None:
    """The text of a source file; None where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def context(where: Place, read: ReadSource, width: int, around: int) -> list[Text]:
    """`around` lines before and after the place; only its own line, as recorded, where the file cannot be read."""
    source = read(where.file)
    if source is None or not 0 < where.line <= source.count("\n") + 1:
        return _numbered({where.line: _highlight(where.code or "")}, where.line, width) if where.code else []
    # A file that changed since the run would show a wrong line: the recorded text decides.
    lines = source.split("\n")
    if where.code and lines[where.line - 1].strip() != where.code.strip():
        return _numbered({where.line: _highlight(where.code)}, where.line, width)
    coloured = _highlight(source).split("\n", allow_blank=True)
    first, last = max(where.line - around, 1), min(where.line + around, len(lines))
    shown = [line for line in lines[first - 1 : last] if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in shown), default=0)
    numbered = {number: coloured[number - 1][indent:] for number in range(first, last + 1)}
    return _numbered(numbered, where.line, width)


def _highlight(code: str) -> Text:
    """Code in the colours of its tokens, without the theme's own background."""
    text = Syntax("", "python", theme=STYLE).highlight(code)
    plain = styled(text.plain)
    for span in text.spans:
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        plain.stylize(Style(color=style.color, italic=style.italic), span.start, span.end)
    return plain


def _numbered(lines: dict[int, Text], marked: int, width: int) -> list[Text]:
    digits = len(str(max(lines)))
    shown = []
    for number, code in lines.items():
        here = number == marked
        line = styled("▌" if here else " ", "bold #e3a13b")
        line.append(f"{number:>{digits}} ", "bold" if here else FAINT).append("│ ", LINE)
        body = code.copy()
        body.rstrip()
        line.append_text(body)
        line.truncate(width, overflow="ellipsis")
        if here:
            line.append(" " * max(width - line.cell_len, 0))
            line.stylize_before(f"on {_MARKED}")
        shown.append(line)
    return shown
