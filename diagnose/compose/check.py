"""Asks fixers about a program whatever the findings say, and has the gates look at what they would write.

A fixer is asked for every rule that names it: with the finding of the watched run where there is one, else with a
finding that names no line and promises nothing. A fixer that has no edit then is asked again with the lines that every
step runs, as some edit only what a finding names. All else that it may look at was recorded of the program: what needs
a device has no edit on a machine without one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.compose.journal import NOTHING_TO_CHANGE, Journal, Record
from diagnose.compose.proposals.candidates import candidates
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import ProposedEdits, Variant, ask
from diagnose.compose.stack.run_context import knowledge
from diagnose.compose.stack.stack import Stack
from diagnose.errors import UsageError
from diagnose.fixer import Fixer
from diagnose.model import Confidence, Diagnosis, EditCheck, Finding, GateAnswer, GateCheck, Place, Severity
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.memo import per_program
from diagnose.source.tree.time_limit import TookTooLong
from diagnose.trace import Trace
from diagnose.trial.bench import Bench
from diagnose.trial.process.process_group import never, undisturbed
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram, multiplies_in_narrow_formats
from diagnose.units import format_setting

_UNTOLD = "no finding of this run: asked all the same"
_ANSWERS = {True: GateAnswer.PASSED, False: GateAnswer.REFUSED, None: GateAnswer.UNVERIFIED}


@dataclass(frozen=True)
class AskedFixer:
    """A fixer and what it would do."""

    fixer: Fixer
    answers: ProposedEdits | None = None
    broken: str = ""
    """How the fixer itself failed."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """One for each setting that leads to an edit."""
        return self.answers.variants if self.answers else ()

    def without_edit(self) -> EditCheck:
        """Why there is nothing to check."""
        advice = "; ".join(dict.fromkeys(text for _, text in self.answers.advice)) if self.answers else ""
        return EditCheck(self.fixer.name, self.broken or advice or NOTHING_TO_CHANGE)


def check(
    program: Program,
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    catalogue: Catalogue,
    names: Sequence[str],
    record: Record,
    folder: Path,
    setting: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
    cancelled: Callable[[], bool] = never,
) -> Iterator[EditCheck]:
    """Yield the edits of these fixers and the gates' answers. The copies below `folder` are removed at the end.

    Those whose gates take least come first, as none may begin after the deadline. `setting` chooses among a fixer's
    settings. Raises UsageError where none of them has it, and Cancelled.
    """
    known = knowledge(program, diagnosis, traces)
    stack, journal = Stack.of(program, known), Journal(record)
    asked = [_ask(stack, diagnosis, catalogue, catalogue.fixers[name]) for name in names]
    chosen = {one.fixer.name: _chosen(one, setting or {}) for one in asked if one.variants}
    if not chosen:
        yield from (one.without_edit() for one in asked)
        return
    trials, compiles = folder / "trials", any(site.kind == "compile" for site in known.sites)
    try:
        with Bench(
            program,
            trials,
            Schedule(),
            deadline or Deadline(),
            WatchedProgram.of(traces, compiles=compiles, narrow=multiplies_in_narrow_formats(diagnosis)),
            on_phase=journal.phase,
            cancelled=cancelled,
        ) as bench:
            original = bench.copy({}, "original")
            for one in sorted(asked, key=least_first):
                if one.variants:
                    yield _checked(bench, journal, stack, original, one, chosen[one.fixer.name])
                else:
                    yield one.without_edit()
    finally:
        with undisturbed():
            shutil.rmtree(trials, ignore_errors=True)


def least_first(asked: AskedFixer) -> tuple[bool, int]:
    """The sort key of fixers: those without an edit first, then by how long their gates take, compilers last."""
    boldest = max((variant.fixer.gate.boldness for variant in asked.variants), default=-1)
    return asked.fixer.compiles and bool(asked.variants), boldest


def _checked(
    bench: Bench, journal: Journal, stack: Stack, original: Program, asked: AskedFixer, variant: Variant
) -> EditCheck:
    name = asked.fixer.name
    journal.phase(f"checking {name}", variant.fixer.gate.value)
    patched = bench.copy(variant.answer.files, name)
    return EditCheck(
        name,
        variant.answer.summary,
        stack.diff(variant.answer),
        _gate_answers(bench, variant.fixer, original, patched),
        variant.setting,
        tuple(one.setting for one in asked.variants),
    )


def _gate_answers(bench: Bench, fixer: Fixer, original: Program, patched: Program) -> tuple[GateCheck, ...]:
    """Return each gate's answer. Whole runs are compared unless the numbers are refused: a program whose first steps
    cannot be captured may still be run from start to end.

    A program that fails with the edit, and not without it, is refused: nothing else is known to be wrong with it.
    """
    found = bench.numbers(fixer.gate, original, patched, fixer.rounds_to)
    broken = bench.broken_by(original, patched) if found.passed is None else None
    if broken is not None:
        return (GateCheck(found.gate.value, GateAnswer.REFUSED, f"with the edit {broken}; without it, it gives them"),)
    numbers = GateCheck(found.gate.value, _ANSWERS[found.passed], found.detail)
    if numbers.answer is GateAnswer.REFUSED:
        return (numbers,)
    return (numbers, *bench.whole_runs(found.gate, original, patched, fixer.rounds_to, loading=fixer.changes_loading))


def _ask(stack: Stack, diagnosis: Diagnosis, catalogue: Catalogue, fixer: Fixer) -> AskedFixer:
    """Return what a fixer does for all rules that name it."""
    real = {one.finding.rule: one.finding for one in candidates(stack.program, diagnosis.findings, catalogue)}
    rules = [rule.name for rule in catalogue.rules.values() if fixer.name in rule.fixers]
    rules.sort(key=lambda rule: rule not in real)  # of what the run found, the setting is the right one
    findings = tuple(real.get(rule) or _untold(rule) for rule in rules)
    try:
        answers = ask(stack, Proposal(fixer, findings))
        if not answers.variants:
            steps = _lines_of_steps(stack.request(_untold("")).sources)
            lined = tuple(finding if finding.where else replace(finding, where=steps) for finding in findings)
            again = ask(stack, Proposal(fixer, lined))
            answers = again if again.variants or not answers.advice else answers
    except TookTooLong as error:
        return AskedFixer(fixer, broken=str(error))
    except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
        return AskedFixer(fixer, broken=f"the fixer itself failed: {error!r}")
    return AskedFixer(fixer, answers)


def _untold(rule: str) -> Finding:
    return Finding(rule, Severity.LOW, None, 0, 0.0, Confidence.HINT, _UNTOLD)


@per_program
def _lines_of_steps(sources: Mapping[str, str]) -> tuple[Place, ...]:
    """The lines that every step runs."""
    stretches = ((stretch.path, *stretch.lines) for stretch in EveryStep(sources).stretches)
    lines = ((path, line) for path, first, last in stretches for line in range(first, last + 1))
    return tuple(Place(path, line) for path, line in dict.fromkeys(lines))


def _chosen(asked: AskedFixer, wanted: Mapping[str, str]) -> Variant:
    """The first variant with these values. Raises UsageError where there is none."""
    for variant in asked.variants:
        if all(str(variant.setting.get(name)) == value for name, value in wanted.items()):
            return variant
    words = format_setting(wanted)
    there = "; ".join(format_setting(variant.setting) or "no setting" for variant in asked.variants)
    raise UsageError(f"{asked.fixer.name} has no setting {words} for this program; there is: {there}")
