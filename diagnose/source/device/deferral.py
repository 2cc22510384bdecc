"""The state shared by the parts of `defer-item`: the edits of one file as they are found, and the refusal of
one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diagnose.source.tree.syntax import Source, Splice


class LeftAlone(Exception):
    """Why a read stays where it is."""


@dataclass
class Deferred:
    """The edits of one file while they are found."""

    source: Source
    others: Sequence[Source] = ()
    """The program's files, this one among them."""
    splices: list[Splice] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """What was deferred, for the summary."""
    reasons: list[str] = field(default_factory=list)
    torch: str = "torch"
    taken: set[str] = field(default_factory=set)
    """New names so far."""
