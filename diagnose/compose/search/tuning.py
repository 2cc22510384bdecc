"""The knobs of kept fixes: set in the end, on the program with all of them, which is fast by then.

In its trial, alone or with others, each had the first of its settings. How many workers a loader needs, or which mode
of a compiler pays, is a question about the program as it has become. That trial looked at the numbers with the first
setting; a better one is taken only if it keeps them too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from diagnose.compose.journal import Journal
from diagnose.compose.search.budget import Budget
from diagnose.compose.stack.stack import Kept, Stack
from diagnose.fixer import Edits, Fixer
from diagnose.model import Gate, GateResult, Interval, Scalar
from diagnose.program import Program
from diagnose.session import PatchAccepted
from diagnose.trial.ab.knob_search import is_scale
from diagnose.trial.bench import Bench
from diagnose.units import format_setting, format_share


@dataclass(frozen=True)
class Tuning:
    """The choice of settings of one composition."""

    bench: Bench
    copy: Callable[[Stack, str], Program]
    """A copy of the program with a stack in it."""
    journal: Journal
    budget: Budget

    def run(
        self, stack: Stack, patched: Program, allow: Collection[Gate], set_before: Collection[str] = ()
    ) -> tuple[Stack, Program]:
        """The stack with the best settings that there was time to find, with a copy of the program that has it in.

        The settings of the fixes that were `set_before` stay.
        """
        for kept in stack.kept:
            # What was only foreseen is small: its cheapest setting is enough.
            settled = kept.tuned or kept.foreseen or kept.fixer.name in set_before
            settled = settled or self.budget.refused(kept.fixer, 2) is not None
            others = [] if settled else _others(kept, allow)
            others = [others[at] for at in self.budget.choices(kept.fixer, len(others), beside=1)]
            if others:
                stack, patched = self._choose(stack, patched, kept, others)
        return stack, patched

    def _choose(
        self, stack: Stack, patched: Program, kept: Kept, others: list[Mapping[str, Scalar]]
    ) -> tuple[Stack, Program]:
        name = kept.fixer.name
        made = [(setting, stack.with_setting(name, setting)) for setting in others]
        ways = [(kept.setting, stack), *((setting, other) for setting, other in made if other is not None)]
        copies = [patched, *(self.copy(other, name) for _, other in ways[1:])]
        phase = f"choosing the setting of {name}"
        self.journal.phase(phase, ", ".join(format_setting(setting) for setting, _ in ways))

        beside_it: dict[int, str] = {}

        def tried(number: int, against: int, saving: Interval | None) -> None:
            told = outcome(ways[number][0], ways[against][0], saving)
            self.journal.phase(phase, told)
            if against == 0 and saving is not None:
                beside_it[number] = told

        best = self.bench.choose(copies, tried, scale=is_scale([setting for setting, _ in ways]))[0]
        # What was never measured beside the setting that is known to run, because that failed here, proves nothing.
        if best not in beside_it:
            return stack, patched
        setting, chosen = ways[best]
        gate = self._gate(kept.fixer, patched, copies[best])
        if gate.passed is not True:
            why = "the numbers change" if gate.passed is False else "the numbers could not be checked"
            self.journal.warn(
                f"{name} stays at {format_setting(kept.setting)}: {format_setting(setting)} is faster, but {why}: "
                f"{gate.detail}"
            )
            return stack, patched
        if gate.gate is not Gate.BITWISE:
            self.budget.changed()
        diff = chosen.change(name)
        before = self.journal.verdict_on(name)
        summary = f"{before.summary}; then {beside_it[best]}"
        self.journal.tell(replace(before, summary=summary, setting=dict(setting), diff=diff))
        self.journal.record(PatchAccepted(diff=chosen.patch.text, fixers=list(chosen.names)))
        return chosen, copies[best]

    def _gate(self, fixer: Fixer, patched: Program, chosen: Program) -> GateResult:
        self.journal.phase(f"checking the numbers of {fixer.name} with its new setting", fixer.gate.value)
        return self.bench.gate(fixer.gate, patched, chosen, fixer.rounds_to, loading=fixer.changes_loading)


def outcome(setting: Mapping[str, Scalar], against: Mapping[str, Scalar], saving: Interval | None) -> str:
    """Return a sentence that compares one setting with another."""
    if saving is None:
        return f"{format_setting(setting)}: gave no answer"
    less = "less" if saving.estimate >= 0 else "more"
    found = f"{format_share(abs(saving.estimate))} {less} time per step"
    return f"{format_setting(setting)}: {found} than with {format_setting(against)}"


def _others(kept: Kept, allow: Collection[Gate]) -> list[Mapping[str, Scalar]]:
    """The other settings that have an edit and promise no less: the stack's promise is that of the first."""
    found = []
    for setting in kept.fixer.settings(kept.below.request(kept.findings[0])):
        if dict(setting) == dict(kept.setting):
            continue
        answer = kept.below.answer(kept.fixer, kept.findings, setting)
        if not isinstance(answer, Edits):
            continue
        promise = answer.gate or kept.fixer.gate
        if promise in allow and promise.boldness <= kept.fixer.gate.boldness:
            found.append(setting)
    return found
