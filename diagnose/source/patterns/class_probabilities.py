"""Whether the targets of a cross entropy are seen to be probabilities of classes, which the fused kernels do not take.

They are floating-point numbers; indices of classes are integers, and torch refuses any other.
"""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.bindings import parameter_of, passed_to
from diagnose.source.dataflow.reaching_definitions import Bound, definition_of
from diagnose.source.patterns.formula import operation
from diagnose.source.tree.syntax import Source

_FLOATS = frozenset(
    {"softmax", "log_softmax", "sigmoid", "exp", "float", "double", "half", "bfloat16", "div"} | {"one_hot"}
)
"""What makes floating-point numbers of anything; of one axis more where it is `one_hot`, which is no index either."""
_BY_DEFAULT = frozenset({"rand", "randn", "zeros", "ones", "empty"})
"""What does so unless it is told a number format."""
_OF_THE_SAME = frozenset(
    {"view", "reshape", "flatten", "contiguous", "transpose", "permute", "unsqueeze", "squeeze", "clone", "detach"}
    | {"cuda", "to", "type", "scatter_", "scatter"}
)
_OF_EITHER = frozenset({"add", "sub", "mul", "where", "lerp"})
_FLOAT_FORMATS = frozenset({"float", "float16", "float32", "float64", "double", "half", "bfloat16"})
_WHOLE_FORMATS = frozenset({"long", "int64", "int", "int32", "int16", "int8", "uint8", "short", "bool"})
_WHOLE_FORMATS |= {"LongTensor", "IntTensor"}
_CALLS_FOLLOWED = 2


def are_probabilities(source: Source, targets: cst.BaseExpression) -> bool:
    """Whether they are seen to be; False where nothing says what they are."""
    made = operation(source, targets)
    of_two_axes = made is not None and made.name in {"view", "reshape"} and len(made.operands) == 3
    return of_two_axes or _are_floats(source, targets, _CALLS_FOLLOWED)


def _are_floats(source: Source, node: cst.BaseExpression, calls: int) -> bool:
    if isinstance(node, cst.Float):
        return True
    made = operation(source, node)
    if made is None:
        given = [*_passed(source, node), *_bound(source, node)] if calls and isinstance(node, cst.Name) else ()
        return any(_are_floats(source, value, calls - 1) for value in given)
    formats = {name for kind in (*made.keywords.values(), *made.operands[1:]) for name in _formats(source, kind)}
    if made.name in _FLOATS or formats & _FLOAT_FORMATS:
        return True
    if formats & _WHOLE_FORMATS:
        return False
    if made.name in _BY_DEFAULT:
        return "dtype" not in made.keywords
    parts = made.operands[:1] if made.name in _OF_THE_SAME else made.operands if made.name in _OF_EITHER else ()
    return any(_are_floats(source, part, calls) for part in parts)


def _passed(source: Source, node: cst.Name) -> list[cst.BaseExpression]:
    """Return what the calls of a function in its own file give for the parameter that a name is."""
    found = definition_of(source, node)
    if found.bound is not Bound.PARAMETER or not isinstance(found.statement, cst.FunctionDef):
        return []
    parameter = parameter_of(found.statement, node.value)
    passed = passed_to(found.statement, parameter, None, {"": source}) if parameter is not None else None
    return [value for _, value in passed or () if value is not None]


def _bound(source: Source, node: cst.Name) -> list[cst.BaseExpression]:
    """All that the function binds a name to, where more than one of them may reach it: `t = y`, or else a mixture."""
    scope = source.inside(node, cst.FunctionDef) or source.module
    return [
        each.value
        for each in source.walk(scope, cst.Assign, cst.AugAssign)
        if isinstance(each, cst.Assign | cst.AugAssign)
        for target in (each.targets if isinstance(each, cst.Assign) else [each])
        if isinstance(target.target, cst.Name) and target.target.value == node.value
    ]


def _formats(source: Source, node: cst.BaseExpression) -> set[str]:
    """Return what an expression is called in torch: `long` where it is `torch.long`."""
    return {name.removeprefix("torch.") for name in source.names(node) if name.startswith("torch.")}
