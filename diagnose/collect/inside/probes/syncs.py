"""Finds the lines at which the host waits for the device: torch's own warnings, caught for a few steps.

`torch.cuda.set_sync_debug_mode("warn")` warns at the call that waits. The warnings are kept from the program: a filter
for this one message and a stand-in for `warnings.showwarning` are put up and taken down exactly.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from typing import Any, TextIO

from ..source_ownership import Ownership

_MESSAGE = re.compile("called a synchronizing|Synchronization debug mode is a prototype")
_WAIT = "called a synchronizing"


class SyncWatch:
    """Collects between `begin` and `end`; `records` gives the lines with their counts."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._filter: Any = ("always", _MESSAGE, Warning, None, 0)
        self._show: Any = None
        self._mode: int | None = None
        self._torch: Any = None

    def begin(self, torch: Any) -> bool:
        """Start to watch; False where the program has set a mode of its own."""
        if torch.cuda.get_sync_debug_mode() != 0:
            return False
        self._torch, self._mode = torch, 0
        # Python is not told of the change: it would forget which warnings it has shown, and show them again.
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]
        self._show, warnings.showwarning = warnings.showwarning, self._note_warning
        torch.cuda.set_sync_debug_mode(1)
        return True

    def end(self) -> None:
        """Put everything back as it was."""
        if self._mode is None:
            return
        if self._torch.cuda.get_sync_debug_mode() == 1:
            self._torch.cuda.set_sync_debug_mode(self._mode)
        self._mode = None
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        if warnings.showwarning == self._note_warning:
            warnings.showwarning = self._show

    def records(self, steps: int) -> list[dict[str, Any]]:
        """Lines of `syncs.jsonl`."""
        return [
            {"file": file, "line": line, "function": function, "count": count, "steps": steps}
            for (file, line, function), count in self._counts.most_common()
        ]

    def _note_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        if _WAIT in text:
            caller, user = self._ownership.caller(sys._getframe(1))
            frame = user or caller
            if frame is not None:
                self._counts[frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname] += 1
        elif not _MESSAGE.search(text):
            self._show(message, category, filename, lineno, file, line)
