"""Copies of one program for its trials: with other texts, an environment of their own, and a cache that all share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.program import Program, patch
from diagnose.program.copy import copy_environment, copy_program
from diagnose.program.environment import with_declared

_COMPILES = re.compile(r"(?<!\bre)\.compile\(|make_graphed_callables\(")


@dataclass(frozen=True)
class Copies:
    """What was copied below a folder; every answer goes by the root of a copy."""

    program: Program
    folder: Path
    environment: Mapping[str, str]
    """In which the program itself would run."""
    edited: dict[Path, list[str]] = field(default_factory=dict)
    """The files with other texts."""
    compiling: set[Path] = field(default_factory=set)
    """Those whose start compiles something, by what a fix wrote."""
    _environments: dict[Path, dict[str, str]] = field(default_factory=dict)

    def make(self, texts: Mapping[str, str], name: str) -> Program:
        """A copy in which the given files have other texts. Raises InputError."""
        folder = self.folder / name
        copied = copy_program(self.program, folder)
        edited = patch.apply_edits(texts, root=self.program.root, copy=copied.root)
        self.edited[copied.root] = sorted(map(str, edited))
        # What one process has compiled serves all later ones; the user's own cache is neither needed nor filled.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled")}
        environment = copy_environment(self.program, folder, self.environment) | cache
        # A trial imports torch before the program runs, and with it what reads the environment on import.
        self._environments[copied.root] = with_declared(copied, environment)
        if any(_COMPILES.search(text) for text in texts.values()):
            self.compiling.add(copied.root)
        return copied

    def environment_of(self, copied: Program) -> dict[str, str]:
        """That of a copy."""
        return self._environments[copied.root]
