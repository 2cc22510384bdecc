"""A negative log-likelihood of classes that is written out: log_softmax, the entries of the targets, their mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.reaching_definitions import same_value, statement_of
from diagnose.source.losses.last_axis import is_last_size
from diagnose.source.patterns.cross_entropy import rows_of
from diagnose.source.patterns.formula import Operation, certain, constant, integer, operation
from diagnose.source.rewrite.leftovers import nothing_else_reads
from diagnose.source.tree.syntax import Source

_PASSED_ON = ("weight", "ignore_index", "reduction")
"""Keywords of `nll_loss` that `cross_entropy` knows too."""
_FORMATS = frozenset({"float", "to", "double"})
_FLAT = frozenset({"view", "reshape", "flatten"})


@dataclass
class WrittenLikelihood:
    """`root` is the cross entropy of `logits` and `targets`."""

    source: Source
    root: cst.BaseExpression
    logits: cst.BaseExpression | None = None
    targets: cst.BaseExpression | None = None
    classes: int = -1
    """The axis of the classes: 1, or the last."""
    flat: bool = False
    """The logarithms are made rows, and the targets with them: `log_softmax(x, -1).view(-1, n)`."""
    sizes: list[cst.BaseExpression] = field(default_factory=list)
    """What the program takes there for the number of classes, where that is not seen to be it."""
    column: bool = False
    """The targets, whatever their rank, are made a column: `targets.view(-1, 1)`."""
    reduction: str = ""
    """`mean`, `sum`, or none of them."""
    squeezed: bool = False
    squeezed_axis: int | None = None
    """The axis that is squeezed away; None for all that can be."""
    negative: bool = False
    keywords: list[tuple[str, cst.BaseExpression]] = field(default_factory=list)
    steps: list[tuple[cst.CSTNode, str]] = field(default_factory=list)


class _NotOne(Exception):
    """The expression is no such loss."""


def written_likelihoods(source: Source) -> Iterator[WrittenLikelihood]:
    """Yield the likelihoods that a file writes out, the widest expression of each."""
    done: list[tuple[int, int]] = []
    kinds = (cst.UnaryOperation, cst.BinaryOperation, cst.Call)
    nodes = [node for node in source.walk(None, *kinds) if isinstance(node, kinds)]
    # What a variable holds is part of the expression that reads it last.
    nodes.sort(key=lambda node: source.span(statement_of(source, node))[0], reverse=True)
    for node in nodes:
        start, end = source.span(node)
        if any(first <= start and end <= last for first, last in done):
            continue
        found = WrittenLikelihood(source, node)
        try:
            _outside(found, node)
        except _NotOne:
            continue
        assert found.logits is not None and found.targets is not None
        at = statement_of(source, node)
        same = same_value(source, found.logits, at) and same_value(source, found.targets, at)
        same = same and all(_contexts(source, step) == _contexts(source, node) for step, _ in found.steps)
        if same and nothing_else_reads(source, node, found.steps):
            done += [(start, end), *(source.span(statement) for statement, _ in found.steps)]
            yield found


def _contexts(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """The `with` blocks around a node: autocasting, or none of the gradients."""
    return [above for above in source.ancestors(node) if isinstance(above, cst.With)]


def _operation(found: WrittenLikelihood, node: cst.BaseExpression) -> Operation:
    made = certain(found.source, node)
    if made is None or not made.operands:
        raise _NotOne
    found.steps += made.through
    return made


def _outside(found: WrittenLikelihood, node: cst.BaseExpression) -> None:
    """Peel off sign, mean and layout, down to the entries of the targets."""
    if isinstance(node, cst.Subscript):
        _indexed(found, node)
        return
    made = _operation(found, node)
    bare = len(made.operands) == 1 and not made.keywords
    if made.name == "neg" or (made.name == "mul" and constant(found.source, made.operands[-1]) == -1):
        found.negative = not found.negative
        _outside(found, made.operands[0])
    elif made.name in {"mean", "sum"} and bare and not found.reduction:
        found.reduction = made.name
        _outside(found, made.operands[0])
    elif made.name == "squeeze" and len(made.operands) < 3:
        found.squeezed, found.squeezed_axis = True, integer(made.given("dim", 1))
        _outside(found, made.operands[0])
    elif made.name in _FLAT and found.reduction:
        _outside(found, made.operands[0])
    elif made.name == "gather":
        _gathered(found, made)
    elif made.name == "nll_loss":
        _called(found, made)
    else:
        raise _NotOne


def _gathered(found: WrittenLikelihood, made: Operation) -> None:
    """log_p.gather(-1, targets.unsqueeze(-1))"""
    axis, index = integer(made.given("dim", 1)), made.given("index", 2)
    if axis not in {1, -1} or index is None or not found.negative or not (found.squeezed or found.reduction):
        raise _NotOne
    found.classes = axis
    found.targets = _unsqueezed(found, index)
    axes = {axis, 1, -1} if found.column else {axis}
    if not found.reduction and found.squeezed_axis not in axes:
        raise _NotOne  # another axis of one entry would go
    _logarithms(found, made.operands[0], axis)


def _unsqueezed(found: WrittenLikelihood, node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.Subscript):
        code = [found.source.code(element).rstrip(", ") for element in node.slice]
        if code in (["...", "None"], [":", "None"]):
            if code[0] == ":":
                found.classes = 1
            return node.value
        raise _NotOne
    made = _operation(found, node)
    added = integer(made.given("dim", 1))
    if made.name == "unsqueeze" and added == found.classes:
        return made.operands[0]
    column = [integer(operand) for operand in made.operands[1:]]
    if made.name in {"view", "reshape"} and column == [-1, 1]:
        found.classes, found.column = 1, True
        return made.operands[0]
    raise _NotOne


def _indexed(found: WrittenLikelihood, node: cst.Subscript) -> None:
    """log_p[torch.arange(n), targets]"""
    parts = [part.slice.value for part in node.slice if isinstance(part.slice, cst.Index)]
    if len(parts) != 2 or len(node.slice) != 2 or not found.negative:
        raise _NotOne
    rows = operation(found.source, parts[0])
    plain = isinstance(parts[0], cst.Call) and found.source.code(parts[0].func) == "range" and len(parts[0].args) == 1
    if not plain and (rows is None or rows.name != "arange" or len(rows.operands) != 1):
        raise _NotOne
    count = parts[0].args[0].value if isinstance(parts[0], cst.Call) and parts[0].args else None
    if isinstance(count, cst.Integer):
        raise _NotOne  # perhaps some first rows
    found.steps += rows.through if rows is not None else ()
    found.classes, found.targets = 1, parts[1]
    if not _may_be_tensor(found, parts[1]) or not found.reduction:
        raise _NotOne  # entries of targets that count from the last class are masked later
    _logarithms(found, node.value, 1)


def _may_be_tensor(found: WrittenLikelihood, node: cst.BaseExpression) -> bool:
    """Whether an index is not seen to be a number or a list of Python's, which a loss does not take."""
    values = bound_to(found.source, node) if isinstance(node, cst.Name) else []
    plain = cst.BaseNumber | cst.List | cst.Tuple | cst.ListComp | cst.UnaryOperation
    return not any(isinstance(each, plain) for each in (node, *values))


