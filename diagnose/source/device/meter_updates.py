"""Whether a method only fills its object: a meter that adds up, and not one that prints, takes the time, or raises."""

from __future__ import annotations

import libcst as cst

from diagnose.source.tree.syntax import Source

_BUILTINS = frozenset(
    {"len", "min", "max", "sum", "abs", "float", "int", "round", "isinstance", "list", "dict", "super"}
)
_METHODS = frozenset(
    {"append", "extend", "appendleft", "popleft", "pop", "clear", "get", "items", "values", "keys", "item"}
)
_LIBRARIES = frozenset({"math", "collections", "statistics"})
_ELSEWHERE = cst.Global | cst.Nonlocal | cst.Raise | cst.Assert | cst.Yield | cst.Await | cst.Try | cst.With | cst.Del
_DEEPEST = 4


def does_more_than_fill(source: Source, around: cst.ClassDef, method: str, depth: int = 0) -> str | None:
    """Return what a method of a class does besides changing its own object; None where it does nothing else."""
    own = {each.name.value: each for each in source.every(cst.FunctionDef, around)}
    function = own.get(method)
    if function is None or function.decorators or depth > _DEEPEST:
        return "is not seen in its class"
    for node in source.walk(function.body):
        if isinstance(node, _ELSEWHERE):
            return f"may do more than fill it, in line {source.lines_of(node)[0]}"
    for target in source.every(cst.AssignTarget, function):
        if not _is_own(target.target):
            return f"changes something else, in line {source.lines_of(target)[0]}"
    for each in source.every(cst.AugAssign, function):
        if not _is_own(each.target):
            return f"changes something else, in line {source.lines_of(each)[0]}"
    for call in source.every(cst.Call, function.body):
        reason = _reason(source, around, call, own, depth)
        if reason is not None:
            return reason
    return None


def hands_itself_on(source: Source, around: cst.ClassDef) -> bool:
    """Whether methods of a class put their object where others find it: `Meter.all.append(self)`."""
    for name in (each for each in source.every(cst.Name, around) if each.value == "self"):
        above = source.parent(name)
        call = source.parent(above) if isinstance(above, cst.Arg) else None
        asked = isinstance(call, cst.Call) and any(each.startswith("builtins.") for each in source.names(call.func))
        if isinstance(above, cst.Arg | cst.Assign | cst.Element | cst.DictElement) and not asked:
            return True
    return False


def _reason(
    source: Source, around: cst.ClassDef, call: cst.Call, own: dict[str, cst.FunctionDef], depth: int
) -> str | None:
    called = call.func
    told = f"calls `{source.code(called)}`, in line {source.lines_of(call)[0]}"
    if isinstance(called, cst.Name):
        return None if called.value in _BUILTINS or source.names(called) & {"collections.deque"} else told
    if not isinstance(called, cst.Attribute):
        return told
    if source.code(called.value) == "self" and called.attr.value in own:
        return does_more_than_fill(source, around, called.attr.value, depth + 1)
    if any(name.partition(".")[0] in _LIBRARIES for name in source.names(called)):
        return None
    return None if called.attr.value in _METHODS else told


def _is_own(target: cst.BaseExpression) -> bool:
    """Whether a target is a variable of the function, or what the object holds."""
    if isinstance(target, cst.Tuple | cst.List):
        return all(_is_own(each.value) for each in target.elements)
    while isinstance(target, cst.Subscript | cst.Attribute):
        if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
            return target.value.value == "self"
        target = target.value
    return isinstance(target, cst.Name)
