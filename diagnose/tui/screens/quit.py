"""The question before a running program is ended."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT
from diagnose.tui.theme import FAINT


class ConfirmQuit(ModalScreen[bool]):
    """Answers True when the program shall be ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "End it"),
        Binding("n,escape,q", "answer(False)", "Go on"),
    ]

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def compose(self) -> ComposeResult:
        text = styled(f"{self._program or 'The program'} is still running.\n")
        text.append("Ending it keeps all that was measured so far.\n\n", FAINT)
        text.append("y", f"bold {ACCENT}").append("  end the program and quit\n")
        text.append("n", f"bold {ACCENT}").append("  go on")
        card = Static(text, id="quit-card")
        card.border_title = "End the program?"
        yield card

    def action_answer(self, end: bool) -> None:
        """Close with the answer."""
        self.dismiss(end)
