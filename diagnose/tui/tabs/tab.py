"""A tab: its lines are made for the size that it has on the screen, and made anew when it gets another."""

from __future__ import annotations

from textual.containers import Container
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from diagnose.session import State
from diagnose.tui.widgets.lines import Lines


class Tab(Container):
    """One of the screen's tabs; each says in `fill` what it shows.

    Textual tells a container of its size by events that may fail to come where it is brought to the front: whether they
    do depends on who asks for the layout first. The signal that a layout was made always comes.
    """

    state: reactive[State] = reactive(State, always_update=True)

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._laid_out: list[Size] = []
        self.searched = ""
        """What is looked for."""

    @property
    def room(self) -> Size:
        """The size that it has; while it is hidden, the size that it will have."""
        return self.size or (self.parent.content_size if isinstance(self.parent, Widget) else self.app.size)

    def on_mount(self) -> None:
        """Listen for layouts."""
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _screen: self.fit())

    def on_resize(self) -> None:
        """Another size, other lines."""
        self.fit()

    def fit(self) -> None:
        """Draw it anew if it is seen, and it or a text in it has another size than it was drawn for."""
        sizes = [self.size, *(view.size for view in self.query(Lines))]
        if self.display and self.size and sizes != self._laid_out:
            self._laid_out = sizes
            self.fill()

    def refill(self) -> None:
        """Draw what is new. While it is not seen its size is not known: it is drawn again when it is."""
        self.fill()
        if not (self.display and self.size):
            self._laid_out = []

    def search(self, words: str) -> str:
        """Show what holds `words`, whatever their case, and all where there are none; says how much was found."""
        self.searched = words
        self.refill()
        return ""

    def fill(self) -> None:
        """Draw it."""
        raise NotImplementedError
