"""A residual sum and the normalisation of it: `x = x + f(x)`, and next `self.norm(x)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of
from diagnose.source.patterns.formula import constant, integer, operation, source_kind
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.syntax import Source, only_statement

__all__ = ["NormCall", "ResidualNorm", "residual_norms"]

_Identity = tuple[str, int]
_SHRINKS = frozenset({"mean", "sum", "amax", "amin", "max", "min", "norm", "std", "var", "logsumexp", "prod", "median"})
_DEEP = 4
"""Names that a branch of a residual block is followed through to what it is computed from."""


@dataclass(frozen=True)
class NormCall:
    """`root` normalises its argument over the last axis."""

    root: cst.Call
    kind: str
    """`rms` or `layer`."""
    weight: str | None
    bias: str | None
    eps: str


@dataclass(frozen=True)
class ResidualNorm:
    """`statement` makes the sum `name` of `branch` and `stream`, and `norm` is of that sum."""

    statement: cst.SimpleStatementLine
    branch: cst.BaseExpression
    stream: cst.BaseExpression
    name: str | None
    """None where the sum is made within the call of the norm, and nobody else reads it."""
    norm: NormCall
    user: cst.SimpleStatementLine
    """The statement of the norm: the next one, or the same."""
    alias: tuple[cst.SimpleStatementLine, str] | None = None
    """A statement between the two, which gives the sum another name too."""


def residual_norms(source: Source) -> Iterator[ResidualNorm]:
    """Those of a file; of two norms of one sum, the first."""
    taken: set[int] = set()
    for call in source.every(cst.Call):
        norm = _norm(source, call)
        user = source.statement(call)
        if norm is None or not isinstance(user, cst.SimpleStatementLine) or len(user.body) > 1 or not call.args:
            continue
        if any(isinstance(above, cst.Lambda | cst.BaseComp | cst.IfExp) for above in source.ancestors(call)):
            continue
        found = _of(source, norm, call.args[0].value, user)
        if found is not None and id(found.statement) not in taken:
            taken.add(id(found.statement))
            yield found


def _of(
    source: Source, norm: NormCall, given: cst.BaseExpression, user: cst.SimpleStatementLine
) -> ResidualNorm | None:
    if isinstance(given, cst.BinaryOperation) and isinstance(given.operator, cst.Add):
        parts = _parts(source, given.left, given.right, user)
        return ResidualNorm(user, *parts, None, norm, user) if parts is not None else None
    if not isinstance(given, cst.Name):
        return None
    seen = reaching(source, user, given.value)
    statement = seen.statement
    block = source.parent(user)
    if not isinstance(statement, cst.SimpleStatementLine) or source.parent(statement) is not block:
        return None
    rows = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
    between = rows[rows.index(statement) + 1 : rows.index(user)] if rows else []
    alias = _alias(between[0], given.value) if len(between) == 1 else None
    if len(between) > (alias is not None) or len(statement.body) > 1:
        return None
    if seen.bound is Bound.UPDATED and isinstance(seen.value, cst.AugAssign):
        plus = isinstance(seen.value.operator, cst.AddAssign)
        parts = _parts(source, seen.value.target, seen.value.value, statement) if plus else None
    elif seen.bound is Bound.ASSIGNED and isinstance(seen.value, cst.BinaryOperation):
        plus = isinstance(seen.value.operator, cst.Add)
        parts = _parts(source, seen.value.left, seen.value.right, statement) if plus else None
    else:
        parts = None
    return ResidualNorm(statement, *parts, given.value, norm, user, alias) if parts is not None else None


def _alias(statement: cst.CSTNode, name: str) -> tuple[cst.SimpleStatementLine, str] | None:
    """`residual = hidden`: the statement and the other name."""
    small = only_statement(statement)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or not isinstance(small.value, cst.Name):
        return None
    target = small.targets[0].target
    assert isinstance(statement, cst.SimpleStatementLine)  # it holds an assignment
    return (statement, target.value) if isinstance(target, cst.Name) and small.value.value == name else None


def _parts(
    source: Source, left: cst.BaseExpression, right: cst.BaseExpression, at: cst.CSTNode
) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The branch and the stream, a variable that the branch is computed from: only then they have one shape."""
    for branch, stream in ((right, left), (left, right)):
        if isinstance(stream, cst.Name) and _is_branch_of(source, branch, _identities(source, stream, at), _DEEP):
            return branch, stream
    return None


def _identities(source: Source, stream: cst.Name, at: cst.CSTNode) -> set[_Identity]:
    """A variable with the statement that gives it its value, and what it is another name of."""
    found: set[_Identity] = set()
    name: cst.BaseExpression = stream
    while isinstance(name, cst.Name):
        seen = reaching(source, at, name.value)
        if (name.value, id(seen.statement)) in found:
            break
        found.add((name.value, id(seen.statement)))
        if seen.bound is not Bound.ASSIGNED or not isinstance(seen.value, cst.Name) or seen.statement is None:
            break
        name, at = seen.value, seen.statement
    return found


