"""Whether a mask is provably the causal one: position i sees positions 0 to i, and nothing else."""

from __future__ import annotations

import enum
import math

import libcst as cst

from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.reaching_definitions import Bound, definition_of
from diagnose.source.patterns.formula import Operation, certain, constant, integer, operation
from diagnose.source.tree.attributes import member
from diagnose.source.tree.syntax import Source

_PASSES = frozenset(
    {"to", "bool", "float", "int", "long", "byte", "type", "type_as", "cuda", "cpu", "detach", "contiguous"}
    | {"unsqueeze", "view", "reshape", "expand", "clone"}
)
_LARGE = 1e3
"""The distance below the other scores from which on a position's weight is zero in every float format."""


class Polarity(enum.Enum):
    """The value of a mask at the positions that a query may see."""

    KEEP = "true or one"
    HIDE = "false or zero"
    ADD = "zero, and minus infinity elsewhere"

    @property
    def opposite(self) -> Polarity | None:
        """The polarity of the negated mask."""
        return {Polarity.KEEP: Polarity.HIDE, Polarity.HIDE: Polarity.KEEP}.get(self)


def causal(
    source: Source, node: cst.BaseExpression, used: list[tuple[cst.CSTNode, str]] | None = None
) -> Polarity | None:
    """The polarity of a causal mask over as many keys as queries; None for all that is not proven to be one.

    The statements that it was followed through are added to `used`.
    """
    if isinstance(node, cst.Subscript):
        return causal(source, node.value, used) if _is_leading_square(source, node) else None
    kept = member(source, node)
    if kept is not None:
        return None if _is_changed(source, node) else causal(source, kept, used)
    made = certain(source, node)
    if made is None:
        return _through_subscript(source, node, used)
    if used is not None:
        used += made.through
    if made.name in {"tril", "triu"}:
        return _triangle(source, made, used)
    if made.name in {"Parameter", "Buffer"} | _PASSES and made.operands:
        return causal(source, made.operands[0], used)
    return _compared(source, made, used)


def _is_changed(source: Source, node: cst.BaseExpression) -> bool:
    """Whether the class changes the tensor that it keeps there in place."""
    return is_written(source, source.code(node), source.inside(node, cst.ClassDef))


def _through_subscript(
    source: Source, node: cst.BaseExpression, used: list[tuple[cst.CSTNode, str]] | None
) -> Polarity | None:
    """A name that stands for a part of a mask, `mask = self.mask[:T, :T]`."""

    if not isinstance(node, cst.Name):
        return None
    found = definition_of(source, node)
    if found.bound is not Bound.ASSIGNED or not isinstance(found.value, cst.Subscript | cst.Attribute):
        return None
    if used is not None and found.statement is not None:
        used.append((found.statement, node.value))
    return causal(source, found.value, used)


def _triangle(source: Source, made: Operation, used: list[tuple[cst.CSTNode, str]] | None) -> Polarity | None:
    diagonal = made.given("diagonal", 1)
    offset = 0 if diagonal is None else integer(diagonal)
    if not made.operands:
        return None
    filled = _filled(source, made.operands[0], used)
    if made.name == "tril":
        return Polarity.KEEP if offset == 0 and filled == 1 else None
    if offset != 1 or filled is None:
        return None
    if filled == 1:
        return Polarity.HIDE
    return Polarity.ADD if filled <= -_LARGE else None


def _filled(source: Source, node: cst.BaseExpression, used: list[tuple[cst.CSTNode, str]] | None) -> float | None:
    """The number that a square matrix is full of."""
    made = certain(source, node)
    if made is None:
        return None
    if used is not None:
        used += made.through
    if made.name in {"ones", "full", "new_ones", "new_full"}:
        sizes = made.operands[1:] if made.method else made.operands
        if made.name in {"full", "new_full"}:
            fill = made.given("fill_value", 2 if made.method else 1)
            return fill_value(source, fill) if fill is not None and _is_square(source, sizes[:1]) else None
        return 1.0 if _is_square(source, sizes) else None
    if made.name in _PASSES and made.operands:
        return _filled(source, made.operands[0], used)
    if made.name == "mul":
        for matrix, factor in (made.operands, reversed(made.operands)):
            value, by = _filled(source, matrix, used), fill_value(source, factor)
            if value is not None and by is not None:
                return value * by
    return None


