"""Step time as it runs: the chart, its figures, and what the device and the host are doing meanwhile."""

from __future__ import annotations

from statistics import median_low

from rich.text import Text

from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import BAD, named_count
from diagnose.session import RankSteps, State
from diagnose.tui.drawing.chart import Column, step_chart
from diagnose.tui.drawing.gauges import gauge_histories, gauges
from diagnose.tui.drawing.output_lines import output_lines
from diagnose.tui.theme import FAINT, STEP, WAIT
from diagnose.tui.widgets.panel import Panel, centred, spread
from diagnose.units import format_ns, format_share

_LEAST_CHART = 3
_TALL = 34
"""Rows of the terminal from which gauges show their history."""
_LAST_LINES = 8
_RECENT = 500
"""Figures are of the newest steps: early ones, before the run was steady, say little."""


def columns_of(steps: RankSteps) -> list[Column]:
    """Return the whole time and the loader time of each step that has a step before it."""
    return [Column(whole, waited) for whole, waited in zip(steps.lengths_ns, steps.input_ns[1:], strict=False)]


class StepPanel(Panel):
    """The live half of the overview."""

    def draw(self, width: int, height: int | None) -> list[Text]:
        state = self.state
        rank = min(state.steps, default=None)
        columns = columns_of(state.steps[rank].newest(_RECENT + 1)) if rank is not None else []
        if (rank is None or not columns) and state.ended is not None and state.diagnosis is None:
            return self._lost(width)
        if rank is None or not columns:
            return [styled("Step time", "bold"), *centred(self._empty(width), width, (height or 3) - 1)]
        count = state.steps[rank].count
        title, figures = _title(state, rank), _figures(columns, count)
        if len(title) + len(figures) + 2 > width:
            figures = _figures(columns, count, brief=True)
        head = spread(title, figures, width)
        tall = self.app.size.height >= _TALL
        counters = gauge_histories(state, rank, width) if tall else gauges(state, rank, width)
        room = max((height or 0) - 1 - len(counters), _LEAST_CHART)
        return [head, *step_chart(columns, width, room, plain=self.app.no_color), *counters]

    def _lost(self, width: int) -> list[Text]:
        """Return what is left to say of a run that ended without a step: why, and its last words."""
        ended, last = self.state.ended, output_lines(self.state.output)[-_LAST_LINES:]
        words = wrap((ended.message if ended else "") or "It ended before its first training step.", width)
        lines = [styled(line, BAD) for line in words]
        return [*lines, Text(), styled("Its last output", "bold"), *last] if last else lines

    def _empty(self, width: int) -> list[Text]:
        state = self.state
        if state.diagnosis is not None:
            return [styled("No live steps: this is a diagnosis of recordings.", FAINT)]
        return [
            styled("Waiting for the first training step …"),
            *(styled(line, FAINT) for line in wrap("Imports, data and compilation come first.", width)),
        ]


def _title(state: State, rank: int) -> Text:
    title = styled("Step time", "bold")
    if len(state.steps) > 1:
        title.append(f"  rank {rank} of {len(state.steps)}", FAINT)
    return title


def _figures(columns: list[Column], count: int, *, brief: bool = False) -> Text:
    middle = median_low(column.whole_ns for column in columns)
    line = styled(format_ns(middle), "bold").append(" median   ", FAINT)
    if not brief:
        line.append(format_ns(columns[-1].whole_ns)).append(" last   ", FAINT)
    whole, waited = sum(column.whole_ns for column in columns), sum(column.input_ns for column in columns)
    if waited > 0:
        line.append("■ ", WAIT).append(format_share(waited / whole)).append(
            " input   " if brief else " input wait   ", FAINT
        )
    else:
        line.append("■ ", STEP)
    return line.append(f"{count:,}").append(named_count(count, "step").removeprefix(f"{count:,}"), FAINT)
