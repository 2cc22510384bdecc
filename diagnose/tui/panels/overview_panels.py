"""The steps on the first tab: one step span by span, and the kernels or operators that take most."""

from __future__ import annotations

from rich.text import Text

from diagnose.model import KernelRow, OperatorRow, StepProfile
from diagnose.report.sections.memory import headline, memory_lines, title
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.paths import clip, place
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.styled_text import styled
from diagnose.report.wording.run_title import of_rank
from diagnose.tui.drawing.lane_drawing import Window, axis_line, lane_lines, lane_name
from diagnose.tui.drawing.output_lines import output_lines
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.panel import Panel, spread
from diagnose.units import format_ns, format_share

_NAMES = 20
_MOST_LANES = 4
_OUTPUT_LINES, _OUTPUT_TAIL = 8, 4_000  # lines, characters
_FEWEST_COSTLY = 3
_LOW = 40
"""Rows of the terminal below which lanes are one row high."""


class LanesPanel(Panel):
    """The middle step of the timeline."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - as many lines as lanes
        profile = self.state.profile
        timeline = profile.timeline if profile else None
        if timeline is None:
            return []
        step = (len(timeline.steps_ns) - 2) // 2
        begin, end = timeline.steps_ns[step], timeline.steps_ns[step + 1]
        names = _NAMES if width >= 60 else 0
        window = Window(begin, max(end - begin, 1), max(width - names, 1))
        beside = styled(f"step {timeline.first_step + step + 1}{of_rank(self.state)}, ", FAINT)
        beside.append(format_ns(end - begin), "bold")
        lines = [spread(styled("One step in time", "bold"), beside, width)]
        lines.append(styled(" " * names).append_text(axis_line(window, begin)))
        high = 2 if self.app.size.height >= _LOW else 1
        shown = [lane for lane in timeline.lanes if lane.kind != "host"][:_MOST_LANES]
        for lane in shown or timeline.lanes[:_MOST_LANES]:
            for row, drawn in enumerate(lane_lines(lane, timeline, window, high, plain=self.app.no_color)):
                label = lane_name(lane, names - 1) if names and row == 0 else ""
                lines.append(styled(f"{label:<{names}}", FAINT).append_text(drawn))
        return lines


class CostliestPanel(Panel):
    """The kernels that take most of a step; without a device, the operators."""

    def draw(self, width: int, height: int | None) -> list[Text]:
        profile = self.state.profile
        if profile is None or not (profile.kernels or profile.operators):
            return []
        rows = (height or 0) - 2  # an empty line, and the title
        if rows < _FEWEST_COSTLY:
            return []
        root = self.state.started.cwd if self.state.started else None
        lines = [_kernel_line(row, profile) for row in profile.kernels[:rows]]
        lines = lines or [_operator_line(row, profile, root) for row in profile.operators[:rows]]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        title = styled(f"{'Kernels' if profile.kernels else 'Operators'} that take most", "bold")
        return [Text(), spread(title, styled(f"of each step{of_rank(self.state)}", FAINT), width), *lines]


def _kernel_line(row: KernelRow, profile: StepProfile) -> Text:
    look = span_look(row.kind)
    line = styled("■ ", look.colour).append_text(_taken(row.total_ns, profile))
    line.append(f"{clip(look.label, 14):<15}", FAINT).append(short_kernel(row.name))
    return line.append(f"  {row.operator}" if row.operator else "", FAINT)


def _operator_line(row: OperatorRow, profile: StepProfile, root: str | None) -> Text:
    line = _taken(row.host_ns, profile).append(row.name)
    return line.append(f"  {place(row.place, root)}" if row.place else "", FAINT)


def _taken(total_ns: int, profile: StepProfile) -> Text:
    """Return the time of a mean step that something takes, and its share."""
    time = styled(f"{format_ns(total_ns / max(profile.step_count, 1)):>8} ")
    return time.append(f"{format_share(total_ns / profile.total_ns if profile.total_ns else 0.0):>6}  ", FAINT)


class OutputPanel(Panel):
    """The program's last lines of output."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - a few lines, whatever the height
        last = output_lines(self.state.output[-_OUTPUT_TAIL:])[-_OUTPUT_LINES:]
        for line in last:
            line.truncate(width, overflow="ellipsis")
        return [styled("Last output", "bold"), *last] if last else []


class MemoryPanel(Panel):
    """The contents of memory, for a recording that has no steps to speak of."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - as many lines as it has
        peak = self.state.diagnosis.memory if self.state.diagnosis else None
        if peak is None:
            return []
        root = self.state.started.cwd if self.state.started else None
        rows = max(min(self.app.size.height // 4, 14), 6)
        return [
            styled(title(peak), "bold"),
            styled(clip(headline(peak), width), FAINT),
            Text(),
            *memory_lines(peak, root, width, rows=rows),
        ]
