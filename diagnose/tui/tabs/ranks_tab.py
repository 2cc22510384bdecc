"""The tab of the ranks: all side by side, and of the one under the cursor where its step goes and whom it awaits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import OptionList

from diagnose.model import RankAccounting
from diagnose.report.sections.side_by_side import Pace, live_lines, paces, traced_lines
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.step_bar import bar, legend, slices
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import SEVERITIES, named_count
from diagnose.report.wording.phrases import gain
from diagnose.session import State
from diagnose.tui.drawing.finding_line import finding_lines
from diagnose.tui.drawing.gauges import gauges
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.lines import Lines
from diagnose.units import format_ns, format_share

_NARROWEST = 20
_NAME, _FIGURE = 13, 9  # columns


def rank_numbers(state: State) -> list[int | None]:
    """The ranks that there is something to say of, as far as they were traced, else as far as their steps were seen."""
    traced = [one.rank for one in state.diagnosis.per_rank if one.steps.count] if state.diagnosis else []
    found: list[int | None] = traced if len(traced) > 1 else [one.rank for one in paces(state.steps)]
    return found if len(found) > 1 else []


class RanksTab(Tab):
    """The tab."""

    def __init__(self) -> None:
        super().__init__("ranks")

    def compose(self) -> ComposeResult:
        yield Choices(id="rank-list")
        yield Lines(id="rank-detail")

    def watch_state(self) -> None:
        """Live figures move with every step."""
        if self.is_mounted:
            self.refill()

    @on(OptionList.OptionHighlighted, "#rank-list")
    def _moved(self) -> None:
        self._detail()

    @on(OptionList.OptionSelected, "#rank-list")
    def _entered(self) -> None:
        self.query_one("#rank-detail", Lines).focus()

    def fill(self) -> None:
        """Draw it."""
        state, numbers = self.state, rank_numbers(self.state)
        scrolls = len(numbers) > self.room.height // 2  # the bar takes a column
        width, most, solid = max(self.room.width - scrolls, _NARROWEST), len(numbers), not self.app.no_color
        traced = traced_lines(state.diagnosis, width, most, solid) if state.diagnosis else []
        lines = traced or live_lines(state, width, most)
        self.query_one(Choices).show([(str(at), line) for at, line in enumerate(lines[: len(numbers)])])
        self._detail()

    def _detail(self) -> None:
        choices, numbers = self.query_one(Choices), rank_numbers(self.state)
        at = int(choices.key) if choices.key is not None else 0
        width = max(self.room.width - 1, _NARROWEST)
        lines = list(self._about(numbers[at], width)) if at < len(numbers) else []
        self.query_one("#rank-detail", Lines).show(lines)

    def _about(self, rank: int | None, width: int) -> Iterator[Text]:
        """Everything that is known of one rank."""
        diagnosis = self.state.diagnosis
        traced = [one for one in diagnosis.per_rank if one.rank == rank and one.steps.count] if diagnosis else []
        for one in traced:
            yield from self._traced(one, width)
        if rank is not None:
            pace = next((one for one in paces(self.state.steps) if one.rank == rank), None)
            if pace is not None:
                yield from _paced(pace, width)
            yield from gauges(self.state, rank, width)
        found = [finding for finding in diagnosis.findings if finding.rank == rank] if diagnosis else []
        root = self.state.started.cwd if self.state.started else None
        for finding, line in zip(found, finding_lines(found, root, width), strict=True):
            yield Text()
            yield line
            yield styled(f"{SEVERITIES[finding.severity].mark} gives back {gain(finding)}", FAINT)

    def _traced(self, one: RankAccounting, width: int) -> Iterator[Text]:
        solid, count = not self.app.no_color, one.steps.count
        parts = [replace(part, ns=round(part.ns / count)) for part in slices(one.accounting)]
        mean_ns = one.steps.total_ns / count
        name = "This rank" if one.rank is None else f"Rank {one.rank}"
        line = styled(name, "bold").append(f"  {format_ns(mean_ns)} a step", "bold")
        yield line.append(f", mean of {named_count(count, 'traced step')}", FAINT)
        yield bar(parts, width, solid)
        yield from legend(parts, width, solid)
        yield Text()
        for wait in one.waits:
            about = f"of each step for rank {wait.rank}, {format_share(wait.time_ns / mean_ns)} of it"
            yield from _named("waits", format_ns(wait.time_ns), about, width)
        waited_ns = self._waited_for(one.rank)
        if waited_ns:
            about = "of each step, by the rank that waits longest"
            yield from _named("waited for", format_ns(waited_ns), about, width)

    def _waited_for(self, rank: int | None) -> int:
        """Return what the others wait for a rank, at most, per step."""
        others = self.state.diagnosis.per_rank if self.state.diagnosis else ()
        return max((wait.time_ns for one in others for wait in one.waits if wait.rank == rank), default=0)


def _paced(pace: Pace, width: int) -> Iterator[Text]:
    behind = f"ends {format_ns(pace.behind_ns)} after the first" if pace.behind_ns else "ends first"
    waited = f", {format_share(pace.input_share)} of it in the loader" if pace.input_share else ""
    return _named("while it ran", format_ns(pace.step_ns), f"median step{waited}, {behind}", width)


def _named(name: str, figure: str, about: str, width: int) -> Iterator[Text]:
    """A name, a figure, and beside them words in as many lines as they take."""
    first, *more = wrap(about, width - _NAME - _FIGURE - 1)
    yield styled(f"{name:<{_NAME}}", FAINT).append(f"{figure:>{_FIGURE}} ", "bold").append(first, FAINT)
    for line in more:
        yield styled(" " * (_NAME + _FIGURE + 1)).append(line, FAINT)
