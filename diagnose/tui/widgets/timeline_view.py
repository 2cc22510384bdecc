"""The timeline: lanes over time that zoom and pan, with a cursor that says what runs there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.reactive import reactive
from textual.widget import Widget

from diagnose.model import Finding, Lane, Timeline
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT, SEVERITIES
from diagnose.report.wording.phrases import gain
from diagnose.report.wording.run_title import of_rank
from diagnose.session import State
from diagnose.tui.drawing.lane_drawing import Window, axis_line, lane_lines, lane_name, shown_label, spans_in, step_line
from diagnose.tui.theme import FAINT, INK
from diagnose.tui.widgets.panel import spread
from diagnose.units import format_ns, format_share

_NAMES, _FEWEST_NAMES = 26, 12
_CLOSEST_NS = 1_000
"""The window is never shorter: what is recorded is known to the microsecond at best."""
_ABOVE = 3
"""Lines above the lanes."""
_HIGHEST = 4
"""Rows of a lane."""
_AROUND = 3.0
"""A finding is shown with so many times its own length."""


class TimelineView(Widget, can_focus=True):
    """All lanes, the cursor, and what lies under it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Move", key_display="←→"),
        Binding("right,l", "move(1)", show=False),
        Binding("shift+left,H", "pan(-1)", show=False),
        Binding("shift+right,L", "pan(1)", show=False),
        Binding("up,k", "lane(-1)", show=False),
        Binding("down,j", "lane(1)", show=False),
        Binding("plus,equals_sign,i", "zoom(0.5)", "Zoom", key_display="+−"),
        Binding("minus,o", "zoom(2)", show=False),
        Binding("0", "whole", "All", key_display="0"),
        Binding("left_square_bracket", "step(-1)", "Step", key_display="[ ]"),
        Binding("right_square_bracket", "step(1)", show=False),
        Binding("w", "span(1)", "Next span", key_display="w b"),
        Binding("b", "span(-1)", show=False),
        Binding("n", "finding(1)", "Finding", key_display="n N"),
        Binding("N,shift+n", "finding(-1)", show=False),
    ]

    state: reactive[State] = reactive(State, always_update=True)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._begin_ns = 0.0
        self._length_ns = 0.0
        self._cursor_ns = 0.0
        self._lane = 0
        self.finding: int | None = None
        """The finding that is shown."""
        self._high = 1

    @property
    def timeline(self) -> Timeline | None:
        """The timeline that is shown."""
        return self.state.profile.timeline if self.state.profile else None

    @property
    def shown_ns(self) -> tuple[int, int]:
        """Begin and end of the stretch that is shown, from the begin of the timeline."""
        return round(self._begin_ns), round(self._begin_ns + self._length_ns)

    def watch_state(self, before: State, state: State) -> None:
        """Another recording is shown from its begin."""
        if before.profile is not state.profile and self.timeline is not None:
            lanes = self.timeline.lanes
            self._lane = next((number for number, lane in enumerate(lanes) if lane.kind == "device"), 0)
            self.action_whole()

    def render(self) -> Text:
        """The lines, as Textual wants them."""
        lines = self._lines(self.size.width, self.size.height)
        return Text("\n", no_wrap=True, end="").join(lines[: self.size.height])

    def show(self, finding: Finding, index: int) -> bool:
        """Bring a finding's example into view; False where the timeline does not have it."""
        return finding.example_ns is not None and self.show_span(finding.example_ns, index)

    def show_span(self, span: tuple[int, int], index: int, lane: str = "") -> bool:
        """Bring a stretch of a finding's time into view, on the recording's clock, and choose the first lane of the
        stream or thread `lane`; False where the timeline does not have that stretch.
        """
        timeline = self.timeline
        if timeline is None:
            return False
        begin, end = span[0] - timeline.begin_ns, span[1] - timeline.begin_ns
        if begin < 0 or end > timeline.steps_ns[-1]:
            return False
        self.finding = index
        found = first_lane((one.name for one in timeline.lanes), lane)
        self._lane = self._lane if found is None else found
        self._cursor_ns = (begin + end) / 2
        length = max((end - begin) * _AROUND, _CLOSEST_NS)
        self._look_at(self._cursor_ns - length / 2, length)
        return True

    def show_longest(self, name: str) -> bool:
        """Bring the longest call of a kernel or an operator into view; False where the timeline tells none apart."""
        timeline = self.timeline
        lanes = timeline.lanes if timeline is not None else ()
        found = [
            (length, start, number)
            for number, lane in enumerate(lanes)
            for start, length, label in zip(lane.start_ns, lane.length_ns, lane.label, strict=True)
            if timeline is not None and timeline.labels[label] == name
        ]
        if not found:
            return False
        length, start, self._lane = max(found)
        self.finding, self._cursor_ns = None, start + length / 2
        window = max(length * _AROUND, _CLOSEST_NS)
        self._look_at(self._cursor_ns - window / 2, window)
        return True

    def action_whole(self) -> None:
        """Show all of it."""
        if self.timeline is not None:
            self.finding = None
            self._look_at(0.0, float(self.timeline.steps_ns[-1]))

    def action_zoom(self, factor: float) -> None:
        """Nearer or farther, the cursor staying where it is."""
        if not self._length_ns:
            return
        part = (self._cursor_ns - self._begin_ns) / self._length_ns
        length = self._length_ns * factor
        self._look_at(self._cursor_ns - part * max(length, _CLOSEST_NS), length)

    def action_pan(self, by: int) -> None:
        """Half of the window to a side."""
        self._cursor_ns += by * self._length_ns / 2
        self._look_at(self._begin_ns + by * self._length_ns / 2, self._length_ns)

    def action_move(self, by: int) -> None:
        """The cursor, by one cell."""
        self._cursor_ns += by * self._length_ns / max(self._cells(self.size.width), 1)
        self._follow()

    def action_lane(self, by: int) -> None:
        """Another lane."""
        if self.timeline is not None and self.timeline.lanes:
            self._lane = (self._lane + by) % len(self.timeline.lanes)
            self.refresh()

    def action_step(self, by: int) -> None:
        """The next step, filling the window."""
        timeline = self.timeline
        if timeline is None:
            return
        last = len(timeline.steps_ns) - 2
        now = min(max(bisect_right(timeline.steps_ns, self._cursor_ns) - 1, 0), last)
        filled = self._length_ns <= 1.05 * (timeline.steps_ns[now + 1] - timeline.steps_ns[now])
        wanted = min(max(now + by, 0), last) if filled else now
        begin, end = timeline.steps_ns[wanted], timeline.steps_ns[wanted + 1]
        self._cursor_ns = float(begin)
        self._look_at(begin, end - begin)

    def action_span(self, by: int) -> None:
        """The next span of the lane."""
        timeline = self.timeline
        if timeline is None or not timeline.lanes:
            return
        lane = timeline.lanes[self._lane]
        if not lane.start_ns:
            return
        now = bisect_right(lane.start_ns, self._cursor_ns) - 1
        wanted = min(max(now + by, 0), len(lane.start_ns) - 1)
        # A span in which the cursor stands is found again whatever a float has lost.
        self._cursor_ns = lane.start_ns[wanted] + min(lane.length_ns[wanted] / 2, 1.0)
        self._follow()

    def action_finding(self, by: int) -> None:
        """The next finding that has an example here."""
        findings = self.state.diagnosis.findings if self.state.diagnosis else ()
        start = (-1 if by > 0 else 0) if self.finding is None else self.finding
        for number in range(1, len(findings) + 1):
            index = (start + by * number) % len(findings)
            if self.show(findings[index], index):
                return
        self.notify("No finding has its time in these steps.", timeout=2)

    def on_click(self, event: Click) -> None:
        """The cursor goes where one clicks."""
        names = self._names(self.size.width)
        if event.x >= names and self.timeline is not None:
            self._cursor_ns = self._window(self.size.width).moment(event.x - names + 0.5)
            lane = (event.y - _ABOVE) // self._high
            if 0 <= lane < len(self.timeline.lanes):
                self._lane = lane
            self.refresh()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel zooms."""
        event.stop()
        self.action_zoom(0.7)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel zooms."""
        event.stop()
        self.action_zoom(1 / 0.7)

    def _look_at(self, begin_ns: float, length_ns: float) -> None:
        assert self.timeline is not None
        whole = float(max(self.timeline.steps_ns[-1], 1))
        self._length_ns = min(max(length_ns, min(_CLOSEST_NS, whole)), whole)
        self._begin_ns = min(max(begin_ns, 0.0), whole - self._length_ns)
        self._cursor_ns = min(max(self._cursor_ns, self._begin_ns), self._begin_ns + self._length_ns)
        self.refresh()

    def _follow(self) -> None:
        """Move the window where the cursor left it."""
        if self.timeline is None:
            return
        self._cursor_ns = min(max(self._cursor_ns, 0.0), float(self.timeline.steps_ns[-1]))
        begin = self._begin_ns
        if self._cursor_ns < begin:
            begin = self._cursor_ns
        elif self._cursor_ns > begin + self._length_ns:
            begin = self._cursor_ns - self._length_ns
        self._look_at(begin, self._length_ns)

    def _names(self, width: int) -> int:
        return _NAMES if width >= 100 else max(min(_NAMES, width // 4), _FEWEST_NAMES)

    def _cells(self, width: int) -> int:
        return max(width - self._names(width), 1)

    def _window(self, width: int) -> Window:
        return Window(self._begin_ns, max(self._length_ns, 1.0), self._cells(width))

    def _lines(self, width: int, height: int) -> list[Text]:
        timeline, profile = self.timeline, self.state.profile
        if timeline is None or profile is None or not timeline.lanes:
            return [styled("No timeline.", FAINT)]
        window, names = self._window(width), self._names(width)
        step = self._step(timeline)
        lead = styled(" " * names)
        lines = [
            self._head(timeline, width),
            lead.copy().append_text(axis_line(window, timeline.steps_ns[step])),
            lead.copy().append_text(step_line(timeline, window, timeline.first_step)),
        ]
        legend = self._legend(timeline, window, width)
        high = self._high = self._lane_height(timeline, height - len(lines) - len(legend))
        cursor = names + min(max(window.cell(self._cursor_ns), 0), window.cells - 1)
        for number, lane in enumerate(timeline.lanes):
            mark, style = ("▸", f"bold {ACCENT}") if number == self._lane else (" ", FAINT)
            drawn = lane_lines(lane, timeline, window, high, plain=self.app.no_color)
            for row, line in enumerate(drawn):
                named = f"{mark}{lane_name(lane, names - 2)}" if row == (high - 1) // 2 else ""
                whole = styled(f"{named:<{names}}", style).append_text(line)
                if whole.cell_len > cursor:
                    whole.stylize("reverse", cursor, cursor + 1)
                lines.append(whole)
        room = height - len(lines) - len(legend)
        about = [*self._about_finding(width), *self._under_cursor(timeline, width)]
        if room > len(about) + 3:
            about = [Text(), *about, Text(), *self._around(timeline, width, room - len(about) - 4), Text()]
        return [*lines, *about, *legend]

    def _lane_height(self, timeline: Timeline, room: int) -> int:
        """Rows of each lane: half of the room is for what the spans are."""
        return min(max(room // 2 // max(len(timeline.lanes), 1), 1), _HIGHEST)

    def _around(self, timeline: Timeline, width: int, most: int) -> list[Text]:
        """The spans of the chosen lane from the cursor on, one a line: the rows of the trace."""
        lane = timeline.lanes[self._lane]
        first = max(bisect_right(lane.start_ns, self._cursor_ns) - 1, 0)
        names = self._names(width)
        lines = []
        for at in range(first, min(first + most, len(lane.start_ns))):
            begin = lane.start_ns[at]
            step = min(max(bisect_right(timeline.steps_ns, begin) - 1, 0), len(timeline.steps_ns) - 2)
            look = span_look(timeline.looks[lane.look[at]])
            line = styled(f"  {format_ns(begin - timeline.steps_ns[step]):>{min(names, 12) - 2}}", FAINT)
            line.append(f"{format_ns(lane.length_ns[at]):>10}  ").append("■ ", look.colour)
            line.append(shown_label(lane, timeline, at)).append("" if lane.kind == "gaps" else f"  {look.label}", FAINT)
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        return lines

    def _step(self, timeline: Timeline) -> int:
        """The step in which the cursor stands."""
        return min(max(bisect_right(timeline.steps_ns, self._cursor_ns) - 1, 0), len(timeline.steps_ns) - 2)

    def _head(self, timeline: Timeline, width: int) -> Text:
        step = self._step(timeline)
        left = styled(f"Step {timeline.first_step + step + 1}", "bold").append(of_rank(self.state))
        left.append(f"  cursor at {format_ns(self._cursor_ns - timeline.steps_ns[step])}", FAINT)
        right = styled(format_ns(self._length_ns), "bold").append(" shown", FAINT)
        if timeline.joined_below_ns:
            right.append(f", neighbours below {format_ns(timeline.joined_below_ns)} joined", FAINT)
        return spread(left, right, width)

    def _under_cursor(self, timeline: Timeline, width: int) -> list[Text]:
        """Return what the chosen lane does at the cursor."""
        lane = timeline.lanes[self._lane]
        at = _at(lane, self._cursor_ns)
        if at is None:
            return [styled("nothing", FAINT).append(f" at the cursor on {lane.name}", FAINT)]
        look = span_look(timeline.looks[lane.look[at]])
        line = styled("■ ", look.colour).append(shown_label(lane, timeline, at), "bold")
        line.append(f"  {format_ns(lane.length_ns[at])}")
        line.append("" if lane.kind == "gaps" else f"  {look.label}", FAINT)
        line.truncate(width, overflow="ellipsis")
        whole = timeline.labels[lane.label[at]]
        more = wrap(whole, width)[:2] if whole != shown_label(lane, timeline, at) and lane.kind == "device" else []
        return [line, *(styled(words, FAINT) for words in more)]

    def _about_finding(self, width: int) -> list[Text]:
        diagnosis = self.state.diagnosis
        if self.finding is None or diagnosis is None or self.finding >= len(diagnosis.findings):
            return []
        finding = diagnosis.findings[self.finding]
        look = SEVERITIES[finding.severity]
        line = styled(f"{look.mark} {finding.rule}  ", f"bold {look.colour}").append(gain(finding), FAINT)
        line.truncate(width, overflow="ellipsis")
        return [line]

    def _legend(self, timeline: Timeline, window: Window, width: int) -> list[Text]:
        """The kinds of spans in the window, each lane's kinds by their time."""
        spent: dict[str, int] = {}
        for lane in timeline.lanes:
            if lane.kind == "host":
                continue
            for at in spans_in(lane, window):
                kind = timeline.looks[lane.look[at]]
                begin = max(lane.start_ns[at], window.begin_ns)
                end = min(lane.start_ns[at] + lane.length_ns[at], window.begin_ns + window.length_ns)
                spent[kind] = spent.get(kind, 0) + max(int(end - begin), 0)
        entries = []
        for kind in sorted(spent, key=lambda kind: -spent[kind]):
            look = span_look(kind)
            mark = look.mark if self.app.no_color else "■"
            share = format_share(spent[kind] / max(window.length_ns, 1.0))
            entries.append(styled(f"{mark} ", look.colour).append(look.label, INK).append(f" {share}   ", FAINT))
        lines, line = [], styled("")
        for entry in entries:
            if len(line) + len(entry) > width and len(line):
                lines.append(line)
                line = styled("")
            line.append_text(entry)
        return [*lines, line]


def _at(lane: Lane, moment_ns: float) -> int | None:
    """The span that runs at a moment."""
    at = bisect_right(lane.start_ns, moment_ns) - 1
    return at if at >= 0 and moment_ns <= lane.start_ns[at] + lane.length_ns[at] else None


def first_lane(names: Iterable[str], lane: str) -> int | None:
    """Return the number of the first lane of a stream or thread: `stream 1, collectives` is one of `stream 1`, and
    `stream 13` is not. None where there is none."""
    return next(
        (at for at, name in enumerate(names) if name == lane or name.startswith((f"{lane},", f"{lane}:"))), None
    )
