"""Whether an expression is seen to be a tensor of truth values: by a comparison, `~`, `.bool()`, and what keeps those.

An index of numbers picks by position, and bytes are not inverted as truth values are: both are written `x[mask]`, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, parameter_of, passed_to
from diagnose.source.dataflow.flow import binds
from diagnose.source.tree.attributes import class_of, members_named
from diagnose.source.tree.definitions import instances_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_TESTS = frozenset(
    {"eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "isclose", "bool"}
    | {"logical_and", "logical_or", "logical_not", "logical_xor"}
)
_KEEP = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "clone", "detach", "cuda"}
    | {"contiguous", "transpose", "permute", "any", "all", "cpu"}
)
"""Methods whose result holds what the tensor holds."""
_DEEPEST = 6


def is_truth(sources: Mapping[str, Source], path: str, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an expression holds truth values whatever way the program goes; False where the program does not say."""
    source = sources[path]
    if depth > _DEEPEST:
        return False
    if isinstance(node, cst.Comparison):
        return not any(isinstance(each.operator, cst.In | cst.NotIn | cst.Is | cst.IsNot) for each in node.comparisons)
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert) and is_truth(sources, path, node.expression, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        both = isinstance(node.operator, cst.BitAnd | cst.BitOr | cst.BitXor)
        return both and all(is_truth(sources, path, each, depth + 1) for each in (node.left, node.right))
    if isinstance(node, cst.Subscript):
        return is_truth(sources, path, node.value, depth + 1)
    if isinstance(node, cst.Call):
        return _is_call(sources, path, node, depth)
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    values = list(_values_given(sources, path, source, node))
    return bool(values) and all(one is not None and is_truth(sources, at, one, depth + 1) for at, one in values)


def _is_call(sources: Mapping[str, Source], path: str, call: cst.Call, depth: int) -> bool:
    source, name = sources[path], call_name(call)
    formats = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "dtype"]
    formats += [arg.value for arg in call.args if arg.keyword is None] if name in {"to", "type"} else []
    if formats:
        return any("torch.bool" in source.names(each) for each in formats)
    if name in source.function_names:
        return False
    if name in _TESTS:
        return True
    kept = name in _KEEP and isinstance(call.func, cst.Attribute)
    return kept and isinstance(call.func, cst.Attribute) and is_truth(sources, path, call.func.value, depth + 1)


def _values_given(
    sources: Mapping[str, Source], path: str, source: Source, node: cst.Name | cst.Attribute
) -> Iterator[tuple[str, cst.BaseExpression | None]]:
    """All that a variable or an attribute is given, each with its file; None for what is not seen."""
    if isinstance(node, cst.Attribute):
        around = class_of(source, node)
        if around is not None and source.code(node.value) == "self":
            yield from ((path, value) for value in members_named(source, around, node.attr.value))
            return
        for at, other in sources.items():
            for assign in other.every(cst.Assign):
                for target in assign.targets:
                    if isinstance(target.target, cst.Attribute) and target.target.attr.value == node.attr.value:
                        yield at, assign.value
        return
    bound = bound_to(source, node)
    if bound:
        yield from ((path, one if isinstance(one, cst.BaseExpression) else None) for one in bound)
        return
    function = source.inside(node, cst.FunctionDef)
    parameter = parameter_of(function, node.value) if function is not None else None
    if function is None or parameter is None or binds(source, function.body, node.value):
        return
    owner = source.inside(function, cst.ClassDef)
    of_instance = owner is not None and function.name.value in {"forward", "__call__"}
    names: set[str | None] = {None}  # the function's own
    if of_instance and owner is not None:
        names = {name for each in sources.values() for name in instances_of(each, owner.name.value)}
    for name in names:
        given = passed_to(function, parameter, name, sources)
        yield from given if given is not None else [(path, None)]
