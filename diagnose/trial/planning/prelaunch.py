"""Starts processes that will be needed after an A/B trial beside those of the trial, as far as there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.fixer import Fixer
from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial.gates.capture_plan import AGAIN, Part, Wanted, bits
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.early_arms import Ahead, Turn
from diagnose.trial.process.capacity import room_to_start
from diagnose.units import NS_PER_S

AS_FOUND, PATCHED = 1.2, 1.4
"""What a process may need, in times of what one of the program, or of the program that a fix is put on, was seen to
hold."""


_CAPTURED_NS = 10 * NS_PER_S
"""First steps that have not been captured so long after everything has started stand still until the gate."""


@dataclass(frozen=True)
class UpcomingWork:
    """The work that will be needed after an A/B trial."""

    last: tuple[Program, ...] = ()
    """What will run alone in the end if all goes well."""
    wanted: Sequence[Wanted] = ()
    """What a gate will capture."""


@dataclass
class Prelaunch:
    """Starts it, and remembers whether memory ran out over that, or the program did not bear it."""

    ahead: Ahead
    gatekeeper: Gatekeeper
    generations: int
    ranks: int = 1
    """Of the program. Several cannot rest wherever they are: one may wait for another on the device."""
    on_phase: Callable[[str, str], None] = lambda _phase, _detail: None
    """Told where that was so."""
    crowded: bool = False
    original: Program | None = None
    """As found: it runs in the end, whatever is kept."""

    def __post_init__(self) -> None:
        self.gatekeeper.resting = lambda: self.ahead.shares
        self.gatekeeper.make_room = self.clear

    def prepare(self, original: Program) -> None:
        """Start one arm of the program as found: nothing else of it runs, so that there is room for one.

        Not of several ranks, which cannot rest wherever they are.
        """
        self.original = original
        if self.ranks == 1:
            self.ahead.start(Turn.TRIAL, original, AS_FOUND)

    def after_trial(self, fixer: Fixer, patched: Program, numbers: Program, part: Part | None) -> UpcomingWork:
        """Return the work that is needed if a fix turns out to be faster. Its numbers are compared with those of
        `numbers`.
        """
        return UpcomingWork(last=self.last(patched), wanted=self._wanted(fixer, numbers, patched, part))

    def last(self, patched: Program) -> tuple[Program, ...]:
        """Return the programs of the final whole runs if `patched` is what is kept."""
        return (patched,) if self.original is None else (self.original, patched)

    def arms(self, original: Program) -> list[float]:
        """The memory that the arms of a trial of some generations need, as shares of what was seen."""
        return [self.gatekeeper.share_of(original.root, times) for times in (AS_FOUND, PATCHED)] * self.generations

    def _wanted(self, fixer: Fixer, numbers: Program, patched: Program, part: Part | None) -> list[Wanted]:
        """What a look at the numbers captures, or may."""
        wanted = self.gatekeeper.needed(fixer.gate, numbers, patched, fixer.rounds_to, part)
        return wanted + ([bits(numbers, AGAIN)] if fixer.gate is Gate.BITWISE else [])

    def start(self, duel: Sequence[float], coming: UpcomingWork) -> None:
        """Start what fits beside the arms of a duel, which need these shares of the memory that was seen."""
        if not self._room(duel, ()):
            return
        short = [one for one in coming.wanted if not one.rests]
        self.gatekeeper.begin(short, [*duel, *self.ahead.shares])
        missing = [one for one in coming.last if not self.ahead.count(Turn.LAST_RUN, one.root)]
        self._start(Turn.LAST_RUN, duel, [(one, PATCHED) for one in missing])
        long = [one for one in coming.wanted if one.rests]
        self.gatekeeper.begin(long, [*duel, *self.ahead.shares])

    def rest(self) -> None:
        """Wait until none of it goes on."""
        self.ahead.rest(self.gatekeeper.deadline.left_ns)
        self.gatekeeper.rest(_CAPTURED_NS)

    def clear(self, why: str = "memory ran out") -> bool:
        """End all of it, for good; whether there was any."""
        any_there = bool(self.ahead.shares or self.gatekeeper.shares_begun())
        if any_there:
            self.crowded = True
            self.on_phase(f"{why} beside what had started early", "from now on each starts when it is its turn")
        self.end()
        return any_there

    def end(self) -> None:
        """End all of it."""
        for turn in Turn:
            self.ahead.end(turn)
        self.gatekeeper.drop()

    def keep_last(self, programs: Sequence[Program]) -> None:
        """Only these may still run alone in the end."""
        self.ahead.end(Turn.LAST_RUN, but=[one.root for one in programs])

    @property
    def closed(self) -> bool:
        """Whether nothing starts beside anything."""
        return self.crowded or self.ranks > 1

    def has_last(self, programs: Sequence[Program]) -> bool:
        """Whether all of these wait for their last run."""
        return all(self.ahead.count(Turn.LAST_RUN, one.root) for one in programs)

    def last_starts_early(self, baseline: Program) -> bool:
        """Whether what runs alone in the end waits for that, or will start beside the next trial on this program."""
        if self.original is None:
            return False
        missing = 2 - self.ahead.count(Turn.LAST_RUN, self.original.root)
        return self._room(self.arms(baseline), [PATCHED] * missing)

    def _start(self, turn: Turn, duel: Sequence[float], arms: Sequence[tuple[Program, float]]) -> None:
        """All of these, or none."""
        shares = [self.gatekeeper.share_of(program.root, times) for program, times in arms]
        if self._room(duel, shares):
            for (program, _), share in zip(arms, shares, strict=True):
                self.ahead.start(turn, program, share)

    def _room(self, duel: Sequence[float], more: Sequence[float]) -> bool:
        shares = [*duel, *self.ahead.shares, *self.gatekeeper.shares_begun(), *more]
        return not self.closed and room_to_start(self.gatekeeper.memory, shares)
