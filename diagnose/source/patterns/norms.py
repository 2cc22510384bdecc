"""Normalisation written out: x / √(mean(x²) + ε) · weight, and (x − mean) / √(variance + ε) · weight + bias."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import (
    Bound,
    definition_of,
    may_be_bound_by,
    names_in,
    reaching,
    same_value,
    see_the_same,
    statement_of,
)
from diagnose.source.patterns.formula import Operation, certain, constant, integer, is_of_tensors, operation
from diagnose.source.patterns.numeric import is_number
from diagnose.source.patterns.written_norm import WrittenNorm
from diagnose.source.tree.attributes import class_of, member
from diagnose.source.tree.syntax import Source

_CASTS = frozenset({"to", "float", "type_as", "type", "double"})


class _NotOne(Exception):
    """The expression is no such norm."""


def written_norms(source: Source) -> Iterator[WrittenNorm]:
    """Yield the norms that a function returns, assigns or uses, the whole expression of each."""
    kinds = (cst.BinaryOperation, cst.Call)
    nodes = [node for node in source.walk(None, *kinds) if isinstance(node, kinds)]
    # The last statement of one holds its root, and the widest node there that is one is the whole of it.
    nodes.sort(key=lambda node: source.span(statement_of(source, node))[0], reverse=True)
    done: list[tuple[int, int]] = []
    for weighted in (True, False):
        for node in nodes:
            start, end = source.span(node)
            if any(first <= start and end <= last for first, last in done):
                continue
            found = _norm(source, node)
            if found is None or (weighted and found.weight is None):
                continue
            done += [(start, end), *(source.span(statement) for statement, _ in found.steps)]
            done += [source.span(found.method)] if found.method is not None else []
            yield found


def _norm(source: Source, node: cst.BaseExpression) -> WrittenNorm | None:
    for kind in ("rms", "layer"):
        found = WrittenNorm(source, node, kind)
        try:
            _outside(found, node)
            _check(found)
        except _NotOne:
            continue
        return found
    return None


def _operation(found: WrittenNorm, node: cst.BaseExpression) -> Operation:
    made = certain(found.source, node)
    if made is None or not is_of_tensors(found.source, made):
        raise _NotOne
    return made


def _removed_operation(found: WrittenNorm, node: cst.BaseExpression) -> Operation:
    """An operation of the normalisation; the statements on the way to it go with it."""
    made = _operation(found, node)
    found.steps += made.through
    return made


def _outside(found: WrittenNorm, node: cst.BaseExpression) -> None:
    """Peel bias and weight off, then read the core."""
    made = _operation(found, node)
    if isinstance(node, cst.Call) and made.name in _CASTS:
        raise _NotOne  # what is inside it will be found by itself
    found.steps += made.through
    if made.name == "add" and found.kind == "layer" and len(made.operands) == 2:
        for rest, bias in (made.operands, tuple(reversed(made.operands))):
            if _is_parameter(found.source, bias):
                found.bias = bias
                _weighted(found, rest)
                return
        raise _NotOne
    _weighted(found, node)


def _weighted(found: WrittenNorm, node: cst.BaseExpression) -> None:
    factors = _factors(found, node)
    weights = [each for each in factors if each[0] == "mul" and _is_parameter(found.source, each[1])]
    rest = [each for each in factors if each not in weights]
    if len(weights) > 1 or (found.bias is not None and not weights):
        raise _NotOne
    found.weight = weights[0][1] if weights else None
    if len(rest) == 1 and rest[0][0] == "mul":
        _method(found, rest[0][1])
        return
    if len(rest) != 2:
        raise _NotOne
    for value, factor in (rest, rest[::-1]):
        before = len(found.steps)
        found.input = found.eps = None
        found.casts.clear()
        try:
            if value[0] == "mul":
                _denominator(found, factor[1], inverse=factor[0] == "mul")
                _numerator(found, value[1])
                return
        except _NotOne:
            pass
        del found.steps[before:]
    raise _NotOne


def _factors(found: WrittenNorm, node: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]]:
    """A product taken apart: `mul` or `div` with each factor, through changes of format."""
    made = certain(found.source, node)
    if made is None or not made.operands:
        return [("mul", node)]
    made = _operation(found, node)
    if made.name in {"mul", "div"} and len(made.operands) == 2:
        found.steps += made.through
        left, right = made.operands
        return [*_factors(found, left), *([("div", right)] if made.name == "div" else _factors(found, right))]
    if made.name in _CASTS:
        inner = _factors(found, made.operands[0])
        if len(inner) > 1 or (made.operands and _is_method(found.source, inner[0][1])):
            found.steps += made.through
            found.casts_back.append(made)
            return inner
    if made.through and _is_method(found.source, node):
        found.steps += made.through
        return [("mul", made.node)] if isinstance(made.node, cst.Call) else [("mul", node)]
    return [("mul", node)]


def _is_method(source: Source, node: cst.BaseExpression) -> bool:
    made = operation(source, node)
    return made is not None and made.name.startswith("self.") and made.module is None and len(made.operands) == 1


def _method(found: WrittenNorm, node: cst.BaseExpression) -> None:
    """`self._norm(x)`, a method that does nothing but normalise."""
    source = found.source
    made = _operation(found, node)
    around = class_of(source, node)
    if not _is_method(source, node) or around is None:
        raise _NotOne
    methods = [one for one in source.every(cst.FunctionDef, around) if f"self.{one.name.value}" == made.name]
    body = methods[0].body.body if len(methods) == 1 else ()
    last = body[-1] if body else None
    returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    if len(methods) != 1 or not isinstance(returned, cst.Return) or returned.value is None:
        raise _NotOne
    if any(source.code(base.value) == around.name.value for each in source.every(cst.ClassDef) for base in each.bases):
        raise _NotOne  # a class below it may have a method of its own there
    inner = WrittenNorm(source, returned.value, found.kind)
    _weighted(inner, returned.value)
    parameters = methods[0].params.params
    if (
        inner.weight is not None
        or not isinstance(inner.input, cst.Name)
        or inner.eps is None
        or len(parameters) != 2
        or inner.input.value != parameters[1].name.value
        or not source.code(inner.eps).startswith("self.")
    ):
        raise _NotOne
    found.steps += made.through
    found.eps, found.method = inner.eps, methods[0]
    found.casts, found.casts_back = [*inner.casts], [*found.casts_back, *inner.casts_back]
    _set_input(found, made.operands[0])


def _uncast(found: WrittenNorm, node: cst.BaseExpression) -> cst.BaseExpression:
    """The operand of changes of format, with the statements on the way."""
    while True:
        made = operation(found.source, node)
        if made is None or made.name not in _CASTS or made.condition is not None or not made.operands:
            return node
        found.steps += made.through
        found.casts.append(made)
        node = made.operands[0]


def _denominator(found: WrittenNorm, node: cst.BaseExpression, inverse: bool) -> None:
    """√(… + ε), or its inverse; its variance is kept in `found` for the numerator to agree with."""
    made = _removed_operation(found, node)
    wanted = "rsqrt" if inverse else "sqrt"
    half = made.name == "pow" and constant(found.source, made.operands[1]) == (-0.5 if inverse else 0.5)
    if made.name != wanted and not half:
        if not (inverse and made.name == "div" and constant(found.source, made.operands[0]) == 1):
            raise _NotOne
        _denominator(found, made.operands[1], inverse=False)
        return
    inner = _removed_operation(found, made.operands[0])
    if inner.name != "add" or len(inner.operands) != 2:
        raise _NotOne
    for mean, eps in (inner.operands, tuple(reversed(inner.operands))):
        if is_number(found.source, eps):
            found.eps = eps
            _variance(found, mean)
            return
    raise _NotOne


def _variance(found: WrittenNorm, node: cst.BaseExpression) -> None:
    made = _removed_operation(found, node)
    if made.name == "var" and found.kind == "layer":
        corrected, correction = made.keywords.get("unbiased"), made.keywords.get("correction")
        biased = integer(correction) == 0 or (corrected is not None and found.source.code(corrected) == "False")
        if not biased or not _over_last(made):
            raise _NotOne
        _set_input(found, made.operands[0])
        return
    if made.name != "mean" or not _over_last(made):
        raise _NotOne
    _numerator(found, _square(found, made.operands[0]))


def _over_last(made: Operation) -> bool:
    axis = made.given("dim", 1)
    if isinstance(axis, cst.Tuple | cst.List) and len(axis.elements) == 1:
        axis = axis.elements[0].value
    kept = made.given("keepdim", 2)  # NumPy's is `keepdims`
    return integer(axis) == -1 and isinstance(kept, cst.Name) and kept.value == "True"


def _square(found: WrittenNorm, node: cst.BaseExpression) -> cst.BaseExpression:
    made = _removed_operation(found, node)
    by_power = made.name == "pow" and constant(found.source, made.operands[1]) == 2
    by_itself = made.name == "mul" and found.source.code(made.operands[0]) == found.source.code(made.operands[1])
    if not (made.name == "square" or by_power or by_itself):
        raise _NotOne
    return made.operands[0]


def _numerator(found: WrittenNorm, node: cst.BaseExpression) -> None:
    if found.kind == "rms":
        _set_input(found, node)
    else:
        _centred(found, node)


def _centred(found: WrittenNorm, node: cst.BaseExpression) -> None:
    """x − mean(x)."""
    made = _removed_operation(found, node)
    if made.name != "sub" or len(made.operands) != 2:
        raise _NotOne
    mean = _removed_operation(found, made.operands[1])
    if mean.name != "mean" or not _over_last(mean):
        raise _NotOne
    _set_input(found, mean.operands[0])
    _set_input(found, made.operands[0])


def _set_input(found: WrittenNorm, node: cst.BaseExpression) -> None:
    """All mentions of the input are one value, however its format was changed before."""
    node = _uncast(found, node)
    if found.input is None:
        found.input = node
        return
    source = found.source
    if isinstance(node, cst.Call) or source.code(node) != source.code(found.input):
        raise _NotOne  # two calls are two values
    if not see_the_same(source, node, found.input):
        raise _NotOne


def _is_parameter(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is a vector of parameters, `nn.Parameter(torch.ones(width))`."""
    kept = member(source, node)
    made = operation(source, kept) if kept is not None else None
    if made is None or made.name != "Parameter" or not made.operands:
        return False
    filled = operation(source, made.operands[0])
    if filled is None or filled.name not in {"ones", "zeros", "empty", "full", "rand", "randn"}:
        return False
    sizes = filled.operands[:1] if filled.name == "full" else filled.operands
    if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple | cst.List):
        sizes = tuple(element.value for element in sizes[0].elements)
    return len(sizes) == 1 and integer(sizes[0]) != 1


