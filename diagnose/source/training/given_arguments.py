"""Whether a module is given an argument in every step or in none, so that `if mask is None` has one answer."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, parameter_of
from diagnose.source.dataflow.flow import binds, within
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_DEEPEST = 4


def is_given_alike(code: EveryStep, source: Source, name: cst.Name, depth: int = 0) -> bool:
    """Whether a parameter of a module's `forward` is None in all calls of a step, or in none.

    The instances are followed from the class's constructor through names, attributes and loops over lists of modules.
    """
    return _answer(code, source, name, depth) is not None


def is_never_given(code: EveryStep, source: Source, name: cst.Name) -> bool:
    """Whether a parameter of a module's `forward` is left to its default in all calls of a step."""
    method = source.inside(name, cst.FunctionDef)
    owner = source.inside(method, cst.ClassDef) if method is not None else None
    parameter = parameter_of(method, name.value) if method is not None else None
    if method is None or owner is None or parameter is None or method.name.value != "forward":
        return False
    if parameter.default is None or binds(source, method.body, name.value):
        return False
    listed = [each.name.value for each in (*method.params.posonly_params, *method.params.params)]
    position = listed.index(name.value) - 1 if name.value in listed else None
    calls = [call for _, call in _calls(code, owner.name.value)]
    given = (has_star(call) or argument(call, name.value, position) is not None for call in calls)
    return bool(calls) and not any(given)


def _answer(code: EveryStep, source: Source, name: cst.Name, depth: int) -> bool | None:
    """Whether the parameter gets a value; None where that is not known, or differs."""
    method = source.inside(name, cst.FunctionDef)
    owner = source.inside(method, cst.ClassDef) if method is not None else None
    parameter = parameter_of(method, name.value) if method is not None else None
    if method is None or owner is None or parameter is None or method.name.value != "forward" or depth > _DEEPEST:
        return None
    if binds(source, method.body, name.value):
        return None
    listed = [each.name.value for each in (*method.params.posonly_params, *method.params.params)]
    if name.value in listed[:1]:
        return None  # the module itself
    position = listed.index(name.value) - 1 if name.value in listed else None
    answers = {
        _is_given(code, caller, call, name.value, position, parameter, depth)
        for caller, call in _calls(code, owner.name.value)
    }
    return answers.pop() if len(answers) == 1 else None


def _is_given(
    code: EveryStep,
    source: Source,
    call: cst.Call,
    name: str,
    position: int | None,
    parameter: cst.Param,
    depth: int,
) -> bool | None:
    if has_star(call):
        return None
    given = argument(call, name, position) if position is not None else argument(call, name)
    value = given.value if given is not None else parameter.default
    return _is_value(code, source, value, depth) if value is not None else None


def _is_value(code: EveryStep, source: Source, value: cst.BaseExpression, depth: int) -> bool | None:
    """Whether an expression is not None; None where it may be either."""
    if isinstance(value, cst.Name) and value.value == "None":
        return False
    if isinstance(value, cst.Call):
        own = call_name(value) in source.function_names
        return None if own or call_name(value) in {"get", "getattr", "pop", "next"} else True
    if isinstance(value, cst.BinaryOperation | cst.Comparison | cst.Subscript | cst.BaseNumber):
        return True
    if not isinstance(value, cst.Name):
        return None
    function = source.inside(value, cst.FunctionDef)
    if function is not None and parameter_of(function, value.value) is not None:
        return _answer(code, source, value, depth + 1)
    loops = (loop for loop in source.every(cst.For) if within(source, value, loop))
    if any(each.value == value.value for loop in loops for each in source.every(cst.Name, loop.target)):
        return True  # a batch, of which every step has one
    bound = bound_to(source, value)
    found = {
        _is_value(code, source, each, depth + 1) if isinstance(each, cst.BaseExpression) else None for each in bound
    }
    return found.pop() if len(found) == 1 and depth < _DEEPEST else None


def _calls(code: EveryStep, owner: str) -> Iterator[tuple[Source, cst.Call]]:
    """The calls of instances of a class, in the loops over batches and in the methods of modules."""
    names: set[str] = set()
    more: set[str] = {""}
    while more - names:
        names |= more
        more = {each for source in code.sources.values() for each in _instances(source, owner, names)}
    loops = [stretch.body for stretch in code.stretches if stretch.loop is not None]
    for source in code.sources.values():
        for call in source.every(cst.Call):
            function = source.inside(call, cst.FunctionDef)
            of_module = function is not None and function.name.value == "forward"
            if _leaf(source, call.func) in names - {""} and (
                of_module or any(within(source, call, loop) for loop in loops)
            ):
                yield source, call


def _instances(source: Source, owner: str, names: set[str]) -> Iterator[str]:
    for assign in source.every(cst.Assign):
        made = any(call_name(call) == owner for call in source.every(cst.Call, assign.value))
        if made or _leaf(source, assign.value) in names - {""}:
            yield from (_leaf(source, target.target) for target in assign.targets)
    loops: list[cst.For | cst.CompFor] = [*source.every(cst.For), *source.every(cst.CompFor)]
    for loop in loops:
        over = {
            _leaf(source, each)
            for each in (*source.every(cst.Attribute, loop.iter), *source.every(cst.Name, loop.iter))
        }
        if over & (names - {""}):
            yield from (each.value for each in source.every(cst.Name, loop.target))


def _leaf(source: Source, node: cst.BaseExpression) -> str:
    """The last name of what is called: `block` in `self.block(…)` and in `self.block[0](…)`."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return source.code(node).rpartition(".")[2] if isinstance(node, cst.Name | cst.Attribute) else ""
