"""Random numbers that a program draws for each element of an image: laid out otherwise, elements get other numbers.

Torch draws in the order in which elements lie in memory. Rows of numbers lie alike in all programs: what a linear layer
returns, and images once they are flattened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal
from diagnose.source.tree.syntax import Source

_ALIKE = re.compile(
    r"\b(?:rand|randn|randint)_like\(|\bbernoulli\(|_like\([^\n]*\)\.\w*(?:uniform|normal|bernoulli)_\("
)
_DROPS = ("Dropout", "dropout", "dropout_")
_FLATTENS = frozenset({"flatten", "view", "reshape", "mean"})


def image_draw(sources: Mapping[str, str]) -> str | None:
    """Return the first code by which a step may draw a number for each element of an image."""
    code = EveryStep(sources)
    for source in code.sources.values():
        dropped = next((source.code(call) for call in source.calls_named(*_DROPS) if _draws(source, call)), None)
        if dropped is not None:
            return dropped
    models = (source.code(each) for source in code.sources.values() for each in source.every(cst.ClassDef))
    trained = (text for text in models if "def forward(" in text)
    found = (_ALIKE.search(text) for text in (*trained, *(stretch.text for stretch in code.stretches)))
    return next((each[0] for each in found if each is not None), None)


def _draws(source: Source, call: cst.Call) -> bool:
    """Whether a dropout drops anything, and its input is not seen to be rows of numbers."""
    share = argument(call, "p", 0 if call_name(call) == "Dropout" else 1)
    told = literal(share.value) if share is not None else None
    return not (told is not None and told.value == 0) and not _is_of_rows(source, call)


def _is_of_rows(source: Source, call: cst.Call) -> bool:
    chain = source.inside(call, cst.Call)
    if chain is not None and call_name(chain) == "Sequential":
        at = next((number for number, each in enumerate(chain.args) if each.value is call), 0)
        layers = [call_name(each.value) if isinstance(each.value, cst.Call) else "" for each in chain.args]
        return not {"Linear", "Flatten"}.isdisjoint(layers[:at]) or layers[at + 1 : at + 2] == ["Linear"]
    kept = source.inside(call, cst.Assign) if call_name(call) == "Dropout" else None
    written = source.inside(call, cst.ClassDef)
    if written is None:
        return False
    target = source.code(kept.targets[0].target) if kept is not None else source.code(call.func)
    uses = [each for each in source.every(cst.Call, written) if source.code(each.func) == target]
    return bool(uses) and all(_comes_after_rows(source, written, use) for use in uses)


def _comes_after_rows(source: Source, written: cst.ClassDef, use: cst.Call) -> bool:
    """Whether a method flattens, or calls a linear layer, before a call of a dropout, or in its argument."""
    method = source.inside(use, cst.FunctionDef)
    end = source.span(use)[1]
    before = (each for each in source.every(cst.Call, method or written) if each is not use)
    return any(_makes_rows(source, written, each) for each in before if source.span(each)[1] < end)


def _makes_rows(source: Source, written: cst.ClassDef, call: cst.Call) -> bool:
    if call_name(call) in _FLATTENS:
        return True
    built = members_named(source, written, call_name(call)) if isinstance(call.func, cst.Attribute) else []
    return bool(built) and all(isinstance(each, cst.Call) and call_name(each) == "Linear" for each in built)
