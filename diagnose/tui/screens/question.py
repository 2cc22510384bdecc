"""A question over the screen, asked before something happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT
from diagnose.tui.theme import FAINT

_WIDEST = 76
_BESIDE_TITLE = 10  # columns of the border and the padding


class Question(ModalScreen[str]):
    """Answers with the key of what was chosen; the last of `answers` is to let it be, as are escape and `q`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "let_be", "Go on", priority=True),
    ]

    def __init__(self, title: str, about: str, answers: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._about = about
        self._answers = tuple(answers)

    def compose(self) -> ComposeResult:
        text = Text("\n").join(self._lines(min(self.app.size.width - 10, _WIDEST)))
        card = Static(text, id="question-card")
        card.border_title = styled(self._title)  # a string would be markup
        card.styles.min_width = min(len(self._title) + _BESIDE_TITLE, self.app.size.width)
        yield card

    def _lines(self, width: int) -> list[Text]:
        lines = [styled(line, FAINT) for part in self._about.splitlines() for line in wrap(part, width) or [""]]
        chosen = [styled(key, f"bold {ACCENT}").append(f"  {words}", "") for key, words in self._answers]
        return [*lines, Text(), *chosen]

    def on_key(self, event: Key) -> None:
        """Close with the answer of that key."""
        if any(event.key == key for key, _ in self._answers):
            event.stop()
            self.dismiss(event.key)

    def action_let_be(self) -> None:
        """Close with the last answer."""
        self.dismiss(self._answers[-1][0])
