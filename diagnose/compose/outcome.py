"""The outcome of trying fixes."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.stack.stack import Stack
from diagnose.model import Verdict
from diagnose.program import patch
from diagnose.session import FinalMeasured


@dataclass(frozen=True)
class Outcome:
    """The kept fixes, the verdicts and the programs that trying fixes ended with."""

    verdicts: tuple[Verdict, ...]
    """The last word on each fix."""
    patch: patch.Patch | None
    """All kept fixes together; None when none was kept."""
    final: FinalMeasured | None = None
    stack: Stack | None = None
    """The stack that the patch is made of."""
    no_time: tuple[Proposal, ...] = ()
    """The proposals that the budget left no time for."""
