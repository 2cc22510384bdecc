"""Finds the binding of a name that a statement sees: the last one before it on every way there, or why none is."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import binds
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.tree.attributes import is_label
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

_DEEPEST = 5  # names behind names


class Bound(enum.Enum):
    """How a name got its value."""

    ASSIGNED = "name = value"
    UPDATED = "name += value"
    MUTATED = "name.method_(…)"
    GUARDED = "an assignment or update alone under an `if` without `else`"
    UNPACKED = "a, name = value"
    PARAMETER = "a parameter"
    OUTER = "not bound in this function"
    LOST = "bound in a way that is not followed"


@dataclass(frozen=True)
class Definition:
    """The binding that a statement sees."""

    bound: Bound
    statement: Statement | cst.FunctionDef | None = None
    value: cst.BaseExpression | cst.BaseSmallStatement | None = None
    """What is assigned or unpacked; the AugAssign of an update; the call of a mutation."""
    inner: Definition | None = None
    """The binding under the `if`, of GUARDED."""

    @property
    def assigned(self) -> cst.BaseExpression | None:
        """The value that one assignment gives the name, by itself; None for any other binding."""
        found = self.value if self.bound is Bound.ASSIGNED else None
        return found if isinstance(found, cst.BaseExpression) else None


@per_source
def reaching(source: Source, at: cst.CSTNode, name: str) -> Definition:
    """Return the definition of a name that reaches the beginning of the statement `at`."""
    current: cst.CSTNode = at
    while True:
        block = source.parent(current)
        if isinstance(block, cst.IndentedBlock | cst.Module):
            siblings = list(block.body)
            for earlier in reversed(siblings[: siblings.index(current)]):  # type: ignore[arg-type]
                found = _definition(source, earlier, name)
                if found is not None:
                    return found
        if block is None or isinstance(block, cst.Module):
            return Definition(Bound.OUTER)
        if isinstance(block, cst.FunctionDef | cst.ClassDef | cst.Lambda):  # `current` was its body's suite
            return Definition(Bound.OUTER)
        owner = source.parent(block) if isinstance(block, cst.BaseSuite) else block
        if isinstance(owner, cst.FunctionDef):
            return _parameter(owner, name)
        if isinstance(owner, cst.Else | cst.Finally | cst.ExceptHandler):
            owner = _chain(source, owner)
        if owner is None or isinstance(owner, cst.ClassDef):
            return Definition(Bound.OUTER)
        if isinstance(owner, cst.For | cst.While | cst.Try) and _touches(source, owner, name):
            return Definition(Bound.LOST)
        if isinstance(owner, cst.With) and any(_touches(source, item, name) for item in owner.items):
            return Definition(Bound.LOST)
        current = owner


def definition_of(source: Source, name: cst.Name) -> Definition:
    """Return the definition that a name sees where it is read."""
    return reaching(source, statement_of(source, name), name.value)


def all_reaching(source: Source, at: cst.CSTNode, name: str) -> Iterator[Definition]:
    """The definitions of which one reaches the statement `at`: that alone under an `if`, and what holds without it."""
    found = reaching(source, at, name)
    while found.bound is Bound.GUARDED and found.statement is not None:
        yield found
        found = reaching(source, found.statement, name)
    yield found


def may_be_bound_by(source: Source, name: cst.Name, statements: Collection[int]) -> bool:
    """Whether a variable may have what one of these statements, by `id`, bound; True where that is not followed."""
    return any(
        seen.bound is Bound.LOST or id(seen.statement) in statements
        for seen in all_reaching(source, statement_of(source, name), name.value)
    )


def is_list(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an expression is evidently a list: a display, a slice of one, a sum with one, or a name of that."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Add) and any(
            is_list(source, one, depth) for one in (node.left, node.right)
        )
    if isinstance(node, cst.Subscript):
        return isinstance(node.slice[0].slice, cst.Slice) and is_list(source, node.value, depth)
    if isinstance(node, cst.Name) and depth < _DEEPEST:
        assigned = definition_of(source, node).assigned
        return assigned is not None and is_list(source, assigned, depth + 1)
    return isinstance(node, cst.List | cst.ListComp)


@per_source
def in_module(source: Source, name: str) -> Definition | None:
    """The binding of a name at the top level of a file, where it is the only one."""
    found = [one for one in (_definition(source, each, name) for each in source.module.body) if one is not None]
    return found[0] if len(found) == 1 else None


def _chain(source: Source, owner: cst.CSTNode) -> cst.CSTNode | None:
    """The statement that an `else`, `except` or `finally` belongs to."""
    return next((above for above in source.ancestors(owner) if isinstance(above, cst.BaseCompoundStatement)), None)


def _parameter(function: cst.FunctionDef, name: str) -> Definition:
    parameters = function.params
    listed = [*parameters.posonly_params, *parameters.params, *parameters.kwonly_params]
    starred = [each for each in (parameters.star_arg, parameters.star_kwarg) if isinstance(each, cst.Param)]
    known = any(parameter.name.value == name for parameter in [*listed, *starred])
    return Definition(Bound.PARAMETER, function) if known else Definition(Bound.OUTER)


def _definition(source: Source, statement: cst.CSTNode, name: str) -> Definition | None:
    if isinstance(statement, cst.SimpleStatementLine):
        return _simple(source, statement, name)
    if not _touches(source, statement, name):
        return None
    if isinstance(statement, cst.If) and statement.orelse is None and isinstance(statement.body, cst.IndentedBlock):
        body = statement.body.body
        inner = _definition(source, body[0], name) if len(body) == 1 else None
        if inner is not None and inner.bound in {Bound.ASSIGNED, Bound.UPDATED, Bound.MUTATED}:
            return Definition(Bound.GUARDED, statement, None, inner)
    return Definition(Bound.LOST)


def _simple(source: Source, statement: cst.SimpleStatementLine, name: str) -> Definition | None:
    if not _touches(source, statement, name):
        return None
    small = statement.body[0]
    if len(statement.body) > 1:
        return Definition(Bound.LOST)
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if isinstance(target, cst.Name):
            return Definition(Bound.ASSIGNED, statement, small.value)
        if isinstance(target, cst.Tuple | cst.List):
            return Definition(Bound.UNPACKED, statement, small.value)
    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name) and small.value is not None:
        return Definition(Bound.ASSIGNED, statement, small.value)
    if isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
        return Definition(Bound.UPDATED, statement, small)
    call = small.value if isinstance(small, cst.Expr) else None
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and source.code(call.func.value) == name:
        return Definition(Bound.MUTATED, statement, call)
    return Definition(Bound.LOST)


def _touches(source: Source, below: cst.CSTNode, name: str) -> bool:
    """Whether anything below a node binds a name, or changes in place what it holds."""
    return binds(source, below, name) or is_written(source, name, below)


def statement_of(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The statement that a node lies in; of a lambda or comprehension, the one around it."""
    return source.statement(node) or source.module


