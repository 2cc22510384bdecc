"""Rotary embedding written out: `x * cos + rotate_half(x) * sin`, and the halves turned one by one; of two tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, names_in, names_of_row, reaching, statement_of
from diagnose.source.patterns.cross_entropy import behind
from diagnose.source.patterns.formula import Operation, certain, integer, operation
from diagnose.source.tree.syntax import Source, only_statement

__all__ = ["RotatedPair", "Rotation", "rotated_pairs"]

_ADDS = frozenset({"add", "sub"})


@dataclass(frozen=True)
class Rotation:
    """`root` turns a tensor by the angles of cos and sin: the code of the three."""

    root: cst.BaseExpression
    turned: str
    cos: str
    sin: str
    interleaved: bool
    """Neighbours are turned, not halves."""


@dataclass(frozen=True)
class RotatedPair:
    """Queries and keys that are turned by the same angles."""

    first: Rotation
    second: Rotation
    whole: cst.Tuple | None
    """The pair itself, where it is written as one."""
    statements: tuple[cst.SimpleStatementLine, cst.SimpleStatementLine] | None = None
    """Else the two statements that give each its name, one after the other."""
    names: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class _Half:
    of: str
    which: str
    """`first`, `second`, `even`, `odd`."""
    at: str
    """Where it is cut; halves of one cut belong together."""


def rotated_pairs(source: Source) -> Iterator[RotatedPair]:
    """Those of a file."""
    for pair in source.every(cst.Tuple):
        if len(pair.elements) == 2:
            first, second = (_rotation(source, element.value) for element in pair.elements)
            if first is not None and second is not None and _alike(first, second):
                yield RotatedPair(first, second, pair)
    for block in source.walk(None, cst.IndentedBlock, cst.Module):
        if isinstance(block, cst.IndentedBlock | cst.Module):
            yield from _following(source, block)


def _following(source: Source, block: cst.IndentedBlock | cst.Module) -> Iterator[RotatedPair]:
    """Two assignments, one after the other."""
    last: tuple[cst.SimpleStatementLine, str, Rotation] | None = None
    for row in block.body:
        small = only_statement(row)
        target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
        found = _rotation(source, small.value) if isinstance(small, cst.Assign) else None
        if not isinstance(target, cst.Name) or found is None or not isinstance(row, cst.SimpleStatementLine):
            last = None
            continue
        if last is not None and _alike(last[2], found) and last[1] not in _read(source, found):
            yield RotatedPair(last[2], found, None, (last[0], row), (last[1], target.value))
            last = None
        else:
            last = (row, target.value, found)


def _alike(one: Rotation, other: Rotation) -> bool:
    return (one.cos, one.sin, one.interleaved) == (other.cos, other.sin, other.interleaved)


def _read(source: Source, found: Rotation) -> set[str]:
    return {name.value for name in names_in(source, found.root)}


def _rotation(source: Source, node: cst.BaseExpression) -> Rotation | None:
    """The rotation that an expression is, itself or by a function of this file; a change to its own format goes."""
    if isinstance(node, cst.Call) and _function(source, node) is not None:
        return _called(source, node)
    made = certain(source, node) if isinstance(node, cst.Call | cst.BinaryOperation) else None
    if made is None or made.through:
        return None
    if made.method and made.name in {"to", "type_as"} and len(made.operands) == 2 and not made.keywords:
        inner = _rotation(source, behind(source, made.operands[0], []))
        own = inner is not None and source.code(made.operands[1]).removesuffix(".dtype") == inner.turned
        return replace(inner, root=node) if inner is not None and own else None
    written = _written(source, made) or _halves_turned(source, made)
    return Rotation(node, *written) if written is not None else None


def _called(source: Source, call: cst.Call) -> Rotation | None:
    """`apply(q, cos, sin)`, a function that turns its argument and does nothing beside."""
    function = _function(source, call)
    row = function.body.body[-1] if function is not None and function.body.body else None
    small = row.body[0] if isinstance(row, cst.SimpleStatementLine) else None
    if function is None or not isinstance(small, cst.Return) or small.value is None:
        return None
    value = behind(source, small.value, [])
    inner = _rotation(source, value)
    assert row is not None  # it returns
    names = [each.name.value for each in function.params.params]
    given = dict(zip(names, (arg.value for arg in call.args if arg.keyword is None), strict=False))
    given |= {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    if inner is None or any(arg.star for arg in call.args):
        return None
    negative = inner.sin.startswith("-")
    wanted = [inner.turned, inner.cos, inner.sin.removeprefix("-")]
    if any(name not in given or reaching(source, row, name).bound is not Bound.PARAMETER for name in wanted):
        return None
    turned, cos, sin = (source.code(given[name]) for name in wanted)
    return Rotation(call, turned, cos, f"-{sin}" if negative else sin, inner.interleaved)


def _function(source: Source, call: cst.Call) -> cst.FunctionDef | None:
    if not isinstance(call.func, cst.Name):
        return None
    wanted = call.func.value
    there = [one for one in source.module.body if isinstance(one, cst.FunctionDef) and one.name.value == wanted]
    return there[0] if len(there) == 1 and not there[0].decorators else None


def _written(source: Source, made: Operation) -> tuple[str, str, str, bool] | None:
    """`x * cos + turned(x) * sin`."""
    if made.name != "add" or len(made.operands) != 2:
        return None
    products = [_product(source, operand) for operand in made.operands]
    for plain, other in (products, products[::-1]):
        for x, cos in _either(plain):
            for turned, sin in _either(other):
                way = _turn(source, turned, source.code(x))
                if way is not None:
                    return source.code(x), source.code(cos), source.code(sin), way == "even"
    return None


def _product(source: Source, node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    made = certain(source, node)
    if made is None or made.through or made.name != "mul" or len(made.operands) != 2:
        return None
    return made.operands[0], made.operands[1]


def _either(
    pair: tuple[cst.BaseExpression, cst.BaseExpression] | None,
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    return [pair, pair[::-1]] if pair is not None else []


def _turn(source: Source, node: cst.BaseExpression, of: str) -> str | None:
    """`first` where an expression is (−x₂, x₁) of the halves of `of`, `even` where of its neighbours."""
    if isinstance(node, cst.Call):
        function = _function(source, node)
        if function is not None:
            return _turned_by(source, function) if _arguments(source, node) == [of] else None
    parts = _joined(source, node)
    if parts is None:
        return None
    (left, right), joined = parts
    negated = certain(source, left)
    if negated is None or negated.name != "neg":
        return None
    second, first = _half(source, negated.operands[0]), _half(source, right)
    fits = first is not None and second is not None and first.of == second.of == of and first.at == second.at
    return joined if fits and first is not None and second is not None and _are(first, second, joined) else None


def _are(first: _Half, second: _Half, joined: str) -> bool:
    return (first.which, second.which) == ({"first": ("first", "second"), "even": ("even", "odd")}[joined])


def _turned_by(source: Source, function: cst.FunctionDef) -> str | None:
    row = function.body.body[-1] if function.body.body else None
    small = row.body[0] if isinstance(row, cst.SimpleStatementLine) else None
    names = [each.name.value for each in function.params.params]
    if not isinstance(small, cst.Return) or small.value is None or len(names) != 1:
        return None
    return _turn(source, behind(source, small.value, []), names[0])


def _arguments(source: Source, call: cst.Call) -> list[str]:
    return [source.code(arg.value) for arg in call.args]


def _halves_turned(source: Source, made: Operation) -> tuple[str, str, str, bool] | None:
    """`cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)`, and with the other sign of the sine."""
    parts = _joined(source, made.node) if isinstance(made.node, cst.BaseExpression) else None
    if parts is None:
        return None
    (left, right), joined = parts
    one, two = _sum(source, left), _sum(source, right)
    if one is None or two is None:
        return None
    (first, cos, plus), (second, sin, sign) = one
    for (a, cos2, plus2), (b, sin2, sign2) in (two, two[::-1]):
        same = first.of == second.of and first.at == second.at and (a, b) == (second, first)
        if same and _are(first, second, joined) and cos == cos2 and sin == sin2 and plus and plus2 and sign != sign2:
            return first.of, cos, sin if not sign else f"-{sin}", joined == "even"
    return None


def _sum(source: Source, node: cst.BaseExpression) -> tuple[tuple[_Half, str, bool], tuple[_Half, str, bool]] | None:
    """Two products of a half and an angle's function, each with its sign, the first as it is written."""
    made = certain(source, node)
    if made is None or made.name not in _ADDS or len(made.operands) != 2:
        return None
    terms: list[tuple[_Half, str, bool]] = []
    for number, operand in enumerate(made.operands):
        product = _product(source, operand)
        positive = made.name == "add" or number == 0
        for x, factor in _either(product):
            half = _half(source, x)
            if half is None:
                continue
            inner = operation(source, factor) if isinstance(factor, cst.UnaryOperation) else None
            negative = inner is not None and inner.name == "neg"
            code = source.code(inner.operands[0] if inner is not None and negative else factor)
            terms.append((half, code, positive is not negative))
            break
    return (terms[0], terms[1]) if len(terms) == 2 else None