def _is_branch_of(source: Source, branch: cst.BaseExpression, stream: set[_Identity], left: int) -> bool:
    """Whether calls alone lead from the stream to the branch."""
    if isinstance(branch, cst.Subscript) and isinstance(branch.value, cst.Call):  # the first of what attention returns
        branch = branch.value
    if isinstance(branch, cst.Call):
        if _may_shrink(source, branch):
            return False
        return any(
            _is_stream(source, arg.value, stream) or _is_branch_of(source, arg.value, stream, left)
            for arg in branch.args[:1]
        )
    if not isinstance(branch, cst.Name) or not left:
        return False
    found = reaching(source, statement_of(source, branch), branch.value)
    if found.bound not in {Bound.ASSIGNED, Bound.UNPACKED} or not isinstance(found.value, cst.BaseExpression):
        return False
    return _is_branch_of(source, found.value, stream, left - 1)


def _may_shrink(source: Source, call: cst.Call) -> bool:
    """Whether a call is seen to give less than it is given: a sum of torch's, a layer with one output."""
    made = operation(source, call)
    if made is None:
        return False
    if made.module is not None:
        out = argument(made.module, "out_features", 1)
        return source_kind(source, made.module) == "Linear" and out is not None and integer(out.value) == 1
    return made.name in _SHRINKS


def _is_stream(source: Source, node: cst.BaseExpression, stream: set[_Identity]) -> bool:
    if not isinstance(node, cst.Name):
        return False
    return (node.value, id(reaching(source, statement_of(source, node), node.value).statement)) in stream


def _norm(source: Source, call: cst.Call) -> NormCall | None:
    """A call of torch's norm, of its module, or of a class of this file that is one."""
    made = operation(source, call)
    if made is None or made.through or not made.operands:
        return None
    if made.module is not None:
        return _of_module(source, call, made.module)
    if made.name in {"rms_norm", "layer_norm"} and not made.method:
        rms = made.name == "rms_norm"
        weight, bias = made.given("weight", 2), None if rms else made.given("bias", 3)
        eps = made.given("eps", 3 if rms else 4)
        if (rms and eps is None) or _axes(source, made.given("normalized_shape", 1), weight) != 1:
            return None
        return NormCall(
            call,
            "rms" if rms else "layer",
            source.code(weight) if weight is not None else None,
            source.code(bias) if bias is not None else None,
            source.code(eps) if eps is not None else "1e-5",
        )
    return None


def _of_module(source: Source, call: cst.Call, built: cst.Call) -> NormCall | None:
    member = source.code(call.func)
    kind = source_kind(source, built)
    if len(call.args) != 1:
        return None
    if kind in {"RMSNorm", "LayerNorm"}:
        shape, eps = argument(built, "normalized_shape", 0), argument(built, "eps", 1)
        if (kind == "RMSNorm" and eps is None) or _axes(source, shape.value if shape is not None else None, None) != 1:
            return None
        rms = kind == "RMSNorm"
        return NormCall(
            call, "rms" if rms else "layer", f"{member}.weight", None if rms else f"{member}.bias", f"{member}.eps"
        )
    return _of_own_class(source, call, built, member)


def _of_own_class(source: Source, call: cst.Call, built: cst.Call, member: str) -> NormCall | None:
    """A class of this file whose `forward` is one normalisation of its argument."""
    name = source.code(built.func)
    there = [one for one in source.module.body if isinstance(one, cst.ClassDef) and one.name.value == name]
    methods = source.every(cst.FunctionDef, there[0]) if len(there) == 1 else ()
    forward = next((one for one in methods if one.name.value == "forward"), None)
    row = forward.body.body[-1] if forward is not None and len(forward.body.body) == 1 else None
    small = row.body[0] if isinstance(row, cst.SimpleStatementLine) else None
    if forward is None or not isinstance(small, cst.Return) or not isinstance(small.value, cst.Call):
        return None
    inner = _norm(source, small.value)
    given = small.value.args[0].value if small.value.args else None
    names = [each.name.value for each in forward.params.params]
    if inner is None or len(names) != 2 or not isinstance(given, cst.Name) or given.value != names[1]:
        return None
    parts = [inner.weight, inner.bias, inner.eps]
    outside = [_from_outside(source, there[0], part, member) for part in parts]
    if any(part is not None and seen is None for part, seen in zip(parts, outside, strict=True)):
        return None
    weight, bias, eps = outside
    return NormCall(call, inner.kind, weight, bias, eps or inner.eps)


def _from_outside(source: Source, around: cst.ClassDef, part: str | None, member: str) -> str | None:
    """`self.weight` of a class, as whoever holds it as a member says it; numbers as they are."""
    if part is None:
        return None
    if part.startswith("self.") and part[5:].isidentifier() and members_named(source, around, part[5:]):
        return f"{member}.{part[5:]}"
    try:
        float(part)
    except ValueError:
        return None
    return part


def _axes(source: Source, shape: cst.BaseExpression | None, weight: cst.BaseExpression | None) -> int | None:
    """Over how many axes is normalised; None where that is not seen."""
    if isinstance(shape, cst.Tuple | cst.List):
        return len(shape.elements)
    if shape is None:
        return None
    if weight is not None and source.code(shape) in {f"{source.code(weight)}.shape", f"{source.code(weight)}.size()"}:
        return 1
    if isinstance(shape, cst.Integer) or constant(source, shape) is not None:
        return 1
    return 1 if isinstance(shape, cst.Name | cst.Attribute | cst.BinaryOperation) else None
