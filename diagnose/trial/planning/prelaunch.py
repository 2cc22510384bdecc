"""Starts the captures of a gate beside the arms of the A/B trial that it follows, as far as there is room.

To start a program takes longer than to measure it where steps are short, and starts go on side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.fixer import Fixer
from diagnose.program import Program
from diagnose.trial.gates.capture_plan import CaptureRequest, Part
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.process.capacity import room_to_start
from diagnose.units import NS_PER_S

AS_FOUND, PATCHED = 1.2, 1.4
"""The memory that a process may need, as a multiple of what one of the program, or of the program that a fix is put
on, was seen to hold."""
_CAPTURED_NS = 10 * NS_PER_S
"""First steps that have not been captured so long after everything has started stand still until the gate."""


@dataclass
class Prelaunch:
    """Starts captures early, and remembers whether memory ran out over that, or the program did not bear it."""

    gatekeeper: Gatekeeper
    generations: int
    ranks: int = 1
    """The program's ranks. Several cannot rest wherever they are: one may wait for another on the device."""
    on_phase: Callable[[str, str], None] = lambda _phase, _detail: None
    """Told where that was so."""
    crowded: bool = False

    def __post_init__(self) -> None:
        self.gatekeeper.make_room = self.clear

    def wanted(self, fixer: Fixer, original: Program, patched: Program, part: Part | None) -> list[CaptureRequest]:
        """Return what a look at the numbers captures, or may, if a fix turns out to be faster."""
        wanted = self.gatekeeper.needed(fixer.gate, original, patched, fixer.rounds_to, part)
        promise = part or Part(patched, fixer.gate, fixer.rounds_to)
        return wanted + self.gatekeeper.spare(promise, original)

    def arms(self, original: Program) -> list[float]:
        """The memory that the arms of a trial of some generations need, as shares of what was seen."""
        return [self.gatekeeper.share_of(original.root, times) for times in (AS_FOUND, PATCHED)] * self.generations

    def start(self, arms: Sequence[float], wanted: Sequence[CaptureRequest], cold: Path | None = None) -> None:
        """Start what fits beside the arms of a trial, which need these shares of the memory that was seen; what may
        not be needed comes last.

        `cold` is the root of a program that one of the arms compiles: what would only compile the same again waits.
        """
        if not self._room(arms, ()):
            return
        wanted = [one for one in wanted if one.program.root != cold or not one.of_luck]
        for some in (
            [one for one in wanted if not one.rests],
            [one for one in wanted if one.of_luck],
            [one for one in wanted if one.rests],
        ):
            self.gatekeeper.begin(some, arms)

    def fits_beside(self, arms: Sequence[float], wanted: Sequence[CaptureRequest]) -> bool:
        """Whether all that a gate needs may start beside the arms of a trial."""
        return self._room(arms, self.gatekeeper.shares_of(wanted))

    def rest(self) -> None:
        """Wait until none of it goes on."""
        self.gatekeeper.rest(_CAPTURED_NS)

    def clear(self, why: str = "memory ran out") -> bool:
        """End all of it, for good; whether there was any."""
        any_there = bool(self.gatekeeper.shares_begun())
        if any_there:
            self.crowded = True
            self.on_phase(f"{why} beside what had started early", "from now on each starts when it is its turn")
        self.gatekeeper.drop()
        return any_there

    @property
    def closed(self) -> bool:
        """Whether nothing starts beside anything."""
        return self.crowded or self.ranks > 1

    def _room(self, arms: Sequence[float], more: Sequence[float]) -> bool:
        shares = [*arms, *self.gatekeeper.shares_begun(), *more]
        return not self.closed and room_to_start(self.gatekeeper.memory, shares)