def _is_square(source: Source, sizes: tuple[cst.BaseExpression, ...]) -> bool:
    """Whether the last two sizes are written the same, and those before are ones."""
    if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple | cst.List):
        sizes = tuple(element.value for element in sizes[0].elements)
    codes = [source.code(size) for size in sizes]
    return len(codes) >= 2 and codes[-1] == codes[-2] and all(code == "1" for code in codes[:-2])


def _is_leading_square(source: Source, node: cst.Subscript) -> bool:
    """Whether a subscript takes the first rows and as many of the first columns of a square, if not all of them."""
    slices: list[str] = []
    for element in node.slice:
        each = element.slice
        if isinstance(each, cst.Index):
            if source.code(each.value) not in {"None", "...", "0"}:
                return False
            slices.append("...")
            continue
        if not isinstance(each, cst.Slice) or each.step is not None:
            return False
        first = source.code(each.lower) if each.lower is not None else "0"
        if first != "0":
            return False
        slices.append(source.code(each.upper) if each.upper is not None else ":")
    bounded = [size for size in slices if size not in {":", "..."}]
    return not bounded or (len(bounded) == 2 and bounded[0] == bounded[1] and slices[-2:] == bounded)


def _compared(source: Source, made: Operation, used: list[tuple[cst.CSTNode, str]] | None) -> Polarity | None:
    """A causal mask compared or negated, or positions compared with each other."""
    if made.name == "invert" and made.operands:
        inner = causal(source, made.operands[0], used)
        return inner.opposite if inner else None
    if made.name == "sub" and constant(source, made.operands[0]) == 1:
        inner = causal(source, made.operands[1], used)
        return inner.opposite if inner else None
    if made.name not in {"eq", "ne", "gt", "lt", "ge"} or len(made.operands) != 2:
        return None
    left, right = made.operands
    value = constant(source, right)
    if isinstance(right, cst.Name) and right.value in {"True", "False"}:
        value = float(right.value == "True")
    inner = causal(source, left, used) if value is not None else None
    if inner is None or inner is Polarity.ADD:
        return None
    same = (made.name, value) in {("eq", 1.0), ("ne", 0.0), ("gt", 0.0), ("ge", 1.0)}
    other = (made.name, value) in {("eq", 0.0), ("ne", 1.0), ("lt", 1.0)}
    return inner if same else inner.opposite if other else None


def fill_value(source: Source, node: cst.BaseExpression | None) -> float | None:
    """A number; minus infinity is not claimed for the least number of a format, `torch.finfo(x.dtype).min` or `-….max`:
    -3e38.
    """
    if node is None:
        return None
    value = constant(source, node)
    if value is not None:
        return value
    made = operation(source, node)
    if made is not None and made.name in {"tensor", "full"} and made.operands:
        return fill_value(source, made.operands[1 if made.name == "full" and len(made.operands) > 1 else 0])
    while isinstance(node, cst.Name):
        assigned = definition_of(source, node).assigned
        if assigned is None:
            return None
        node = assigned
    negated = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus)
    bound, end = (node.expression, "max") if negated and isinstance(node, cst.UnaryOperation) else (node, "min")
    holder = bound.value if isinstance(bound, cst.Attribute) and bound.attr.value == end else None
    if isinstance(holder, cst.Call) and "torch.finfo" in source.names(holder.func):
        return -3.0e38
    return -math.inf if source.code(node) in {"-float('inf')", '-float("inf")', "-float('Inf')"} else None
