"""The operators that give other bits from run to run, whatever is set: torch warns of each that a program calls while
deterministic algorithms are asked for."""

from __future__ import annotations

import re
import warnings
from typing import Any

_WARNING = re.compile(
    r"(?s)(?P<operator>.*?) (?:does not have a deterministic implementation|defaults to a non-deterministic algorithm)"
)


class NondeterminismWarnings:
    """Takes down these warnings, and keeps them from being printed."""

    def __init__(self) -> None:
        self.operators: set[str] = set()
        """Names of operators in torch's warnings, such as `nll_loss2d_forward_out_cuda_template`."""
        self._show: Any = None
        self.listen()

    def listen(self) -> None:
        """Come before all filters that the program has set by now, and before its own way to show warnings."""
        warnings.filterwarnings("always", _WARNING.pattern, UserWarning)
        if warnings.showwarning != self._hear:
            self._show, warnings.showwarning = warnings.showwarning, self._hear

    def _hear(self, message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        found = _WARNING.match(str(message))
        if found is not None:
            self.operators.add(found["operator"])
        else:
            self._show(message, category, *args, **kwargs)
