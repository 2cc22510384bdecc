"""The first two lines: whose run this is, what it is doing, for how long; and the tabs."""

from __future__ import annotations

from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive

from diagnose.errors import Cancelled
from diagnose.model import TOGETHER
from diagnose.report.sections.verdict_table import is_idle
from diagnose.report.style.paths import clip, clipped_path
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT, BAD, GOOD, how_it_ended
from diagnose.report.wording.run_title import sources
from diagnose.session import State
from diagnose.tui.tabs.present import SHORT, TABS, present
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.panel import Panel, spread
from diagnose.units import NS_PER_S

INTERRUPTED = Cancelled.exit_code
_LEAST_NAME = 12  # columns


def elapsed(state: State, now_ns: int | None) -> str:
    """`0:42`, `1:02:03`: since the start until the end, or until `now_ns`. Empty where either is unknown."""
    end_ns = state.ended.at_ns if state.ended else now_ns
    if state.started is None or end_ns is None:
        return ""
    seconds = max(end_ns - state.started.at_ns, 0) // NS_PER_S
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def phase(state: State) -> tuple[str, str, str]:
    """Return the run's phase: a mark, words, and their colour."""
    if state.ended is not None:
        if state.ended.exit_code == 0:
            return "✓", "finished", GOOD
        if state.ended.exit_code == INTERRUPTED:
            return "–", "interrupted", ACCENT
        code = state.ended.returncode or state.ended.exit_code
        return "✗", f"ended with {how_it_ended(code)}", BAD
    if state.phase is not None:
        words = f"{state.phase.phase}: {state.phase.detail}" if state.phase.detail else state.phase.phase
        return "●", words, ACCENT
    return ("✓", "diagnosed", GOOD) if state.diagnosis else ("●", "starting", ACCENT)


class RunHeader(Panel):
    """Program at the left; phase and elapsed time at the right."""

    now_ns: reactive[int | None] = reactive(None)

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - one line, whatever the height
        state = self.state
        mark, words, colour = phase(state)
        since = elapsed(state, self.now_ns)
        left = styled("diagnose", f"bold {ACCENT}")
        name = state.started.program.removeprefix("-- ") if state.started else _source(state)
        taken = len(mark) + len(words) + len(since) + 6
        if name and len(left) + 2 + len(name) + taken <= width:
            left.append("  ").append(name, "bold")
        elif name:
            left = styled(name if state.started else clipped_path(name, max(width - taken, _LEAST_NAME)), "bold")
        # What the run does comes before the program's arguments. The mark, and two columns around each.
        room = width - min(len(left), _LEAST_NAME) - len(since) - 6
        right = styled(f"{mark} ", colour).append(clip(words, max(room, 8)))
        if since:
            right.append(f"  {since}", "bold")
        return [spread(left, right, width)]


def _source(state: State) -> str:
    return sources(state.diagnosis) if state.diagnosis else ""


class TabStrip(Panel):
    """The tabs that have something to say, with their keys and how much there is behind each."""

    active: reactive[str] = reactive("overview")

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - one line, whatever the height
        tabs, between = self._tabs(width)
        line = Text(" " * between).join(tabs.values())
        line.no_wrap, line.end = True, ""
        line.truncate(width)
        return [line]

    def on_click(self, event: Click) -> None:
        """Tell which tab lies under the pointer."""
        position = event.x - self.styles.padding.left
        tabs, between = self._tabs(self.size.width)
        for name, tab in tabs.items():
            if 0 <= position < len(tab):
                self.post_message(self.Chosen(name))
            position -= len(tab) + between

    def _tabs(self, width: int) -> tuple[dict[str, Text], int]:
        """Return as much of each tab's title as `width` holds: without counts where those do not fit, then with short
        names.
        """
        for between, with_counts, short in ((3, True, False), (2, True, False), (2, False, False), (2, False, True)):
            tabs = self._drawn(with_counts, short)
            if sum(len(tab) + between for tab in tabs.values()) - between <= width:
                break
        return tabs, between

    def _drawn(self, with_counts: bool, short: bool) -> dict[str, Text]:
        counts = _counts(self.state) if with_counts else {}
        tabs = {}
        for number, name in enumerate(present(self.state), 1):
            active = name == self.active
            label = SHORT.get(name, TABS[name]) if short and not active else TABS[name]
            tab = styled(f"{number} ", ACCENT if active else FAINT).append(label, "bold underline" if active else FAINT)
            tabs[name] = tab.append(f" {counts[name]}" if counts.get(name) else "", FAINT)
        return tabs


def _counts(state: State) -> dict[str, str]:
    findings = len(state.diagnosis.findings) if state.diagnosis else 0
    kept = len(state.patch.fixers) if state.patch else 0
    judged = {verdict.fixer for verdict in state.verdicts if not is_idle(verdict)}
    names = {trial.started.fixer for trial in state.trials} | judged
    tried = len(names - {TOGETHER})
    changed = state.patch.diff.splitlines() if state.patch else []
    added = sum(line.startswith("+") and not line.startswith("+++") for line in changed)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in changed)
    return {
        "findings": str(findings) if findings else "",
        "fixes": f"{kept}/{tried}" if state.patch else str(tried) if tried else "",
        "diff": f"+{added} −{removed}" if changed else "",
    }
