"""Fixes none of which is enough by itself: those that ran out of memory, on top of one another until the program runs.

All pairs and triples would take too many trials, so they are put on one at a time, each at the setting that saves most
and asked anew about the program as it stands: first the one with which the program came farthest, of those alike the
one that the findings name first. One with which it dies earlier than without it is left out. Once the program runs,
those that it does not need go, and cheaper settings are looked for, as far as there is time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnose.compose.journal import listed
from diagnose.compose.oom.oom_survival import Alive, OomSurvival, died, verdict_on
from diagnose.compose.proposals.candidates import Candidate, followed
from diagnose.compose.proposals.constraints import excluded_by, goes_first
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import Variant, ask
from diagnose.compose.stack.stack import Stack
from diagnose.model import Decision, Gate, Scalar
from diagnose.trial.process.oom_progress import OomProgress
from diagnose.trial.standalone import StandaloneRun

_NO_TIME = "there is no time"


@dataclass(frozen=True)
class Short:
    """A fix with which alone the program runs out of memory, even at the setting that saves most."""

    proposal: Proposal
    reached: OomProgress


def rescue_together(survival: OomSurvival, short: Sequence[Short], allow: frozenset[Gate]) -> Stack | None:
    """A stack of several with which the program runs, and whose numbers hold as far as they can be compared."""
    rescue = _Together(survival, allow, {one.proposal.fixer.name: one.proposal for one in short})
    tall = rescue.grown(short)
    if tall is None:
        return None
    lean = rescue.without_needless(tall)
    alive = rescue.relaxed(lean)
    return alive.stack if rescue.holds(alive, lean) else None


@dataclass(frozen=True)
class _Together:
    survival: OomSurvival
    allow: frozenset[Gate]
    proposals: Mapping[str, Proposal]
    """The proposal of each fixer, as it was tried by itself."""
    settings: dict[str, Sequence[Mapping[str, Scalar]]] = field(default_factory=dict)
    """The settings of each fixer in the stack, the cheapest first."""

    def grown(self, short: Sequence[Short]) -> Alive | None:
        """One on top of the other, until the program runs; None where it never does."""
        waiting = sorted(short, key=lambda one: one.reached.at_least, reverse=True)
        stack, reached = self.survival.original, OomProgress()
        while waiting:
            first = goes_first(waiting[0].proposal.fixer, [one.proposal.fixer for one in waiting])
            one = next(one for one in waiting if one.proposal.fixer.name == first.name)
            waiting.remove(one)
            put = self._put_on(stack, one.proposal)
            if put is None:
                continue
            variant, taller = put
            if not stack.kept:
                stack, reached = taller, one.reached  # it has been tried
                continue
            if self.survival.deadline.passed:
                names = listed([each.proposal.fixer.name for each in (one, *waiting)])
                self.survival.journal.warn(f"{_NO_TIME} to try {listed(stack.names)} together with {names}")
                return None
            seen = self._tried(stack, one.proposal, variant, taller)
            if seen.failure is None:
                return Alive(taller, seen)
            if seen.failure.decision is Decision.OUT_OF_MEMORY and not seen.reached.before(reached):
                stack, reached = taller, seen.reached
        return None

    def _put_on(self, stack: Stack, proposal: Proposal) -> tuple[Variant, Stack] | None:
        """The setting of a fixer that saves most, on a stack; None where it has no edit or may not stand there."""
        fixer, original = proposal.fixer, self.survival.original
        rival = excluded_by(fixer, [kept.fixer for kept in stack.kept])
        if rival is not None:
            self._add(fixer.name, f"not tried beside {rival}, which excludes it")
            return None
        moved = followed([Candidate(one, fixer) for one in proposal.findings], original.texts, stack.texts)
        try:
            found = ask(stack, Proposal(fixer, tuple(one.finding for one in moved)))
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            self._add(fixer.name, f"beside {listed(stack.names)}, the fixer itself failed: {error!r}")
            return None
        variants = [variant for variant in found.variants if variant.fixer.gate in self.allow]
        if not variants:
            self._add(fixer.name, f"nothing to change beside {listed(stack.names)}")
            return None
        leanest = variants[-1]
        self.settings[fixer.name] = [variant.setting for variant in variants]
        return leanest, stack.with_fix(leanest.fixer, found.proposal.findings, leanest.setting, leanest.answer)

    def _tried(self, stack: Stack, proposal: Proposal, variant: Variant, taller: Stack) -> StandaloneRun:
        """Told where the program does not run."""
        beside = f", beside {listed(stack.names)}"
        verdict = self.survival.begin(proposal, variant.fixer, variant.setting, variant.answer.summary + beside, taller)
        seen = self.survival.run(taller)
        if seen.failure is not None:
            self.survival.journal.tell_of(died(verdict, seen.failure, stack.names), proposal)
        return seen

    def without_needless(self, alive: Alive) -> Alive:
        """Each left out once, but for the last: without that the program was seen to die."""
        for name in reversed(alive.stack.names[:-1]):
            if len(alive.stack.kept) == 2:
                break  # each of them was too little
            rest = alive.stack.leave_out(name)
            if rest is None:
                continue
            if not self.survival.has_time:
                self.survival.journal.warn(f"{_NO_TIME} to see whether all of {listed(alive.stack.names)} are needed")
                break
            (kept,) = (one for one in alive.stack.kept if one.fixer.name == name)
            said = f"left out: {listed(rest.names)} without it"
            verdict = self.survival.begin(self.proposals[name], kept.fixer, kept.setting, said, alive.stack)
            seen = self.survival.run(rest)
            if seen.failure is None:
                alive = Alive(rest, seen)
                said = f"not needed beside {listed(rest.names)}: {self.survival.how(seen)} without it"
                told = replace(verdict, decision=Decision.NO_CHANGE, summary=said)
                self.survival.journal.tell_of(told, self.proposals[name])
        return alive

    def relaxed(self, alive: Alive) -> Alive:
        """Give each fix the cheapest setting with which the program runs; one that saves more is taken to run too."""
        for name in alive.stack.names:
            settings = self.settings[name]
            low, high = 0, len(settings) - 1
            while low < high:
                if not self.survival.has_time:
                    names = listed(alive.stack.names)
                    self.survival.journal.warn(f"{_NO_TIME} to try all cheaper settings of {names}")
                    return alive
                middle = (low + high) // 2
                cheaper = alive.stack.with_setting(name, settings[middle])
                seen = self._relaxed(name, cheaper) if cheaper is not None else None
                if cheaper is not None and seen is not None:
                    alive, high = Alive(cheaper, seen), middle
                else:
                    low = middle + 1
        return alive

    def _relaxed(self, name: str, cheaper: Stack) -> StandaloneRun | None:
        """Return how the program runs with a cheaper setting of a fix; None, which is told, where it does not."""
        (kept,) = (one for one in cheaper.kept if one.fixer.name == name)
        others = [other for other in cheaper.names if other != name]
        said = f"a cheaper setting, beside {listed(others)}"
        verdict = self.survival.begin(self.proposals[name], kept.fixer, kept.setting, said, cheaper)
        seen = self.survival.run(cheaper)
        if seen.failure is None:
            return seen
        self.survival.journal.tell_of(died(verdict, seen.failure, others), self.proposals[name])
        return None

    def holds(self, alive: Alive, leaner: Alive) -> bool:
        """Whether the numbers of the whole do, as far as they can be compared; told of each fix either way."""
        stack = alive.stack
        gate = self.survival.gate(stack, leaner.stack if leaner.stack is not stack else None)
        for kept in stack.kept:
            name = kept.fixer.name
            others = listed([other for other in stack.names if other != name])
            how, without = self.survival.how(alive.seen), self.survival.say_without("them")
            summary = f"beside {others}, {how}; {without}; {gate.detail}"
            self.survival.journal.tell_of(verdict_on(kept, stack, summary, gate), self.proposals[name])
        return gate.passed is not False

    def _add(self, name: str, said: str) -> None:
        """Add to the last word on a fix."""
        before = self.survival.journal.verdict_on(name)
        self.survival.journal.tell(replace(before, summary=f"{before.summary}; {said}"))
