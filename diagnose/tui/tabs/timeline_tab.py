"""The tab of the timeline."""

from __future__ import annotations

from textual.app import ComposeResult

from diagnose.tui.tabs.tab import Tab
from diagnose.tui.widgets.timeline_view import TimelineView


class TimelineTab(Tab):
    """The tab."""

    def __init__(self) -> None:
        super().__init__("timeline")

    def compose(self) -> ComposeResult:
        yield TimelineView(id="timeline-view").data_bind(TimelineTab.state)

    def fill(self) -> None:
        """Draw it for its size."""
        self.query_one(TimelineView).refresh()
