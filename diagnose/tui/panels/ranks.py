"""Ranks side by side: live, who keeps up; once traced, where each one's step goes and whom it waits for."""

from __future__ import annotations

from rich.text import Text

from diagnose.report.sections.side_by_side import live_lines, paces, spread_words, traced_lines
from diagnose.report.style.styled_text import styled
from diagnose.session import State
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.panel import Panel, spread
from diagnose.units import format_ns

_TALL = 34
_MOST, _MOST_LOW = 8, 2


def has_ranks(state: State) -> bool:
    """Whether there is more than one rank to show."""
    return bool(_lines(state, 80, 2, True))


class RankPanel(Panel):
    """A title and a line a rank; nothing for a job of one."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - as many lines as there are ranks
        most = _MOST if self.app.size.height >= _TALL else _MOST_LOW
        lines = _lines(self.state, width, most, not self.app.no_color)
        if not lines:
            return []
        return [spread(styled("Ranks side by side", "bold"), styled(_beside(self.state), FAINT), width), *lines]


def _lines(state: State, width: int, most: int, solid: bool) -> list[Text]:
    traced = traced_lines(state.diagnosis, width, most, solid) if state.diagnosis else []
    return (traced or live_lines(state, width, most))[: most + (most > _MOST_LOW)]


def _beside(state: State) -> str:
    words = spread_words(state.diagnosis) if state.diagnosis else ""
    if words:
        return words
    behind = [one.behind_ns for one in paces(state.steps)]
    return f"{len(behind)} ranks, whose steps end {format_ns(max(behind))} apart"