def names_of_row(statement: cst.CSTNode | None) -> list[str]:
    """The names that `B, T, C = …` binds, in order, empty for what is no name; none of another statement."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    target = small.targets[0].target if isinstance(small, cst.Assign) else None
    elements = target.elements if isinstance(target, cst.Tuple) else ()
    return [each.value.value if isinstance(each.value, cst.Name) else "" for each in elements]


def names_in(source: Source, node: cst.CSTNode) -> list[cst.Name]:
    """The variables that an expression reads, `self` among them; attributes and keywords are none."""
    return [name for name in source.every(cst.Name, node) if not is_label(source, name)]


def see_the_same(source: Source, node: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two nodes of the same code see the same definition of each of their names."""
    for name, also in zip(names_in(source, node), names_in(source, other), strict=True):
        one, two = definition_of(source, name), definition_of(source, also)
        if one.statement is not two.statement or Bound.LOST in (one.bound, two.bound):
            return False
    return True


def same_value(source: Source, node: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether an expression still means the same where the statement `at` begins."""
    here = statement_of(source, node)
    return all(_same(source, name.value, here, at) for name in names_in(source, node))


def unchanged_until(source: Source, node: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether a node's names have the same values at `at`: nothing from its statement to there binds any, also none
    that a loop before has bound.
    """
    here = statement_of(source, node)
    names = {name.value for name in names_in(source, node)}
    if all(_same(source, name, here, at) for name in names):
        return True
    block = source.parent(here)
    rows = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
    around = {id(one) for one in (at, *source.ancestors(at))}
    last = next((number for number, row in enumerate(rows) if id(row) in around), -1)
    first = next((number for number, row in enumerate(rows) if row is here), len(rows))
    between = [row for row in rows[first : last + 1] if row is not at]
    return first <= last and not any(_touches(source, row, name) for row in between for name in names)


def _same(source: Source, name: str, here: cst.CSTNode, at: cst.CSTNode) -> bool:
    before, after = reaching(source, here, name), reaching(source, at, name)
    return Bound.LOST not in (before.bound, after.bound) and before.statement is after.statement
