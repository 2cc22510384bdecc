"""Whether more than a layer's own `forward` may happen where a model calls it: hooks, adapters, another layer.

An edit that computes with the layer's weights in place of the call leaves all of that out.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, parameter_of, passed_to
from diagnose.source.rewrite.hooks import module_hook
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_ADAPT = (
    "torch.nn.utils.weight_norm",
    "torch.nn.utils.spectral_norm",
    "torch.nn.utils.parametrizations.",
    "torch.nn.utils.parametrize.",
    "torch.nn.utils.prune.",
    "torch.quantization.",
    "torch.ao.",
    *(f"{library}." for library in ("peft", "torchao", "opacus", "bitsandbytes", "loralib", "transformer_engine")),
)
"""Functions that compute a layer's weight before each call, or put other layers in the place of a model's."""


def adaptation(sources: Mapping[str, str], name: str, kinds: Collection[str]) -> str | None:
    """The file and line of the first such place for a layer `self.name`; None where there is none.

    `kinds` are the classes, `torch.nn.Linear`, that may take the layer's place.
    """
    hooked = module_hook(sources)
    if hooked is not None:
        return hooked
    parsed = parse_all(sources)
    for path, source in parsed.items():
        for node in (*_calls(parsed, source, name, kinds), *_assignments(parsed, source, name, kinds)):
            return f"{path}:{source.lines_of(node)[0]}"
    return None


def _calls(parsed: Mapping[str, Source], source: Source, name: str, kinds: Collection[str]) -> Iterator[cst.CSTNode]:
    for call in source.every(cst.Call):
        if any(each.startswith(_ADAPT) for each in source.names(call.func)):
            yield call
        if call_name(call) == "setattr" and len(call.args) == 3:
            what, value = call.args[1].value, call.args[2].value
            named = what.evaluated_value == name if isinstance(what, cst.SimpleString) else True
            if named and any(_is_other(at, each, kinds) for at, each in _values(parsed, source, value)):
                yield call


def _assignments(
    parsed: Mapping[str, Source], source: Source, name: str, kinds: Collection[str]
) -> Iterator[cst.CSTNode]:
    """Yield where a layer, or its `forward`, is set beside the constructor of the class that has it."""
    for assign in source.every(cst.Assign):
        for target in (each.target for each in assign.targets):
            if isinstance(target, cst.Subscript) and source.code(target.value).endswith("._modules"):
                yield assign
            if not isinstance(target, cst.Attribute):
                continue
            if target.attr.value == "forward":
                yield assign
            own = source.code(target.value) == "self" and not _inherits(parsed, source, target, name)
            values = _values(parsed, source, assign.value) if target.attr.value == name and not own else ()
            if any(_is_other(at, each, kinds) for at, each in values):
                yield assign


def _inherits(parsed: Mapping[str, Source], source: Source, node: cst.CSTNode, name: str) -> bool:
    """Whether the class around a node has the layer from another one of the program."""
    around = source.inside(node, cst.ClassDef)
    bases = {source.code(base.value).rpartition(".")[2] for base in (around.bases if around is not None else ())}
    classes = ((other, each) for other in parsed.values() for each in other.every(cst.ClassDef))
    return any(each.name.value in bases and members_named(other, each, name) for other, each in classes)


def _values(
    parsed: Mapping[str, Source], source: Source, value: cst.BaseExpression
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """Yield what an expression may be, through a variable, or an argument of the function around it."""
    if not isinstance(value, cst.Name):
        yield source, value
        return
    yield from ((source, each) for each in bound_to(source, value) if isinstance(each, cst.BaseExpression))
    function = source.inside(value, cst.FunctionDef)
    parameter = parameter_of(function, value.value) if function is not None else None
    if function is not None and parameter is not None:
        given = passed_to(function, parameter, None, parsed) or []
        yield from ((parsed[path], each) for path, each in given if each is not None)


def _is_other(source: Source, value: cst.BaseExpression, kinds: Collection[str]) -> bool:
    """Whether a value may be a layer of another kind: what a call makes that is none of these, nor of Python's own."""
    if not isinstance(value, cst.Call) or hasattr(builtins, call_name(value)):
        return False
    names = source.names(value.func)
    return not names & set(kinds) and not any(each.partition(".")[0] in sys.stdlib_module_names for each in names)
