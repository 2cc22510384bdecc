"""The actions that the screen can start on a run. The caller provides them; the screen asks, calls, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from diagnose.session import State


class Actions(Protocol):
    """Deeds on one run. Each answers in words what it did, and raises DiagnoseError in words where it cannot.

    A method that ends in `_plan` writes nothing: it says what the deed would do, for the question that comes first.
    """

    def fix_plan(self, state: State) -> str:
        """The command that tries fixes on the program of this run."""
        ...

    def apply_plan(self) -> str:
        """The files that the measured patch changes, as they are now."""
        ...

    def apply(self) -> str:
        """Write the measured patch into the user's files."""
        ...

    def revert_plan(self) -> str:
        """The files that get their bytes from before."""
        ...

    def revert(self) -> str:
        """Take the patch back."""
        ...

    def page(self) -> Path:
        """Return where the report lies as a page, or would be written."""
        ...

    def write_page(self, state: State) -> Path:
        """Write the report as a page."""
        ...

    def skip(self) -> str:
        """Leave the trial under way."""
        ...
