"""A program's output as lines of a terminal."""

from __future__ import annotations

from rich.text import Text

_TAB = 8


def output_lines(output: str) -> list[Text]:
    """Lines as a terminal would leave them: colours kept, and of a line rewritten by carriage returns the last form."""
    lines = output.replace("\r\n", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [_line(line) for line in lines]


def _line(line: str) -> Text:
    rewritten = line.rstrip("\r").rpartition("\r")[2]
    return Text.from_ansi(rewritten.expandtabs(_TAB))
