"""The line in which one types what to look for, with how much was found."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label


class SearchBar(Horizontal):
    """Hidden until it is opened; tells of every change, and of being closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave(False)", "Clear", show=False, priority=True),
        Binding("enter,down", "leave(True)", "Keep", show=False, priority=True),
    ]

    class Changed(Message):
        """Other words are looked for; none where the search was given up."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Closed(Message):
        """The keys are the tab's again."""

    def compose(self) -> ComposeResult:
        yield Label("/", id="search-mark")
        yield Input(id="search-words", compact=True, placeholder="search, enter keeps, esc clears")
        yield Label("", id="search-found")

    def on_mount(self) -> None:
        """Wait to be opened."""
        self.display = False

    def open(self, words: str) -> None:
        """Take words, beginning with these."""
        self.display = True
        line = self.query_one(Input)
        line.value = words
        line.focus()

    def close(self) -> None:
        """Hide it, and keep what was searched for."""
        self.display = False

    def tell(self, found: str) -> None:
        """Say how much was found."""
        self.query_one("#search-found", Label).update(found)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look while one types."""
        event.stop()
        if self.display:
            self.post_message(self.Changed(event.value))

    def action_leave(self, keep: bool) -> None:
        """Back to the tab, with what was found or with everything."""
        self.close()
        if not keep:
            self.post_message(self.Changed(""))
        self.post_message(self.Closed())
