"""Tells what differs between the ranks of a job: questions about the rank, and values that are the same on all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, parameter_of, passed_to, values_stored
from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_ASKS_RANK = re.compile(r"\b\w*rank\b|is_main|is_master|get_rank", re.IGNORECASE)
_STEPS = 3
"""Names are followed so far: `verbose = master`, `master = ddp_rank == 0`, `ddp_rank = int(environ["RANK"])`."""
_NUMBERS = frozenset({"int", "bool", "float", "get", "getenv"})
_SAME_CALLS = frozenset({"int", "float", "str", "min", "max", "abs", "len"})


def asks_rank(source: Source, node: cst.CSTNode, steps: int = _STEPS) -> bool:
    """Whether an expression may have another value on one rank than on the others, by the names in it and by the plain
    values that the file gives these names: a loader that is made for a rank is as long on all of them.
    """
    if not names_ranks(source):
        return False
    if _ASKS_RANK.search(source.code(node)):
        return True
    names = dict.fromkeys(name.value for name in source.every(cst.Name, node)) if steps else ()
    values = [value for name in names for value in _plain_values(source).get(name, ())]
    return any(asks_rank(source, value, steps - 1) for value in values)


@per_source
def names_ranks(source: Source) -> bool:
    """Whether a file has such a name at all."""
    return any(map(_ASKS_RANK.search, source.words))


@per_source
def _plain_values(source: Source) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """Return what a file gives names, attributes (by their own name) and results of functions, where that is plain."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for assign in source.every(cst.Assign):
        for name in dict.fromkeys(_own_name(each.target) for each in assign.targets):
            if name is not None and _is_plain(source, assign.value):
                found.setdefault(name, []).append(assign.value)
    for function in source.every(cst.FunctionDef):
        for each in source.every(cst.Return, function):
            if each.value is not None and _is_plain(source, each.value):
                found.setdefault(function.name.value, []).append(each.value)
    return found


def _is_plain(source: Source, value: cst.BaseExpression) -> bool:
    """Whether a value is computed without calls, but such as tell the rank or make a number."""
    calls = source.every(cst.Call, value)
    return all(call_name(call) in _NUMBERS or _ASKS_RANK.search(source.code(call.func)) for call in calls)


def _own_name(target: cst.BaseExpression) -> str | None:
    if isinstance(target, cst.Attribute):
        return target.attr.value
    return target.value if isinstance(target, cst.Name) else None


def is_same_on_all(
    sources: Mapping[str, Source], source: Source, node: cst.BaseExpression | None, steps: int = _STEPS
) -> bool:
    """Whether a number is surely the same on all ranks: made of literals and of options that nothing changes later."""
    if node is None or isinstance(node, cst.BaseNumber | cst.SimpleString):
        return True
    if isinstance(node, cst.BinaryOperation):
        return is_same_on_all(sources, source, node.left, steps) and is_same_on_all(sources, source, node.right, steps)
    if isinstance(node, cst.UnaryOperation):
        return is_same_on_all(sources, source, node.expression, steps)
    if isinstance(node, cst.Call):
        inner = [arg.value for arg in node.args]
        return call_name(node) in _SAME_CALLS and all(is_same_on_all(sources, source, each, steps) for each in inner)
    if _ASKS_RANK.search(source.code(node)) or not steps:
        return False
    if isinstance(node, cst.Attribute):
        return _is_kept_option(sources, node, steps)
    given = given_to(source, node) if isinstance(node, cst.Name) else []
    return bool(given) and all(is_same_on_all(sources, source, value, steps - 1) for value in given)


def _is_kept_option(sources: Mapping[str, Source], node: cst.Attribute, steps: int) -> bool:
    """Whether all that the program assigns to attributes of that name is the same on all ranks; an option is."""
    for source in sources.values():
        for assign in source.every(cst.Assign) if node.attr.value in source.text else ():
            named = any(isinstance(each.target, cst.Attribute) and _own_name(each.target) == node.attr.value
                        for each in assign.targets)  # fmt: skip
            if named and not is_same_on_all(sources, source, assign.value, steps - 1):
                return False
        for update in source.every(cst.AugAssign) if node.attr.value in source.text else ():
            named = isinstance(update.target, cst.Attribute) and _own_name(update.target) == node.attr.value
            if named and not is_same_on_all(sources, source, update.value, steps - 1):
                return False
    return True


def given_to(source: Source, node: cst.Name | cst.Attribute) -> list[cst.BaseExpression]:
    """All that a name may stand for; nothing where that is not seen."""
    code = source.code(node)
    if isinstance(node, cst.Attribute):
        return _assigned(source, code)
    found = reaching(source, statement_of(source, node), code)
    if found.assigned is not None:
        return [found.assigned]
    if found.bound is Bound.PARAMETER:
        return _passed(source, found.statement, code)
    if found.bound is Bound.UNPACKED and found.statement is not None:
        return _assigned(source, code, found.statement)
    given = bound_to(source, node) if found.bound is Bound.OUTER else []
    return _all_known([value if isinstance(value, cst.BaseExpression) else None for value in given])


def _assigned(source: Source, code: str, below: cst.CSTNode | None = None) -> list[cst.BaseExpression]:
    """All that assignments give a name, alone or in a row: `rank, world = get_rank(), get_world_size()`; nothing where
    one is not followed."""
    last = code.rpartition(".")[2]
    nodes: list[cst.Name | cst.Attribute] = [*source.named(last, below)] if last == code else []
    nodes += [each for each in source.every(cst.Attribute, below) if each.attr.value == last != code]
    return values_stored(source, [node for node in nodes if source.code(node) == code]) or []


def _passed(source: Source, function: cst.CSTNode | None, name: str) -> list[cst.BaseExpression]:
    """Return what the calls of the file pass for a parameter, else its default; nothing where one is not read."""
    if not isinstance(function, cst.FunctionDef):
        return []
    parameter = parameter_of(function, name)
    rows = passed_to(function, parameter, None, {"": source}) if parameter is not None else None
    given = [value if value is not None or parameter is None else parameter.default for _, value in rows or ()]
    return _all_known(given)


def _all_known(given: list[cst.BaseExpression | None]) -> list[cst.BaseExpression]:
    known = [value for value in given if value is not None]
    return known if len(known) == len(given) else []
