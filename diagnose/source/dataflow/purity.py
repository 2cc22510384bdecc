"""Whether an expression only computes: nothing outside of it is changed, no random number is drawn, and no code of the
program's own raises an error in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len", "list", "map", "max", "min", "range"}
    | {"reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip", "isinstance", "divmod"}
)
_METHODS = frozenset(
    {
        "abs",
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "bool",
        "clone",
        "cpu",
        "detach",
        "double",
        "eq",
        "exp",
        "expand",
    }
    | {
        "expand_as",
        "flatten",
        "float",
        "ge",
        "gt",
        "int",
        "isfinite",
        "item",
        "items",
        "keys",
        "le",
        "log",
        "long",
        "lt",
    }
    | {"max", "mean", "min", "ne", "norm", "numel", "numpy", "permute", "reshape", "sigmoid", "size", "softmax", "sqrt"}
    | {"squeeze", "std", "strip", "split", "lower", "join", "sum", "t", "tolist", "topk", "transpose", "unsqueeze"}
    | {"values", "var", "view", "count", "index", "decode", "log_softmax", "square", "round", "unique", "get"}
)
_LIBRARIES = frozenset({"torch", "numpy", "math", "statistics"})
_DEEPEST = 6


def only_computes(source: Source, node: cst.CSTNode, functions: Mapping[str, cst.FunctionDef], depth: int = 0) -> bool:
    """Whether a node calls nothing but what is known to compute; `functions` are the file's own, by name."""
    if (
        any(source.every(cst.Await, node))
        or any(source.every(cst.Yield, node))
        or any(source.every(cst.NamedExpr, node))
    ):
        return False
    return all(_is_known(source, call, functions, depth) for call in source.every(cst.Call, node))


def _is_known(source: Source, call: cst.Call, functions: Mapping[str, cst.FunctionDef], depth: int) -> bool:
    function = call.func
    if isinstance(function, cst.Name):
        if binding_of(source, function) is not None:
            return False  # a parameter, or an object that is called
        if function.value in functions:
            return depth < _DEEPEST and _function_computes(source, functions[function.value], functions, depth + 1)
        return function.value in _BUILTINS
    if not isinstance(function, cst.Attribute):
        return False
    if any(name.split(".")[0] in _LIBRARIES for name in source.names(function)):
        return function.attr.value in _METHODS
    if function.attr.value == "get" and not _looks_up(call):
        return False
    return function.attr.value in _METHODS and function.attr.value not in _own_methods(source)


def _looks_up(call: cst.Call) -> bool:
    """Whether `get` looks a key up, as a dictionary does; a queue gives away what it holds."""
    key = call.args[0] if call.args else None
    blocks = key is not None and isinstance(key.value, cst.Name) and key.value.value in {"True", "False"}
    return key is not None and key.keyword is None and not blocks


@per_source
def _own_methods(source: Source) -> frozenset[str]:
    """Methods that classes of the file define, which may do anything."""
    return frozenset(
        function.name.value for owner in source.every(cst.ClassDef) for function in source.every(cst.FunctionDef, owner)
    )


def _function_computes(
    source: Source, function: cst.FunctionDef, functions: Mapping[str, cst.FunctionDef], depth: int
) -> bool:
    """Whether a function binds its own names only, and calls nothing but what computes."""
    if function.decorators or function.asynchronous is not None or any(source.every(cst.NameItem, function)):
        return False
    own = {param.name.value for param in source.every(cst.Param, function)}
    bound: set[str] = set()
    for target in source.every(cst.AssignTarget, function):
        if isinstance(target.target, cst.Name | cst.Tuple):
            bound |= {name.value for name in source.every(cst.Name, target.target)}
    for target in source.every(cst.AssignTarget, function):
        if not _stays_inside(target.target, bound - own):
            return False
    for augmented in source.every(cst.AugAssign, function):
        if not isinstance(augmented.target, cst.Name) and not _stays_inside(augmented.target, bound - own):
            return False
    if any(any(source.every(kind, function)) for kind in (cst.Del, cst.Raise, cst.Assert)):
        return False
    return only_computes(source, function.body, functions, depth)


def _stays_inside(target: cst.BaseExpression, own: set[str]) -> bool:
    """Whether an assignment binds a name, or changes what the function made itself."""
    if isinstance(target, cst.Name):
        return True
    if isinstance(target, cst.Tuple | cst.List):
        return all(_stays_inside(element.value, own) for element in target.elements)
    while isinstance(target, cst.Subscript):
        target = target.value
    return isinstance(target, cst.Name) and target.value in own
