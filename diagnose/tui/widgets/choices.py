"""A list to move through, whose entries are ready-made text and keep their place when they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import OptionList
from textual.widgets.option_list import Option


class Choices(OptionList):
    """Entries by key. An update touches only what changed, so that the cursor stays where it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Details", key_display="⏎"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g", "first", show=False),
        Binding("G,shift+g", "last", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._shown: dict[str, str] = {}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's call
        """An empty list has nothing to open, and the foot of the screen does not offer it."""
        return action != "select" or self.option_count > 0

    def show(self, entries: Sequence[tuple[str, Text]]) -> None:
        """Replace the entries: (key, text) in order."""
        marked = {key: text.markup for key, text in entries}
        if list(marked) != list(self._shown):
            current = self.key
            self.clear_options()
            self.add_options([Option(text, id=key) for key, text in entries])
            self.highlighted = list(marked).index(current) if current in marked else 0 if marked else None
        else:
            for key, text in entries:
                if marked[key] != self._shown[key]:
                    self.replace_option_prompt(key, text)
        if bool(marked) != bool(self._shown):
            self.app.refresh_bindings()
        self._shown = marked

    def go_to(self, key: str) -> bool:
        """Put the cursor on the entry with that key; False where there is none."""
        if key in self._shown:
            self.highlighted = list(self._shown).index(key)
        return key in self._shown

    @property
    def key(self) -> str | None:
        """The key of the entry under the cursor."""
        option = self.highlighted_option
        return option.id if option else None
