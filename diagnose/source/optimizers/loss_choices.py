"""Where a program may make its loss of other parts in one step than in another: what a condition adds, picks or drops.

The loss is followed back from the backward pass through whatever the names are given that it is made of, and into the
functions of the program's own that make a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import binds, loops_around, scope_of, within
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_FILLS = frozenset({"append", "extend", "insert", "update"})
"""Methods that put something into what they are called of."""
_JOINS = frozenset({"sum", "stack", "cat"})
"""Functions that make one of a list."""
_DEEPEST = 5  # calls from the backward pass down


@dataclass(frozen=True)
class _Making:
    """A piece of code that makes the loss, or a part of it."""

    path: str
    source: Source
    body: cst.CSTNode
    roots: tuple[cst.CSTNode, ...]
    """The place where the part ends up: the backward pass, or what a function returns."""
    data: frozenset[str] = frozenset()
    """The names that get a new batch in each turn, which no parameter is a part of."""

    def walk(self) -> Iterator[cst.CSTNode]:
        """The nodes that may belong to it: not those of loops that come before or after, such as a validation."""
        steps = loops_around(self.source, self.roots[0])
        for node in self.source.walk(self.body):
            others = [loop for loop in loops_around(self.source, node) if loop not in steps]
            if all(within(self.source, loop, steps[0]) for loop in others if steps):
                yield node

    def given(self) -> list[tuple[cst.CSTNode, frozenset[str], cst.CSTNode]]:
        """Each node that binds or fills something, the names of that, and what it is given."""
        found = [(node, *each) for node in self.walk() if (each := _binding(node)) is not None]
        return [each for each in found if not each[1] & self.data]


def loss_choices(code: EveryStep, path: str, source: Source, backward: cst.Call) -> Iterator[str]:
    """Yield each line with a condition that decides what the loss of a backward pass is made of."""
    loops = loops_around(source, backward)
    body = loops[-1] if loops else scope_of(source, backward)
    texts = {at: other.text for at, other in code.sources.items()}
    data = frozenset(name for step in training_steps(texts) if step.backward is backward for name in step.batch)
    pending = [(_Making(path, source, body, (backward,), data), 0)]
    seen: set[cst.CSTNode] = set()
    while pending:
        making, depth = pending.pop()
        if making.body in seen:
            continue
        seen.add(making.body)
        parts = _made_of(making)
        for node in _choices(making, parts):
            yield f"{making.path}:{making.source.lines_of(node)[0]}"
        called = {call_name(call) for part in parts for call in making.source.every(cst.Call, part)}
        pending += [(each, depth + 1) for each in _functions(code, called) if depth < _DEEPEST]
    function = source.inside(backward, cst.FunctionDef)
    for at, other in code.mentioning(function.name.value).items() if function is not None else ():
        for call in other.calls_named(function.name.value) if function is not None else ():
            yield from (f"{at}:{other.lines_of(each)[0]}" for each in other.every(cst.IfExp, call))


def _binding(node: cst.CSTNode) -> tuple[frozenset[str], cst.CSTNode] | None:
    """The names of what a node binds or fills, and the expression that goes there."""
    if isinstance(node, cst.Assign):
        return frozenset(name for each in node.targets for name in _names(each.target)), node.value
    if isinstance(node, cst.AnnAssign | cst.AugAssign | cst.NamedExpr) and node.value is not None:
        return frozenset(_names(node.target)), node.value
    if isinstance(node, cst.For | cst.CompFor):
        return frozenset(_names(node.target)), node.iter
    fills = isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _FILLS
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and fills:
        return frozenset(_names(node.func.value)), node
    return None


def _names(target: cst.CSTNode) -> Iterator[str]:
    """The variables that a target leads to, or attributes of `self`: of `losses[0]` it is `losses`."""
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _names(element.value)
    elif isinstance(target, cst.Attribute) and is_of_self(target):
        yield f"self.{target.attr.value}"
    elif isinstance(target, cst.Attribute | cst.Subscript):
        yield from _names(target.value)
    elif isinstance(target, cst.Name):
        yield target.value


def _read(source: Source, node: cst.CSTNode) -> set[str]:
    """The variables and attributes of `self` that an expression reads."""
    found: set[str] = set()
    for each in names_in(source, node):
        above = source.parent(each)
        found.update(_names(above if isinstance(above, cst.Attribute) and each.value == "self" else each))
    return found - {"self"}


def _made_of(making: _Making) -> list[cst.CSTNode]:
    """The nodes that give something to the names which a part of the loss is made of, with the roots."""
    given = making.given()
    names = {name for root in making.roots for name in _read(making.source, root)}
    parts = list(making.roots)
    while more := [each for each in given if each[1] & names and each[0] not in parts]:
        parts += [node for node, _, _ in more]
        names.update(name for _, _, value in more for name in _read(making.source, value) - making.data)
    return parts


def _choices(making: _Making, parts: list[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    source = making.source
    for part in parts:
        inner = part.iter if isinstance(part, cst.For | cst.CompFor) else part
        yield from (each for each in source.every(cst.IfExp, inner) if not _is_weight(source, each))
        yield from source.every(cst.CompIf, inner)
        joins = (call for call in source.every(cst.Call, inner) if call_name(call) in _JOINS and call.args)
        iterated = [part.iter] if isinstance(part, cst.For | cst.CompFor) else []
        yield from (each for each in (*iterated, *(call.args[0].value for call in joins)) if _is_cut(making, each))
        for above in source.ancestors(part):
            if above is making.body:
                break
            if _may_skip(making, above, part):
                yield above


def _is_weight(source: Source, choice: cst.IfExp) -> bool:
    """Whether a condition chooses between numbers that are no indices: a weight of 0 gives gradients of zeros."""
    numbers = isinstance(choice.body, cst.BaseNumber) and isinstance(choice.orelse, cst.BaseNumber)
    return numbers and source.inside(choice, cst.BaseSlice) is None


def _may_skip(making: _Making, above: cst.CSTNode, part: cst.CSTNode) -> bool:
    """Whether a statement around a part decides whether it is evaluated; not the loop of the steps themselves."""
    if isinstance(above, cst.If):
        whole = part in making.roots and not isinstance(part, cst.Return)  # who else goes backward is asked elsewhere
        return not whole and not within(making.source, part, above.test)
    return isinstance(above, cst.While | cst.Match) and not within(making.source, making.roots[0], above)


def _is_cut(making: _Making, iterated: cst.BaseExpression) -> bool:
    """Whether a loop goes through as many things as a variable says that training gives other values."""
    source = making.source
    bounds: list[cst.CSTNode] = list(source.every(cst.Slice, iterated))
    bounds += [call for call in source.every(cst.Call, iterated) if call_name(call) == "range"]
    outer = loops_around(source, making.roots[0])[-1:]
    return any(binds(source, loop, name) for loop in outer for each in bounds for name in _read(source, each))


def _functions(code: EveryStep, called: set[str]) -> Iterator[_Making]:
    """The functions of the program's own with these names, and the `__call__` of what goes by them.

    Methods of modules are left out: these are asked whether they take the same way through the module's layers.
    """
    classes = {name for source in code.sources.values() for name in _classes(source, called)}
    for path, source in code.sources.items():
        for function in source.every(cst.FunctionDef):
            owner = source.inside(function, cst.ClassDef)
            names = classes if function.name.value == "__call__" else called
            known = owner.name.value if function.name.value == "__call__" and owner is not None else function.name.value
            returned = tuple(each for each in source.every(cst.Return, function) if each.value is not None)
            if returned and known in names and (owner is None or not _is_module(owner)):
                yield _Making(path, source, function, returned)


def _classes(source: Source, called: set[str]) -> Iterator[str]:
    """Yield what is called to make things of these names: `Criterion` of `self.criterion = Criterion()`."""
    for assign in source.every(cst.Assign):
        names = {name.removeprefix("self.") for target in assign.targets for name in _names(target.target)}
        if isinstance(assign.value, cst.Call) and names & called:
            yield call_name(assign.value)


def _is_module(owner: cst.ClassDef) -> bool:
    return any(isinstance(each, cst.FunctionDef) and each.name.value == "forward" for each in owner.body.body)