def _called(found: WrittenLikelihood, made: Operation) -> None:
    """F.nll_loss(log_p, targets)"""
    if len(made.operands) != 2 or found.negative or found.reduction or found.squeezed:
        raise _NotOne
    if any(keyword not in _PASSED_ON for keyword in made.keywords):
        raise _NotOne
    found.classes, found.targets = 1, made.operands[1]
    found.keywords = list(made.keywords.items())
    _logarithms(found, _laid_out(found, made.operands[0]), 1)


def _laid_out(found: WrittenLikelihood, node: cst.BaseExpression) -> cst.BaseExpression:
    """Logarithms before they are made rows."""
    made = operation(found.source, node)
    while made is not None and made.condition is None and made.operands:
        sizes = rows_of(made)
        if sizes is None and (made.name != "contiguous" or len(made.operands) > 1):
            break
        if sizes is not None:
            found.flat, found.classes = True, -1
            name = found.source.code(made.operands[0])
            found.sizes += [size for size in sizes if not is_last_size(found.source, size, [name])]
        found.steps += made.through
        node = made.operands[0]
        made = operation(found.source, node)
    return node


def _logarithms(found: WrittenLikelihood, node: cst.BaseExpression, axis: int) -> None:
    made = _operation(found, node)
    along = integer(made.given("dim", 1))
    if made.name != "log_softmax" or made.module is not None or along is None:
        raise _NotOne
    found.logits = made.operands[0]
    if found.flat and along != -1:
        raise _NotOne
    names = [found.source.code(node), *_names_of(found.source, found.logits)]
    found.sizes = [size for size in found.sizes if not is_last_size(found.source, size, names)]
    if not found.flat and along != axis and not (along in {1, -1} and _is_matrix(found, found.logits)):
        raise _NotOne
    kind = made.given("dtype", 2) if "dtype" in made.keywords else None
    if kind is not None and "torch.float32" not in found.source.names(kind):
        raise _NotOne


def _names_of(source: Source, logits: cst.BaseExpression) -> Iterator[str]:
    """The code of logits, and of what a change of format alone makes them of."""
    yield source.code(logits)
    made = operation(source, logits) if isinstance(logits, cst.Call) else None
    if made is not None and made.operands and made.name in _FORMATS:
        yield from _names_of(source, made.operands[0])


def _is_matrix(found: WrittenLikelihood, node: cst.BaseExpression) -> bool:
    """Whether logits are seen to have two axes: the last and axis 1 are then one."""
    made = operation(found.source, node)
    while made is not None and made.name in _FORMATS and made.operands:
        made = operation(found.source, made.operands[0])
    if made is None:
        return False
    numbers = [integer(operand) for operand in made.operands[1:]]
    rows = made.name in {"view", "reshape"} and len(numbers) == 2 and -1 in numbers
    return rows or (made.name == "flatten" and numbers in ([0, 1], [0, -2]))
