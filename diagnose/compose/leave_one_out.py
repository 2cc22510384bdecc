"""Whether each kept fix is still needed beside those that came after it.

A fix was measured on top of what had been kept before. What came later may cure the same ailment better, and then the
earlier one is a line of the user's source for nothing. So the stack is run against itself without each fix but the last
one, whose own trial was just that. Of fixes that were tried at once this is the trial of each: those that promised
least go first, since they are the likeliest to be there for nothing. Where only one of them is left, it is tried
against the original: what they gave together was not its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from diagnose.compose.budget import Budget
from diagnose.compose.journal import Journal, listed
from diagnose.compose.stack import Kept, Stack
from diagnose.compose.trials import Trials
from diagnose.model import Decision, Verdict
from diagnose.program import Program, patch
from diagnose.session import PatchAccepted, TrialStarted

CHECK = "leave-one-out check"
_FEW = 3
_NOT_NEEDED = frozenset({Decision.NO_CHANGE, Decision.SLOWER, Decision.UNEXPLAINED})


@dataclass(frozen=True)
class LeaveOneOut:
    """The check of one composition."""

    bench: Trials
    copy: Callable[[Stack, str], Program]
    """A copy of the program with a stack in it."""
    journal: Journal
    budget: Budget

    def run(self, stack: Stack, patched: Program) -> tuple[Stack, Program]:
        """What is left of the stack, with a copy of the program that has just that in it.

        What others build on is asked once those are gone.
        """
        names = _order(stack)
        late: dict[str, str] = {}
        while names:
            before, blocked = stack.names, []
            for name in names:
                if not self._asks(stack, name):
                    continue
                if (refused := self.budget.refused_check()) is not None:
                    late.setdefault(name, refused)
                    continue
                rest = stack.without(name)
                if rest is None:
                    blocked.append(name)
                    continue
                left = self.copy(rest, f"without-{name}")
                if not self._needed(stack, rest, name, left, patched):
                    stack, patched = rest, left
                    self.budget.changed()
                    self.journal.record(PatchAccepted(diff=stack.patch.text, fixers=list(stack.names)))
            names = blocked if stack.names != before else []
        self._warn_of(late, stack)
        return stack, patched

    def _asks(self, stack: Stack, name: str) -> bool:
        """Whether there is something to check."""
        kept = stack.kept[stack.names.index(name)]
        if any(not finding.asks_for_time for finding in kept.findings):
            return False  # time alone does not decide on it
        return stack.names != (name,) or kept.together  # else it had a trial of its own

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
        self._start(stack, rest, kept)
        before = self.journal.verdict_on(name)
        shown = before.gate if kept.together else None
        found = self.bench.leave_out(kept.fixer, left, patched, self.journal.telling(name), shown).verdict
        if found.decision in _NOT_NEEDED:
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

    def _start(self, stack: Stack, rest: Stack, kept: Kept) -> None:
        name = kept.fixer.name
        self.journal.record(
            TrialStarted(
                fixer=name,
                setting=dict(kept.setting),
                predicted_ns=None,
                summary=f"{CHECK}: {listed(rest.names) or 'the original'} without it against all together",
                diff=patch.diff({**rest.texts}, {**stack.texts}, stack.program.root),
                where=list(kept.where),
            )
        )
        asked = f"is {name} still needed beside {listed(rest.names)}?" if rest.names else f"does {name} hold by itself?"
        self.journal.phase(CHECK, asked)


def _order(stack: Stack) -> list[str]:
    """Those without a trial of their own, the smallest promise first; then the others, but for the last."""
    together = sorted((kept for kept in stack.kept if kept.together), key=lambda kept: kept.promised_ns)
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