def _joined(source: Source, node: cst.CSTNode) -> tuple[tuple[cst.BaseExpression, cst.BaseExpression], str] | None:
    """The two parts that are put one after the other (`first`), or in turns (`even`), along the last axis."""
    made = certain(source, node)
    if made is None or not made.operands:
        return None
    in_turns = made.name == "flatten" and integer(made.given("start_dim", 1)) == -2
    if in_turns:
        made = certain(source, made.operands[0])
    name = "stack" if in_turns else "cat"
    if made is None or made.name not in {name, "concat" if name == "cat" else name} or not made.operands:
        return None
    listed, axis = made.operands[0], made.given("dim", 1)
    if not isinstance(listed, cst.Tuple | cst.List) or len(listed.elements) != 2:
        return None
    last = integer(axis) == -1 or (axis is not None and re.fullmatch(r"\w+\.(ndim|dim\(\)) - 1", source.code(axis)))
    left, right = (element.value for element in listed.elements)
    return ((left, right), "even" if in_turns else "first") if last else None


def _half(source: Source, node: cst.BaseExpression) -> _Half | None:
    """Which half of what an expression is."""
    if isinstance(node, cst.Name):
        found = reaching(source, statement_of(source, node), node.value)
        if found.bound is Bound.UNPACKED and isinstance(found.value, cst.Call):
            return _of_cut(source, node.value, found.statement, found.value)
        if found.bound is Bound.UNPACKED and isinstance(found.value, cst.Tuple):
            return _of_tuple(source, node.value, found.statement, found.value)
    node = behind(source, node, [])
    if not isinstance(node, cst.Subscript) or len(node.slice) != 2 or not source.code(node.slice[0]).startswith("..."):
        return None
    part = node.slice[1].slice
    if not isinstance(part, cst.Slice):
        return None
    of = source.code(node.value)
    lower, upper, step = (source.code(each) if each is not None else "" for each in (part.lower, part.upper, part.step))
    if step == "2" and not upper and lower in {"", "0", "1"}:
        return _Half(of, "odd" if lower == "1" else "even", "neighbours")
    cut = lower or upper
    bound = part.lower or part.upper
    if step or bool(lower) == bool(upper) or bound is None or not _is_half(source, bound):
        return None
    return _Half(of, "second" if lower else "first", cut)


def _is_half(source: Source, node: cst.BaseExpression) -> bool:
    return bool(re.search(r"//\s*2\s*\)?$", source.code(behind(source, node, []))))


def _of_tuple(source: Source, name: str, statement: cst.CSTNode | None, value: cst.Tuple) -> _Half | None:
    """`x1, x2 = x[..., :d], x[..., d:]`"""
    names = names_of_row(statement)
    return _half(source, value.elements[names.index(name)].value) if len(names) == len(value.elements) else None


def _of_cut(source: Source, name: str, statement: cst.CSTNode | None, value: cst.Call) -> _Half | None:
    """`x1, x2 = x.chunk(2, dim=-1)`"""
    names, made = names_of_row(statement), operation(source, value)
    if made is None or made.name != "chunk" or len(names) != 2 or integer(made.given("chunks", 1)) != 2:
        return None
    if integer(made.given("dim", 2)) != -1:
        return None
    return _Half(source.code(made.operands[0]), "second" if names.index(name) else "first", "middle")