def _check(found: WrittenNorm) -> None:
    """Input and ε still mean the same at the root, and nothing else reads what goes."""
    source = found.source
    at = statement_of(source, found.root)
    if found.input is None or found.eps is None:
        raise _NotOne
    removed = {id(statement) for statement, _ in found.steps}
    for node in (found.input,) if found.method is not None else (found.input, found.eps):
        for name in names_in(source, node):
            here = definition_of(source, name)
            if here.bound is Bound.LOST or id(here.statement) in removed:
                raise _NotOne
            now = reaching(source, at, name.value)
            # A removed statement may bind the name again on the way: without it, the old value is there.
            if now.statement is not here.statement and id(now.statement) not in removed:
                raise _NotOne
            if id(now.statement) in removed and not _all_removed_between(
                source, removed, name.value, here.statement, at
            ):
                raise _NotOne
    if found.weight is not None and not same_value(source, found.weight, at):
        raise _NotOne
    _check_reads(found, removed)
    _check_formats(found)


def _check_formats(found: WrittenNorm) -> None:
    """The kernel computes in float32 and returns its input's format: nothing is made wider than float32 on the way, and
    what comes out is in the input's format, or in float32 where the input is made that."""
    back = all(_is_format_of_input(found, made) for made in found.casts_back)
    if not back or not all(_is_float32(found.source, made) for made in found.casts):
        raise _NotOne
    if found.casts and not found.casts_back:
        found.widened = "float"


