"""Lists every proposal's change to the program as it is, without a trial.

Nothing runs and nothing is kept. A trial puts each fix on top of those kept before it and asks the findings again, so
that fewer of these come to their turn, and some with another diff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.compose.journal import Journal, Record
from diagnose.compose.proposals.candidates import candidates
from diagnose.compose.proposals.fixes_without_finding import UNNAMED, is_named, unnamed
from diagnose.compose.proposals.proposals import Proposal, proposals
from diagnose.compose.proposals.proposed_edits import Variant, ask
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.model import Decision, Diagnosis, Gate, Scalar, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.source.tree.time_limit import TookTooLong

NOT_ALLOWED = "it changes the training itself; `--allow training` lets it be tried"


def not_allowed(variants: Sequence[Variant]) -> str:
    """Why none of these is tried unasked."""
    because = next((variant.answer.because for variant in variants if variant.answer.because), "")
    return NOT_ALLOWED.replace(";", f": {because};", 1) if because else NOT_ALLOWED


def preview(
    program: Program,
    diagnosis: Diagnosis,
    known: RunContext,
    catalogue: Catalogue,
    record: Record,
    allow: frozenset[Gate],
) -> tuple[Verdict, ...]:
    """One verdict for each fixer that would change something, most promising first; advice beside it."""
    journal, stack = Journal(record), Stack.of(program, known)
    advised: set[str] = set()
    named = tuple(candidates(program, diagnosis.findings, catalogue))
    more = unnamed(diagnosis, known.facts, catalogue, {one.fixer.name for one in named})
    for proposal in proposals((*named, *more)):
        name = proposal.fixer.name
        try:
            found = ask(stack, proposal)
        except TookTooLong as error:
            journal.tell_of(Verdict(name, Decision.NOT_TRIED, str(error)), proposal)
            continue
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            journal.tell_of(Verdict(name, Decision.FAILED, f"the fixer itself failed: {error!r}"), proposal)
            continue
        for finding, text in found.advice:
            if text not in advised and finding.rule != UNNAMED:
                advised.add(text)
                journal.tell_of(Verdict(name, Decision.ADVICE, text), Proposal(proposal.fixer, (finding,)))
        if not found.variants:
            if not found.advice and is_named(proposal):
                journal.tell_of_none(name)
            continue
        allowed = [variant for variant in found.variants if variant.fixer.gate in allow]
        first = (allowed or found.variants)[0]
        summary = first.answer.summary + _settings([variant.setting for variant in found.variants])
        if not allowed:
            summary += f" ({not_allowed(found.variants)})"
        verdict = Verdict(name, Decision.NOT_TRIED, summary, diff=stack.diff(first.answer))
        journal.tell_of(verdict, found.proposal)
    return journal.verdicts


def _settings(settings: list[Mapping[str, Scalar]]) -> str:
    """The knobs that a trial would choose between."""
    if len(settings) < 2:
        return ""
    each = (", ".join(f"{name}={value}" for name, value in one.items()) for one in settings)
    return f"; the best of {len(settings)} settings would be chosen: {'; '.join(each)}"
