"""Where a program needs the model itself once a wrapper of torch's stands around it.

A wrapper trains and lists parameters as the model does. It has no other attribute of the model's, its parameters bear
other names, and a rank that runs it alone waits for all others.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import parameter_of
from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.ranks import asks_rank
from diagnose.source.models.model_construction import Built
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_OF_THE_WRAPPER = frozenset({"parameters", "train", "eval", "zero_grad", "training", "requires_grad_"})
"""What the wrapper has as the model has it; names of parameters are others."""
_TAKE_ITSELF = frozenset({"builtins", "torch", "copy", "pickle"})
"""Modules whose functions are given the model as it is, without a wrapper."""
_MAKE_ANOTHER = frozenset({"compile", "trace", "script", "DistributedDataParallel", "DataParallel", "vars", "setattr"})


class Need(enum.Enum):
    """The form that a use of the model needs once the model is wrapped."""

    WRAPPER = "the wrapper"
    MODEL = "what it holds"
    UNKNOWN = "not known"


def uses_of_model(source: Source, below: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    """`name` wherever it has to be the model itself: for an attribute of its own, or where one rank alone runs it."""
    return (node for node in _mentions(source, below, name) if _need(source, node, below) is Need.MODEL)


def needs_model(
    sources: Mapping[str, str], built: Built, after: int, gone: Sequence[cst.CSTNode], step: TrainingStep
) -> list[int]:
    """Return where names of the model end, as offsets, that have to become names of what the wrapper holds.

    Looked at are the scope that builds it, from `after` on, or all of its class where it is an attribute; what lies in
    `gone` does not count.
    """
    source = built.source
    found: dict[int, None] = {}
    for scope in _scopes(built):
        used = [*uses_of_model(source, scope, built.name)]
        used += [arg.value for arg in _handed_on(sources, source, scope, built.name, step)]
        for node in used:
            early = scope is built.scope and source.span(node)[0] < after
            if not early and not any(within(source, node, each) for each in gone):
                found[source.span(node)[1]] = None
    return list(found)


def asked_elsewhere(sources: Mapping[str, str], built: Built, step: TrainingStep, after: int) -> str | None:
    """The first place that uses the model, from `after` on, in a way that is not understood, or asks in another
    function for what only the model has; None where there is none."""
    own = _own_names(sources)
    for scope in _scopes(built):
        for node in _mentions(built.source, scope, built.name):
            early = scope is built.scope and built.source.span(node)[0] < after
            if not early and _is_unknown(built.source, node, scope, own, step):
                return f"{built.path}:{built.source.lines_of(node)[0]}"
    in_class = built.name.startswith("self.") and step.model == built.name and step.path == built.path
    if step.scope is built.scope or step.model is None or in_class:
        return None
    source = step.source
    used = [*uses_of_model(source, step.scope, step.model)]
    used += [arg.value for arg in _handed_on(sources, source, step.scope, step.model, step)]
    mentions = _mentions(source, step.scope, step.model)
    used += [node for node in mentions if _is_unknown(source, node, step.scope, own, step)]
    return f"{step.path}:{source.lines_of(used[0])[0]}" if used else None


def _scopes(built: Built) -> list[cst.CSTNode]:
    owner = built.source.inside(built.scope, cst.ClassDef) if built.name.startswith("self.") else None
    return [built.scope] if owner is None else [*built.source.every(cst.FunctionDef, owner)]


def _mentions(source: Source, below: cst.CSTNode, name: str) -> Iterator[cst.Name | cst.Attribute]:
    """All of a name below a node but where it is bound, or a function below has a parameter of that name."""
    for node in source.walk(below, cst.Name, cst.Attribute):
        if not isinstance(node, cst.Name | cst.Attribute) or source.code(node) != name:
            continue
        parent = source.parent(node)
        bound = isinstance(parent, cst.AssignTarget | cst.Param | cst.NameItem) or (
            isinstance(parent, cst.Arg) and parent.keyword is node
        )
        bound = bound or (isinstance(parent, cst.AnnAssign) and parent.target is node)
        inner = [each for each in source.ancestors(node) if isinstance(each, cst.FunctionDef) and each is not below]
        inner = [each for each in inner if within(source, each, below)]
        own = any(parameter_of(each, name) is not None for each in inner)
        if not bound and not own and not is_attribute_name(source, node):
            yield node


def _need(source: Source, node: cst.BaseExpression, below: cst.CSTNode) -> Need:
    parent = source.parent(node)
    if isinstance(parent, cst.Attribute):
        return Need.WRAPPER if parent.attr.value in _OF_THE_WRAPPER else Need.MODEL
    if isinstance(parent, cst.Subscript | cst.For | cst.CompFor | cst.FormattedStringExpression):
        return Need.MODEL
    if isinstance(parent, cst.Call):
        return Need.MODEL if _on_one_rank(source, node, below) else Need.WRAPPER
    call = source.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return Need.UNKNOWN
    roots = {each.split(".")[0] for each in source.names(call.func)}
    if roots & _TAKE_ITSELF and call_name(call) not in _MAKE_ANOTHER:
        return Need.MODEL
    return Need.MODEL if _on_one_rank(source, node, below) else Need.UNKNOWN


def _is_unknown(
    source: Source, node: cst.BaseExpression, below: cst.CSTNode, own: Collection[str], step: TrainingStep
) -> bool:
    """Whether neither the wrapper nor the model is known to do; a function of the program's own is looked into."""
    if _need(source, node, below) is not Need.UNKNOWN:
        return False
    parent = source.parent(node)
    call = source.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return True
    owner = step.source.inside(step.scope, cst.ClassDef)
    return call_name(call) not in own and not (owner is not None and call_name(call) == owner.name.value)


def _own_names(sources: Mapping[str, str]) -> frozenset[str]:
    """The functions of a program."""
    return frozenset(name for source in parse_all(sources).values() for name in source.function_names)


def _on_one_rank(source: Source, node: cst.CSTNode, below: cst.CSTNode) -> bool:
    branches = [above for above in source.ancestors(node) if isinstance(above, cst.If) and within(source, above, below)]
    return any(asks_rank(source, branch.test) for branch in branches)


def _handed_on(
    sources: Mapping[str, str], source: Source, below: cst.CSTNode, name: str, step: TrainingStep
) -> Iterator[cst.Arg]:
    """Yield where the model is given to a function of the program's own that needs the model itself."""
    for call in source.every(cst.Call, below):
        for at, arg in enumerate(call.args):
            if source.code(arg.value) == name and _needs_itself(sources, call, at, step):
                yield arg


def _needs_itself(sources: Mapping[str, str], call: cst.Call, at: int, step: TrainingStep) -> bool:
    keyword = call.args[at].keyword
    for other in parse_all(sources).values():
        for function in other.every(cst.FunctionDef):
            names = [each.name.value for each in function.params.params if each.name.value != "self"]
            given = keyword.value if keyword is not None else names[at] if at < len(names) else None
            trains = other.text == step.source.text and function.deep_equals(step.scope)
            if function.name.value == call_name(call) and given in names and not trains:
                return given is not None and any(uses_of_model(other, function.body, given))
    return False
