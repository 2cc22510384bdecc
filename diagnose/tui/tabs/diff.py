"""The fourth tab: what would be written to the user's files."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult

from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT, GOOD
from diagnose.session import State
from diagnose.tui.drawing.diff_lines import diff_lines
from diagnose.tui.tabs.fixes import fixes_of
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.lines import Lines
from diagnose.tui.widgets.panel import Panel


def shown_diff(state: State) -> tuple[str, str]:
    """The diff to show and the words above it; empty without one."""
    if state.patch is not None and state.patch.diff:
        return state.patch.diff, f"accepted: {', '.join(state.patch.fixers)}"
    for fix in reversed(fixes_of(state)):
        if fix.diff:
            return fix.diff, f"{fix.look.label}: {fix.name}"
    return "", ""


class DiffTitle(Panel):
    """The title of a diff: its fix, and whether it was accepted."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - one line, whatever the height
        diff, words = shown_diff(self.state)
        if not diff:
            return []
        accepted = self.state.patch is not None and bool(self.state.patch.diff)
        line = styled("✓ " if accepted else "· ", GOOD if accepted else FAINT).append(words, "bold")
        still = "not kept" if self.state.ended is not None else "not accepted yet"
        parts = (
            (("   diagnose apply", ACCENT), (" writes it to your files", FAINT))
            if accepted
            else ((f"   {still}", FAINT),)
        )
        for tail, style in parts:
            if line.cell_len + len(tail) > width:
                break
            line.append(tail, style)
        line.truncate(width, overflow="ellipsis")
        return [line, Text()]


class DiffPane(Tab):
    """The tab."""

    def __init__(self) -> None:
        super().__init__("diff")
        self._drawn: tuple[str, int] | None = None

    def compose(self) -> ComposeResult:
        yield DiffTitle(id="diff-title").data_bind(DiffPane.state)
        yield Lines(id="diff-lines")

    def watch_state(self) -> None:
        """Draw it anew where it changed."""
        if self.is_mounted:
            self.refill()

    def fill(self) -> None:
        """Draw it."""
        diff, _ = shown_diff(self.state)
        width = max(self.room.width - 1, 20)
        if self._drawn == (diff, width):
            return
        self._drawn = (diff, width)
        self.query_one(Lines).show(diff_lines(diff, width) if diff else self._empty(width))

    def _empty(self, width: int) -> list[Text]:
        words = "Nothing to write: a fix gets here when a measurement on your own program shows that it helps."
        return [styled("No diff", "bold"), *(styled(line, FAINT) for line in wrap(words, width))]
