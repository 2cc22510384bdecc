"""Whether each kept fix is still needed beside those that came after it.

A fix was measured on top of what had been kept before. What came later may cure the same ailment better, and then the
earlier one is a line of the user's source for nothing. So the stack is run against itself without each fix but the last
one, whose own trial was just that. Of fixes that were tried at once this is the trial of each. Those go first that are
the likeliest to be there for nothing: that share their ailment with most others, and promised least. Where only one of
them is left, it is tried against the original, unless what they gave together less what the others gave is a saving
already.

What rode along for less than a trial can show is asked of all at once: one by one each of them would be found to give
nothing, and all that they give together would be lost. A fix goes only where there is time to hold the numbers of the
others against the original's without it; the numbers with it are known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from diagnose.compose.journal import Journal, listed
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.bundle import as_one
from diagnose.compose.stack.stack import Kept, Stack
from diagnose.model import Decision, Interval, Verdict
from diagnose.program import Program, patch
from diagnose.session import PatchAccepted, TrialStarted
from diagnose.trial.bench import Bench
from diagnose.verdict import CLEAR_SAVING, LEAST_SAVING

CHECK = "leave-one-out check"
_FEW = 3
"""Fixes that are named where there are more."""
_NOT_NEEDED = frozenset({Decision.NO_CHANGE, Decision.SLOWER, Decision.UNEXPLAINED})


@dataclass(frozen=True)
class LeaveOneOut:
    """The check of one composition."""

    bench: Bench
    copy: Callable[[Stack, str], Program]
    """A copy of the program with a stack in it."""
    journal: Journal
    budget: Budget
    given: list[Interval | None] = field(default_factory=list)
    """The saving beside the others of each fix that was taken out."""

    def run(self, stack: Stack, patched: Program) -> tuple[Stack, Program]:
        """Return the stack that remains, with a copy of the program that contains exactly it.

        What others build on is asked once those are gone.
        """
        stack, patched, asked = self._trifles(stack, patched)
        names = [name for name in _order(stack) if name not in asked]
        late: dict[str, str] = {}
        while names:
            before, blocked = stack.names, []
            for name in names:
                if not self._asks(stack, name):
                    continue
                if (refused := self.budget.refused_check()) is not None:
                    late.setdefault(name, refused)
                    continue
                rest = stack.leave_out(name)
                if rest is None:
                    blocked.append(name)
                    continue
                left = self.copy(rest, f"without-{name}")
                if not self._needed(stack, rest, name, left, patched):
                    stack, patched = self._drop(rest, left)
            names = blocked if stack.names != before else []
        self._warn_of(late, stack)
        return stack, patched

    def _trifles(self, stack: Stack, patched: Program) -> tuple[Stack, Program, tuple[str, ...]]:
        """Return what is left once all that is too small for a check of its own had one together, and who that was."""
        names = tuple(kept.fixer.name for kept in stack.kept if kept.foreseen and kept.promised_share < LEAST_SAVING)
        if len(names) < 2 or self.budget.refused_check() is not None:
            return stack, patched, ()
        rest: Stack | None = stack
        for name in reversed(names):
            rest = rest and rest.leave_out(name)
        if rest is None:
            return stack, patched, ()
        kept = [stack.kept[stack.names.index(name)] for name in names]
        left = self.copy(rest, f"without-{names[0]}-and-{len(names) - 1}-more")
        self._start(stack, rest, kept)
        shown = self.journal.verdict_on(names[0]).gate
        fixer = as_one([one.fixer for one in kept])
        found = self.bench.leave_out(fixer, left, patched, self.journal.telling(names[0]), shown).verdict
        goes = found.decision in _NOT_NEEDED and self._may_go(names, found)
        self.given.extend([found.saving] if goes else [])
        for name in names:
            self._tell_of_one_of(names, name, found, rest, goes=goes)
        return (*(self._drop(rest, left) if goes else (stack, patched)), names)

    def _tell_of_one_of(self, names: tuple[str, ...], name: str, found: Verdict, rest: Stack, *, goes: bool) -> None:
        """The last word on one of those that were left out at once."""
        before, those = self.journal.verdict_on(name), listed(names)
        if goes:
            said = f"{those} are not needed beside {_others(rest.names)} ({CHECK} of all at once): {found.summary}"
            self.journal.tell(replace(_with_figures(before, found), decision=found.decision, summary=said))
            return
        needed = f"needed beside {_others(rest.names)}, " if found.decision is Decision.KEPT else ""
        said = f"{CHECK} of {those} at once: {needed}{found.summary}"
        self.journal.tell(replace(before, summary=f"{before.summary}; {said}"))

    def _drop(self, rest: Stack, left: Program) -> tuple[Stack, Program]:
        """Make what is left the stack."""
        self.budget.changed()
        self.journal.record(PatchAccepted(diff=rest.patch.text, fixers=list(rest.names)))
        return rest, left

    def _may_go(self, names: tuple[str, ...], found: Verdict) -> bool:
        """Whether there is time to look at the numbers of what is left; told where there is not."""
        refused = self.budget.refused_drop()
        if refused is not None:
            stay = "stays" if len(names) == 1 else "stay"
            self.journal.warn(f"{listed(names)} {stay}, though the {CHECK} says {found.summary}: {refused}")
        return refused is None

    def _asks(self, stack: Stack, name: str) -> bool:
        """Whether there is something to check."""
        kept = stack.kept[stack.names.index(name)]
        if any(not finding.asks_for_time for finding in kept.findings):
            return False  # time alone does not decide on it
        return stack.names != (name,) or (kept.together and not self._left_over())

    def _left_over(self) -> bool:
        """Whether what was kept at once surely saves time without all that was taken out since: it must be its own."""
        together = self.journal.together[0].saving if len(self.journal.together) == 1 else None
        if together is None or any(saving is None or saving.high >= 1 for saving in self.given):
            return False
        step = (1 - together.low) / math.prod(1 - max(0.0, saving.high) for saving in self.given if saving)
        return 1 - step > CLEAR_SAVING

    def _warn_of(self, late: dict[str, str], stack: Stack) -> None:
        """Say once of all for which there was no time, by name with the reason, what they stay on."""
        together = {kept.fixer.name for kept in stack.kept if kept.together}
        for joint in (True, False):
            names = tuple(name for name in late if (name in together) is joint)
            if not names:
                continue
            stays, its = ("stays", "its") if len(names) == 1 else ("stay", "their")
            word = f"the word of {its} trial with others" if joint else f"{its} own trial's word"
            self.journal.warn(f"no {CHECK} of {listed(names)}, which {stays} on {word}: {late[names[0]]}")

    def _needed(self, stack: Stack, rest: Stack, name: str, left: Program, patched: Program) -> bool:
        """Try the stack against the same without one fix; what cannot be told leaves the fix where it is."""
        kept = stack.kept[stack.names.index(name)]
        self._start(stack, rest, [kept])
        before = self.journal.verdict_on(name)
        shown = before.gate if kept.together else None
        found = self.bench.leave_out(kept.fixer, left, patched, self.journal.telling(name), shown).verdict
        if found.decision in _NOT_NEEDED:
            if not self._may_go((name,), found):
                self.journal.tell(replace(before, summary=f"{before.summary}; {CHECK}: {found.summary}"))
                return True
            self.given.append(found.saving)
            since = () if kept.together else stack.names[stack.names.index(name) + 1 :]
            self.journal.tell(_dropped(before, found, since, rest.names))
            return False
        if found.decision is Decision.KEPT and kept.together:
            so = f"needed beside {_others(rest.names)}" if rest.names else "what is left of them by itself"
            said = f"tried with others at once, and {so}: {found.summary}"
            self.journal.tell(replace(_with_figures(before, found), decision=Decision.KEPT, summary=said))
            return True
        if found.decision is Decision.KEPT:
            said = f"{CHECK}: still needed beside {_others(rest.names)}, {found.summary}"
        else:
            said = f"the {CHECK} could not tell whether it is still needed: {found.summary}"
            self.journal.warn(f"{name} stays: {said}")
        self.journal.tell(replace(before, summary=f"{before.summary}; {said}"))
        return True

    def _start(self, stack: Stack, rest: Stack, out: Sequence[Kept]) -> None:
        """Tell of a check that leaves these out; the first of them stands for all."""
        names = listed([kept.fixer.name for kept in out])
        it, are = ("it", "is") if len(out) == 1 else ("them", "are")
        self.journal.record(
            TrialStarted(
                fixer=out[0].fixer.name,
                setting=dict(out[0].setting),
                predicted_ns=None,
                summary=f"{CHECK}: {listed(rest.names) or 'the original'} without {it} against all together",
                diff=patch.diff({**rest.texts}, {**stack.texts}, stack.program.root),
                where=list(dict.fromkeys(place for kept in out for place in kept.where)),
            )
        )
        beside = f"{are} {names} still needed beside {listed(rest.names)}?"
        self.journal.phase(CHECK, beside if rest.names else f"does {names} hold by itself?")


def _order(stack: Stack) -> list[str]:
    """Those without a trial of their own, then the others, but for the last.

    Of those, the ones whose findings most others treat too come first, and of these the smallest promise.
    """
    cures = Counter(rule for kept in stack.kept for rule in {finding.rule for finding in kept.findings})

    def needless(kept: Kept) -> tuple[int, int]:
        return -min((cures[finding.rule] for finding in kept.findings), default=0), kept.promised_ns

    together = sorted((kept for kept in stack.kept if kept.together), key=needless)
    alone = [kept for kept in stack.kept[:-1] if not kept.together]
    return [kept.fixer.name for kept in (*together, *alone)]


def _dropped(before: Verdict, found: Verdict, since: tuple[str, ...], rest: tuple[str, ...]) -> Verdict:
    """The last word on a fix that is taken out again."""
    were = "was" if len(since) == 1 else "were"
    if not rest:
        why = "what is left of those tried at once does not hold by itself"
    elif found.decision is Decision.UNEXPLAINED:
        why = f"taken out again, though the program is faster with it beside {_others(rest)}"
    elif since:
        why = f"no longer needed since {_since(since)} {were} kept"
    else:
        why = f"not needed beside {_others(rest)}"
    figures = _with_figures(before, found)
    return replace(figures, decision=found.decision, summary=f"{why} ({CHECK}): {found.summary}")


def _with_figures(before: Verdict, found: Verdict) -> Verdict:
    """A verdict with the figures of the check instead of its own."""
    return replace(
        before,
        saving=found.saving,
        saving_ns=found.saving_ns,
        predicted_ns=None,  # nothing was predicted of the check; the trial's own verdict keeps what was
        prediction=None,
        pairs=found.pairs,
        generations=found.generations,
        mechanism=found.mechanism,
        peak_memory_bytes=found.peak_memory_bytes,
        startup_ns=found.startup_ns,
        pays_after_steps=found.pays_after_steps,
    )


def _since(names: tuple[str, ...]) -> str:
    return listed(names) if len(names) <= _FEW else f"{len(names)} further fixes"


def _others(names: tuple[str, ...]) -> str:
    """All of them where they are few: a stack of eight would name seven in each of its verdicts."""
    return listed(names) if len(names) <= _FEW else f"the {len(names)} other kept fixes"