def _is_float32(source: Source, made: Operation) -> bool:
    asked = made.given("dtype", 1)
    return made.name == "float" or (asked is not None and bool(source.names(asked) & {"torch.float32", "torch.float"}))


def _is_format_of_input(found: WrittenNorm, made: Operation) -> bool:
    """Whether a change of format is to the input's own: `.type_as(x)`, `.to(x.dtype)`, also by a name for that."""
    source, asked = found.source, made.given("dtype", 1)
    if asked is None or found.input is None:
        return False
    if isinstance(asked, cst.Name):
        seen = definition_of(source, asked)
        if seen.bound is Bound.ASSIGNED and isinstance(seen.value, cst.Attribute):
            asked = seen.value
    if isinstance(asked, cst.Attribute) and asked.attr.value == "dtype":
        asked = asked.value
    if found.method is not None and source.inside(asked, cst.FunctionDef) is found.method:
        parameter = found.method.params.params[1].name.value
        given = reaching(source, statement_of(source, asked), parameter)
        return source.code(asked) == parameter and given.bound is Bound.PARAMETER
    return source.code(asked) == source.code(found.input) and see_the_same(source, asked, found.input)


def _all_removed_between(
    source: Source, removed: set[int], name: str, first: cst.CSTNode | None, at: cst.CSTNode
) -> bool:
    current = at
    for _ in range(8):
        seen = reaching(source, current, name)
        if seen.statement is first:
            return True
        if seen.statement is None or id(seen.statement) not in removed:
            return False
        current = seen.statement
    return False


def _check_reads(found: WrittenNorm, removed: set[int]) -> None:
    source = found.source
    scope = source.inside(found.root, cst.FunctionDef)
    names = {name for _, name in found.steps}
    if scope is None or any(source.inside(one, cst.FunctionDef) is not scope for one, _ in found.steps):
        raise _NotOne
    for name in names_in(source, scope):
        if name.value not in names or isinstance(source.parent(name), cst.AssignTarget | cst.Param):
            continue
        if any(above is found.root or id(above) in removed for above in source.ancestors(name)):
            continue
        if may_be_bound_by(source, name, removed):
            raise _NotOne
