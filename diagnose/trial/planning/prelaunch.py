"""Starts processes that will be needed after an A/B trial beside those of the trial, as far as there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    _last: tuple[Program, ...] = ()
    """What runs alone in the end if all goes well; nothing while that is only the program as found."""

    def __post_init__(self) -> None:
        self.gatekeeper.resting = lambda: self.ahead.shares
        self.gatekeeper.make_room = self.clear
        self.gatekeeper.spare = self._start_last

    def prepare(self, original: Program) -> None:
        """Start one arm of the program as found: nothing else of it runs, so that there is room for one.

        Not of several ranks, which cannot rest wherever they are.
        """
        self.original = original
        if self.ranks == 1:
            self.ahead.start(Turn.TRIAL, original, AS_FOUND)

    def after_trial(self, fixer: Fixer, patched: Program, numbers: Program, part: Part | None) -> UpcomingWork:
        """What is needed if a fix turns out to be faster, whose numbers are held against those of `numbers`."""
        self._last = self.last(patched)
        return UpcomingWork(last=self._last, wanted=self._wanted(fixer, numbers, patched, part))

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

    def start(self, duel: Sequence[float], coming: UpcomingWork, cold: Path | None = None) -> None:
        """Start what fits beside the arms of a duel, which need these shares of the memory that was seen: what the
        gate needs, then what runs alone in the end, then what may not be needed.

        `cold` is the root of a program that one of the arms compiles: what would only compile the same again waits.
        """
        if not self._room(duel, ()):
            return
        wanted = [one for one in coming.wanted if one.program.root != cold or not one.of_luck]
        self.gatekeeper.begin([one for one in wanted if not one.rests], [*duel, *self.ahead.shares])
        self.gatekeeper.begin([one for one in wanted if one.of_luck], [*duel, *self.ahead.shares])
        self._start_last(duel, [one for one in coming.last if one.root != cold])
        self.gatekeeper.begin([one for one in wanted if one.rests], [*duel, *self.ahead.shares])

    def fits_beside(self, duel: Sequence[float], coming: UpcomingWork) -> bool:
        """Whether all that a gate needs may start beside the arms of a duel."""
        return self._room(duel, self.gatekeeper.shares_of(coming.wanted))

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
        self._last = tuple(programs) if len({one.root for one in programs}) == len(programs) else ()

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

    def _start_last(self, beside: Sequence[float], programs: Sequence[Program] | None = None) -> None:
        """Start those that run alone in the end and do not wait for it yet, all or none."""
        wanted = self._last if programs is None else programs
        missing = [one for one in wanted if not self.ahead.count(Turn.LAST_RUN, one.root)]
        shares = [self.gatekeeper.share_of(program.root, PATCHED) for program in missing]
        if self._room(beside, shares):
            for program, share in zip(missing, shares, strict=True):
                self.ahead.start(Turn.LAST_RUN, program, share)

    def _room(self, duel: Sequence[float], more: Sequence[float]) -> bool:
        shares = [*duel, *self.ahead.shares, *self.gatekeeper.shares_begun(), *more]
        return not self.closed and room_to_start(self.gatekeeper.memory, shares)
