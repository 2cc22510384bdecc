"""The application: tabs over one state. It shows what the feed says and decides nothing about the run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import ContentSwitcher, OptionList

from diagnose.model import Place
from diagnose.report.sections.profile_tables import kernel_table, operator_table
from diagnose.session import AnyEvent
from diagnose.tui.actions import Actions
from diagnose.tui.commands import SEARCHED
from diagnose.tui.drawing.code import ReadSource, read_source
from diagnose.tui.feed import Feed, StateChanged
from diagnose.tui.header import INTERRUPTED, RunHeader, TabStrip
from diagnose.tui.run_commands import RunCommands
from diagnose.tui.screens.help import HelpScreen
from diagnose.tui.screens.question import Question
from diagnose.tui.tabs.diff import DiffPane, shown_diff
from diagnose.tui.tabs.findings import Explain, FindingsPane
from diagnose.tui.tabs.fixes import FixesPane
from diagnose.tui.tabs.memory_tab import MemoryTab
from diagnose.tui.tabs.output import OutputPane
from diagnose.tui.tabs.overview import FirstFindings, Overview
from diagnose.tui.tabs.present import TABS, present
from diagnose.tui.tabs.profile_tab import ProfileTab
from diagnose.tui.tabs.ranks_tab import RanksTab
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.tabs.timeline_tab import TimelineTab
from diagnose.tui.terminal import TerminalDriver, heed_requests
from diagnose.tui.theme import THEME
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.key_bar import KeyBar
from diagnose.tui.widgets.lines import Lines
from diagnose.tui.widgets.search_bar import SearchBar
from diagnose.tui.widgets.sortable_table import SortableTable
from diagnose.tui.widgets.timeline_view import TimelineView

DRAW_EVERY_S = 1.0
"""Events of a run come ten times a second; drawing each takes a tenth of a core and 60 kB/s of a connection."""

Clock = Callable[[], int]
Follow = Callable[[Callable[[AnyEvent], None], threading.Event], None]
"""Tells events of a run in another process until it ends, or until the event is set."""
Work = Callable[[Callable[[AnyEvent], None]], int]


class FollowingEnded(Message):
    """The run in the other process has ended."""


class WorkEnded(Message):
    """The work has returned or raised."""


class DiagnoseApp(RunCommands):
    """Shows a feed. With `work` it runs that in a thread and ends with its exit code; without, it shows and waits."""

    CSS_PATH = "app.tcss"
    TITLE = "diagnose"
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (72, "-narrow"), (100, "-wide")]  # noqa: RUF012 - Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-middle"), (34, "-tall")]  # noqa: RUF012 - Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "leave", "Quit", key_display="q", priority=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("1", "show(0)", "Tabs", key_display="1–9"),
        *(Binding(str(number + 1), f"show({number})", show=False) for number in range(1, len(TABS))),
        Binding("tab", "turn(1)", "Next", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", "Previous", show=False, priority=True),
        Binding("escape", "to_list", "Back", show=False),
    ]

    now_ns: reactive[int | None] = reactive(None, repaint=False)

    def __init__(
        self,
        feed: Feed,
        work: Work | None = None,
        cancel: Callable[[], None] | None = None,
        clock: Clock | None = None,
        read: ReadSource = read_source,
        explain: Explain = lambda _rule: "",
        actions: Actions | None = None,
        follow: Follow | None = None,
    ) -> None:
        super().__init__(actions)
        self.register_theme(THEME)
        self.theme = THEME.name
        self.feed = feed
        self.error: BaseException | None = None
        """What `work` raised, to be raised again where the screen was opened."""
        self._work = work
        self._cancel = cancel
        self._clock = clock
        self._read = read
        self._explain = explain
        self._follow = follow
        self._left = threading.Event()
        self.at_work = work is not None
        self.looks_on = follow is not None
        self._result = 0
        self._quitting = False
        self._work_thread: threading.Thread | None = None
        self._drawn_at_s = -math.inf
        self._draws: Timer | None = None
        """The drawing that is to come, of all that is told until then."""
        self._ticks: Timer | None = None

    def get_driver_class(self) -> type[Driver]:
        """Return the driver; on a terminal, one that survives the terminal's loss."""
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def compose(self) -> ComposeResult:
        yield RunHeader(id="header").data_bind(DiagnoseApp.state, DiagnoseApp.now_ns)
        yield TabStrip(id="tabs").data_bind(DiagnoseApp.state, DiagnoseApp.active)
        with ContentSwitcher(initial="overview"):
            yield Overview(id="overview").data_bind(DiagnoseApp.state)
            yield FindingsPane(self._read, self._explain).data_bind(DiagnoseApp.state)
            yield TimelineTab().data_bind(DiagnoseApp.state)
            yield ProfileTab("kernels", kernel_table).data_bind(DiagnoseApp.state)
            yield ProfileTab("operators", operator_table).data_bind(DiagnoseApp.state)
            yield MemoryTab().data_bind(DiagnoseApp.state)
            yield RanksTab().data_bind(DiagnoseApp.state)
            yield FixesPane().data_bind(DiagnoseApp.state)
            yield DiffPane().data_bind(DiagnoseApp.state)
            yield OutputPane().data_bind(DiagnoseApp.state)
        yield SearchBar(id="search")
        yield KeyBar()

    def on_mount(self) -> None:
        """Take up the feed, and begin the work."""
        self.feed.announce(lambda: self.post_message(StateChanged()))
        self._take()
        if self._clock is not None:
            self._ticks = self.set_interval(1.0, self._tick)
        if self._follow is not None:
            threading.Thread(target=self._run_following, name="diagnose-follow", daemon=True).start()
        if self._work is not None:
            heed_requests(self.leave_unasked)
            # A thread of our own, not a worker of Textual's: the screen must be able to close before the work ends.
            self._work_thread = threading.Thread(target=self._run_work, name="diagnose-work", daemon=True)
            self._work_thread.start()

    def leave_unasked(self) -> None:
        """End without a question: at once when the work is over, else when it has ended."""
        self._quitting = True
        if not self.at_work:
            self.exit(self._result)
        elif self._cancel is None:
            self.exit(INTERRUPTED)
        else:
            self._cancel()

    def let_work_end(self, seconds: float) -> None:
        """Let work that was asked to end clear away what it has, no longer than this, once the screen is gone."""
        if self._work_thread is not None and self._quitting and self._cancel is not None:
            self._work_thread.join(seconds)

    def on_unmount(self) -> None:
        """Stop what only a screen needs: nobody looks on any more."""
        self._left.set()

    def _run_following(self) -> None:
        assert self._follow is not None
        self._follow(self.feed.accept, self._left)
        self.post_message(FollowingEnded())

    @on(FollowingEnded)
    def _following_ended(self) -> None:
        self.looks_on = False
        self._take()
        if self.state.ended is None:
            self.notify("The process of this run is gone, and has written no end.", severity="warning", timeout=12)

    def _run_work(self) -> None:
        assert self._work is not None
        try:
            self._result = self._work(self.feed.accept)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that opened the screen and raised there
            self.error = error
        self.post_message(WorkEnded())  # lost, and rightly, when the screen is gone already

    @on(WorkEnded)
    def _work_ended(self) -> None:
        self.at_work = False
        self._take()
        if self.error is not None or self._quitting:
            self.exit(self._result)

    @on(StateChanged)
    def _hear(self) -> None:
        """Draw what is new, soon: at once after a silence, else with what comes meanwhile."""
        waits_s = self._drawn_at_s + DRAW_EVERY_S - time.monotonic()
        if waits_s <= 0:
            self._take()
        elif self._draws is None:
            self._draws = self.set_timer(waits_s, self._take)

    def _take(self) -> None:
        if self._draws is not None:
            self._draws.stop()
            self._draws = None
        self._drawn_at_s = time.monotonic()
        before, self.state = present(self.state), self.feed.state
        if self.active not in present(self.state):
            self.active = "overview"
        if before != present(self.state):
            self.refresh_bindings()
        if self.state.ended is not None and self._ticks is not None:
            self._ticks.stop()  # the time it took stands still
        self._tick()

    def _tick(self) -> None:
        self.now_ns = self._clock() if self._clock is not None else self.feed.last_ns

    def watch_active(self, name: str) -> None:
        """Bring a tab to the front and put the cursor where keys are of use."""
        for bar in self.query(SearchBar):
            bar.close()
        for switcher in self.query(ContentSwitcher):
            switcher.current = name
            self._focus_first()
        self.refresh_bindings()

    def _focus_first(self) -> None:
        pane = self.query_one(f"#{self.active}")
        for widget in (*pane.query(Choices), *pane.query(TimelineView), *pane.query(SortableTable), *pane.query(Lines)):
            if widget.display:
                widget.focus()
                return
        self.screen.set_focus(None)

    def action_show(self, number: int) -> None:
        """Bring the tab with that number to the front, the first being 0."""
        names = present(self.state)
        if number < len(names):
            self.active = names[number]

    def action_turn(self, by: int) -> None:
        """The next tab, or the one before."""
        names = present(self.state)
        self.active = names[(names.index(self.active) + by) % len(names)]

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen())

    @on(SearchBar.Closed)
    def action_to_list(self) -> None:
        """Go from the details back to the list."""
        self._focus_first()

    def action_search(self) -> None:
        """Take words to look for in the tab."""
        if self.active in SEARCHED:
            self.query_one(SearchBar).open(self.query_one(f"#{self.active}", Tab).searched)
        else:
            self.notify("Findings, kernels, operators and output can be searched.", timeout=3)

    def action_sort_table(self, by: int) -> None:
        """Sort the table of the tab by its next column, or with 0 the other way round."""
        if self.active not in ("kernels", "operators"):
            self.notify("Kernels and operators can be sorted.", timeout=3)
        else:
            self.query_one(f"#{self.active}", ProfileTab).action_sort(by)

    @on(SearchBar.Changed)
    def _search(self, event: SearchBar.Changed) -> None:
        if self.active in SEARCHED:
            found = self.query_one(f"#{self.active}", Tab).search(event.words)
            self.query_one(SearchBar).tell(found)

    @on(SortableTable.RowSelected, "#kernels SortableTable")
    @on(SortableTable.RowSelected, "#operators SortableTable")
    def action_in_time(self) -> None:
        """Show the finding, kernel or operator under the cursor on the timeline."""
        view, index = self.query_one(TimelineView), self.query_one(FindingsPane).current_index
        if self.active in ("kernels", "operators"):
            shown = view.show_longest(self.query_one(f"#{self.active}", ProfileTab).row_text())
        else:
            shown = index is not None and view.show(self.findings[index], index)
        if shown:
            self.active = "timeline"
        else:
            self.notify("The timeline shows nothing of this by itself.", timeout=3)

    @on(FindingsPane.EventChosen)
    def _event_in_time(self, chosen: FindingsPane.EventChosen) -> None:
        span = (chosen.event.begin_ns, chosen.event.begin_ns + chosen.event.length_ns)
        if self.query_one(TimelineView).show_span(span, chosen.finding, chosen.event.lane):
            self.active = "timeline"
        else:
            self.notify("This event is not in the steps that the timeline shows.", timeout=4)

    def action_cross(self) -> None:
        """Go from the finding under the cursor to its fix; from a fix, or the finding on the timeline, to the
        finding."""
        fixes, index = self.query_one(FixesPane), self.query_one(FindingsPane).current_index
        if self.active in ("overview", "findings"):
            if index is not None and fixes.select(self.findings[index].fixers):
                self.active = "fixes"
                return
            index = None
        elif self.active == "timeline":
            index = self.query_one(TimelineView).finding
        else:
            name = fixes.current.name if self.active == "fixes" and fixes.current else ""
            index = next((number for number, one in enumerate(self.findings) if name in one.fixers), None)
        if index is None:
            self.notify("Nothing belongs to this: no fix of it was tried, or no finding asked for it.", timeout=3)
        else:
            self.query_one(FindingsPane).select(index)
            self.active = "findings"

    @property
    def place(self) -> Place | None:
        """The line of the finding, kernel, operator or fix under the cursor."""
        if self.active in ("kernels", "operators"):
            return self.query_one(f"#{self.active}", ProfileTab).place
        if self.active == "fixes":
            return self.query_one(FixesPane).place
        return self.query_one(FindingsPane).place if self.active in ("overview", "findings") else None

    def action_copy(self) -> None:
        """Copy what the tab is about."""
        if self.active in ("overview", "findings"):
            text = self.query_one(FindingsPane).place_text()
        elif self.active == "output":
            text = self.state.output
        elif self.active in ("kernels", "operators"):
            text = self.query_one(f"#{self.active}", ProfileTab).row_text()
        else:
            fix = self.query_one(FixesPane).current
            shown = shown_diff(self.state)[0] if self.active in ("fixes", "diff") else ""
            text = fix.diff if self.active == "fixes" and fix is not None else shown
        if text:
            self.copy_to_clipboard(text)
        self.notify("Copied." if text else "Nothing here to copy.", timeout=2)

    @property
    def left_at_work(self) -> bool:
        """Whether the screen is gone, and nobody asked the work to end."""
        return self.at_work and not self._quitting

    def action_leave(self) -> None:
        """Quit; while the program runs, ask first."""
        if not self.at_work:
            self.exit(self._result)
        elif self._quitting:
            self.exit(INTERRUPTED)  # asked twice: the work does not end by itself
        else:
            program = self.state.started.program.removeprefix("-- ") if self.state.started else ""
            self.push_screen(
                Question(
                    f"{program or 'The program'} is still running",
                    "`diagnose view` shows a detached run again. Ending it keeps all that was measured so far.",
                    (
                        ("d", "detach: leave the screen, let the program go on"),
                        ("y", "end the program and quit"),
                        ("n", "stay"),
                    ),
                ),
                self._answered,
            )

    def _answered(self, answer: str | None) -> None:
        if answer == "d":
            self.exit(self._result)
        elif answer == "y":
            if self.at_work and self._cancel is not None:
                self.notify("Ending the program … q again leaves at once.", timeout=60)
            self.leave_unasked()

    @on(TabStrip.Chosen)
    def _choose_tab(self, event: TabStrip.Chosen) -> None:
        self.active = event.name

    @on(OptionList.OptionSelected, "#first-findings")
    def _open_finding(self, event: OptionList.OptionSelected) -> None:
        self.active = "findings"
        self.query_one(FindingsPane).select(event.option_index)

    @on(OptionList.OptionHighlighted, "#first-findings")
    def _follow_finding(self, event: OptionList.OptionHighlighted) -> None:
        if self.active == "overview" and self.query_one(FirstFindings).has_focus:
            self.query_one(FindingsPane).select(event.option_index)
