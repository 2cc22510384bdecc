"""The edits that a fixer proposes for its findings, asked of the program as it now stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from diagnose.compose.proposals.line_coverage import left_alone
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Advice, Edits, Fixer
from diagnose.model import Finding, Scalar


@dataclass(frozen=True)
class Variant:
    """One setting of a fixer, with what it would change."""

    setting: Mapping[str, Scalar]
    answer: Edits
    fixer: Fixer
    """The fixer, with the promise of this very answer."""


@dataclass(frozen=True)
class ProposedEdits:
    """A fixer's answer for its findings."""

    proposal: Proposal
    """The proposal, with the findings for which there is an edit; those alone are treated, as far as it does not
    leave them alone."""
    variants: tuple[Variant, ...] = ()
    """One for each setting that leads to an edit; empty where none does."""
    advice: tuple[tuple[Finding, str], ...] = ()
    """The advice that is left to the user, by finding."""


def ask(stack: Stack, proposal: Proposal) -> ProposedEdits:
    """Every finding once, then all that lead to an edit together, with each setting.

    Raises what the fixer raises, and TookTooLong where it looked at the files for longer than there is time.
    """
    with stack.known.asking.limited(proposal.fixer.name, proposal.share):
        return _ask_each(stack, proposal)


def _ask_each(stack: Stack, proposal: Proposal) -> ProposedEdits:
    fixer = proposal.fixer
    edited: list[tuple[Finding, list[Variant]]] = []
    advice: list[tuple[Finding, str]] = []
    for finding in proposal.findings:
        request = stack.request(finding)
        answers = [(setting, fixer.rewrite(replace(request, setting=setting))) for setting in fixer.settings(request)]
        variants = [_variant(fixer, setting, answer) for setting, answer in answers if isinstance(answer, Edits)]
        if variants:
            edited.append((finding, variants))
        else:
            advised = [answer for _, answer in answers if isinstance(answer, Advice)]
            advice += [(finding, _advice_text(stack, answer)) for answer in advised[:1]]
    treated = tuple(finding for finding, _ in edited)
    found = ProposedEdits(replace(proposal, findings=treated), advice=tuple(advice))
    if len(edited) > 1:
        together = ((one.setting, stack.answer(fixer, treated, one.setting)) for one in edited[0][1])
        variants = [_variant(fixer, setting, answer) for setting, answer in together if isinstance(answer, Edits)]
    else:
        variants = edited[0][1] if edited else []
    if not variants:
        return found
    left = tuple(left_alone(fixer, finding, stack.texts, variants[0].answer) for finding in treated)
    return replace(found, proposal=replace(found.proposal, left=left), variants=tuple(variants))


def _advice_text(stack: Stack, advice: Advice) -> str:
    """The text with files named as people see them, from the folder of the program, and lines as they stand there."""
    return stack.as_found_in(advice.text).replace(f"{stack.program.root}{os.sep}", "")


def _variant(fixer: Fixer, setting: Mapping[str, Scalar], answer: Edits) -> Variant:
    return Variant(setting, answer, replace(fixer, gate=answer.gate) if answer.gate else fixer)
