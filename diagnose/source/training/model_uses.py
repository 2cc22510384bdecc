"""Where a program needs the model itself once a wrapper of torch's stands around it.

A wrapper trains and lists parameters as the model does. It has no other attribute of the model's, its parameters bear
other names, and a rank that runs it alone waits for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.training.model_construction import Built
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

__all__ = ["asked_elsewhere", "asks_rank", "needs_model", "uses_of_model"]

_OF_THE_WRAPPER = frozenset(
    {"parameters", "train", "eval", "zero_grad", "buffers", "modules", "training", "requires_grad_"}
)
"""What the wrapper has as the model has it; names of parameters are others."""
_ASKS_RANK = re.compile(r"\b\w*rank\b|is_main|is_master|get_rank", re.IGNORECASE)


def uses_of_model(source: Source, below: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    """`name` wherever it has to be the model itself: for an attribute of its own, or where one rank alone runs it."""
    for node in source.walk(below):
        if not isinstance(node, cst.Name | cst.Attribute) or source.code(node) != name:
            continue
        parent = source.parent(node)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            if parent.attr.value not in _OF_THE_WRAPPER:
                yield node
        elif isinstance(parent, cst.Call | cst.Arg) and _on_one_rank(source, node, below):
            yield node


def needs_model(
    sources: Mapping[str, str], built: Built, after: int, gone: Sequence[cst.CSTNode], step: TrainingStep
) -> list[int]:
    """Where names of the model end, as offsets, that have to become names of what the wrapper holds.

    Looked at are the scope that builds it, from `after` on, or all of its class where it is an attribute; what lies in
    `gone` does not count.
    """
    source = built.source
    owner = source.inside(built.scope, cst.ClassDef) if built.name.startswith("self.") else None
    found: dict[int, None] = {}
    for scope in [built.scope] if owner is None else source.every(cst.FunctionDef, owner):
        used = [*uses_of_model(source, scope, built.name)]
        used += [arg.value for arg in _handed_on(sources, source, scope, built.name, step)]
        for node in used:
            early = scope is built.scope and source.span(node)[0] < after
            if not early and not any(within(source, node, each) for each in gone):
                found[source.span(node)[1]] = None
    return list(found)


def asked_elsewhere(sources: Mapping[str, str], built: Built, step: TrainingStep) -> str | None:
    """The place in another function that asks for what only the model has; None where there is none."""
    in_class = built.name.startswith("self.") and step.model == built.name and step.path == built.path
    if step.scope is built.scope or step.model is None or in_class:
        return None
    used = [*uses_of_model(step.source, step.scope, step.model)]
    used += [arg.value for arg in _handed_on(sources, step.source, step.scope, step.model, step)]
    return f"{step.path}:{step.source.lines_of(used[0])[0]}" if used else None


def asks_rank(source: Source, branch: cst.If) -> bool:
    """Whether a question has another answer on one rank than on the others."""
    return _ASKS_RANK.search(source.code(branch.test)) is not None


def _on_one_rank(source: Source, node: cst.CSTNode, below: cst.CSTNode) -> bool:
    branches = [above for above in source.ancestors(node) if isinstance(above, cst.If) and within(source, above, below)]
    return any(asks_rank(source, branch) for branch in branches)


def _handed_on(
    sources: Mapping[str, str], source: Source, below: cst.CSTNode, name: str, step: TrainingStep
) -> Iterator[cst.Arg]:
    """Where the model is given to a function of the program's own that needs the model itself."""
    for call in source.every(cst.Call, below):
        for at, arg in enumerate(call.args):
            if source.code(arg.value) == name and _needs_itself(sources, call, at, step):
                yield arg


def _needs_itself(sources: Mapping[str, str], call: cst.Call, at: int, step: TrainingStep) -> bool:
    keyword = call.args[at].keyword
    for other in filter(None, map(parse, sources.values())):
        for function in other.every(cst.FunctionDef):
            names = [each.name.value for each in function.params.params if each.name.value != "self"]
            given = keyword.value if keyword is not None else names[at] if at < len(names) else None
            trains = other.text == step.source.text and function.deep_equals(step.scope)
            if function.name.value == call_name(call) and given in names and not trains:
                return given is not None and any(uses_of_model(other, function.body, given))
    return False
