"""Copies of the program with fixes in them: of equal texts there is one."""

from __future__ import annotations

from dataclasses import dataclass, field

from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Edits
from diagnose.program import Program
from diagnose.trial.bench import Bench


@dataclass
class Copies:
    """The copies made so far: what is known of one, its numbers above all, need not be found out again."""

    bench: Bench
    _made: dict[frozenset[tuple[str, str]], Program] = field(default_factory=dict)

    def of(self, stack: Stack, name: str, answer: Edits | None = None) -> Program:
        """A copy of the program with a stack in it, and perhaps one answer more."""
        texts = {**stack.edited, **(answer.files if answer else {})}
        same = frozenset(texts.items())
        if same not in self._made:
            self._made[same] = self.bench.copy(texts, f"copy-{len(self._made) + 1}-{name}")
        return self._made[same]
