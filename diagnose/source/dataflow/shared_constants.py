"""Whether a tensor that each turn of a loop makes anew may be one tensor for all turns.

Nothing that runs in the loop may change what it is made of, nor the tensor itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import Loop, scope_of, within
from diagnose.source.dataflow.loop_invariants import is_unchanging
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.reachable_code import ReachableCode
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_READS = frozenset(
    {"len", "print", "sum", "min", "max", "sorted", "enumerate", "zip", "range", "list", "tuple", "float", "int", "str"}
)
"""Builtins that change nothing of what they are given."""
_CHANGES = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "popitem"}
    | {"appendleft", "popleft", "rotate", "add", "discard", "fill", "put", "retain_grad", "backward"}
)
"""Methods of lists, dictionaries, sets and arrays that change them, and what leaves a gradient in a tensor."""
_OF_TENSORS = ("torch.", "numpy.", "math.")


def may_be_shared(sources: Mapping[str, Source], path: str, source: Source, made: cst.Call, loop: Loop) -> bool:
    """Whether the tensor of a call in a loop may be made once, before the loop."""
    if not is_unchanging(source, made, loop):
        return False
    reached = ReachableCode(sources, [(path, source, loop)])
    uses = list(_uses(source, made, loop))
    if any(_may_change(sources, source, use) or _is_kept(source, use) for use in uses):
        return False
    return not any(_is_changed(sources, reached, source, name, made, loop) for name in source.every(cst.Name, made))


def _uses(source: Source, made: cst.Call, loop: Loop) -> Iterator[cst.BaseExpression]:
    """The tensor itself, and all that reads the variable which it is given."""
    yield made
    assign = source.parent(made)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if isinstance(target, cst.Name):
        yield from (name for name in source.named(target.value, scope_of(source, loop)) if name is not target)


def _may_change(sources: Mapping[str, Source], source: Source, use: cst.BaseExpression) -> bool:
    """Whether what is done with a value may change it: by a method, an attribute, a function of the program's."""
    above = source.parent(use)
    if isinstance(above, cst.Attribute) and above.value is use:
        method = above.attr.value
        called = isinstance(source.parent(above), cst.Call)
        if isinstance(source.parent(above), cst.AssignTarget | cst.AugAssign):
            return True
        return method in {"grad", "requires_grad"} or (called and (method in _CHANGES or method.endswith("_")))
    call = source.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(above, cst.Arg) or not isinstance(call, cst.Call):
        return False
    if any(name.startswith(_OF_TENSORS) for name in source.names(call.func)) or call_name(call) in _READS:
        return False
    return any(_writes(one, function, call, above) for one, function in _called(sources, call))


def _called(sources: Mapping[str, Source], call: cst.Call) -> Iterator[tuple[Source, cst.FunctionDef]]:
    """The functions that a call may be of: those of its name, else what an instance or a model computes."""
    named = [
        (source, function)
        for source in sources.values()
        for function in source.every(cst.FunctionDef)
        if function.name.value == call_name(call)
    ]
    if named:
        yield from named
        return
    for source in sources.values():
        for function in source.every(cst.FunctionDef):
            if function.name.value in {"forward", "__call__"}:
                yield source, function


def _writes(source: Source, function: cst.FunctionDef, call: cst.Call, given: cst.Arg) -> bool:
    """Whether a function may write to what a call gives it, or hands it on to another of the program's own."""
    listed = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    listed = listed[1:] if listed[:1] == ["self"] else listed
    position = list(call.args).index(given)
    if given.keyword is not None:
        name = given.keyword.value
    elif given.star or position >= len(listed):
        return True
    else:
        name = listed[position]
    for each in source.named(name, function.body):
        above = source.parent(each)
        outer = source.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(outer, cst.Call) and isinstance(outer.func, cst.Name) and call_name(outer) not in _READS:
            return not any(one.startswith(_OF_TENSORS) for one in source.names(outer.func))
        called = isinstance(above, cst.Attribute) and above.value is each
        if isinstance(above, cst.Attribute) and called and above.attr.value in _CHANGES | {"requires_grad"}:
            return True
    return is_written(source, name, function.body)


def _is_kept(source: Source, use: cst.BaseExpression) -> bool:
    """Whether a value goes where it stays beyond the turn, and each turn is to leave one of its own."""
    above = source.parent(use)
    call = source.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call):
        return call_name(call) in _CHANGES
    if isinstance(above, cst.Assign):
        target = above.targets[0].target
        return len(above.targets) > 1 or not isinstance(target, cst.Name)
    return isinstance(above, cst.Return | cst.Yield | cst.Element | cst.DictElement | cst.AnnAssign | cst.NamedExpr)


def _is_changed(
    sources: Mapping[str, Source], reached: ReachableCode, source: Source, name: cst.Name, made: cst.Call, loop: Loop
) -> bool:
    """Whether something that runs in a loop changes what a name stands for, or an attribute of that name."""
    above = source.parent(name)
    if isinstance(above, cst.Arg) and above.keyword is name:
        return False
    if isinstance(above, cst.Attribute) and above.attr is name:
        return not source.names(above) and _is_set(reached, name.value)
    for _, one, piece in reached.pieces.values():
        for each in one.named(name.value, piece):
            if within(one, each, made):
                continue
            if _may_change(sources, one, each) or (piece is not loop and _is_rebound(one, each, piece)):
                return True
    return False


def _is_rebound(source: Source, name: cst.Name, piece: cst.CSTNode) -> bool:
    """Whether a function writes to a variable of the module that bears a name."""
    declared = any(item.name.value == name.value for each in source.every(cst.Global, piece) for item in each.names)
    return declared or (is_written(source, name.value, piece) and not _is_own(source, name, piece))


def _is_own(source: Source, name: cst.Name, piece: cst.CSTNode) -> bool:
    params = (param.name.value for param in source.every(cst.Param, piece))
    targets = (target.target for target in source.every(cst.AssignTarget, piece))
    return name.value in params or any(isinstance(each, cst.Name) and each.value == name.value for each in targets)


def _is_set(reached: ReachableCode, attribute: str) -> bool:
    """Whether some code sets an attribute of that name."""
    targets = [node.target for _, _, node in reached.every(cst.AssignTarget)]
    targets += [node.target for _, _, node in reached.every(cst.AugAssign)]
    targets += [node.target for _, _, node in reached.every(cst.AnnAssign)]
    return any(isinstance(each, cst.Attribute) and each.attr.value == attribute for each in targets)
