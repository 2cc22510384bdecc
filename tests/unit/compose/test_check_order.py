"""Which fixers `diagnose check --all` asks the gates about first."""

from __future__ import annotations

from composing import ITEM, LOADER, MODEL, finding, fixer, replacing

from diagnose.compose.check import AskedFixer, least_first
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import ProposedEdits, Variant
from diagnose.fixer import Edits, Fixer
from diagnose.model import Gate

COMPILER = fixer("compile-model", replacing("a", "b"), order=60)
TRAINS = fixer("autocast", replacing("a", "b"), Gate.TRAINING)


def asked(one: Fixer, *, edits: bool = True) -> AskedFixer:
    variants = (Variant({}, Edits({}, "made up"), one),) if edits else ()
    return AskedFixer(one, ProposedEdits(Proposal(one, (finding("rule", 1, one.name),)), variants))


def test_gates_that_take_least_come_first_and_what_compiles_last() -> None:
    order = sorted(
        [asked(COMPILER), asked(TRAINS), asked(MODEL), asked(LOADER), asked(ITEM, edits=False)], key=least_first
    )
    assert [one.fixer.name for one in order] == [
        "no-item",
        "faster-loader",
        "narrow-model",
        "autocast",
        "compile-model",
    ]
