"""Calls of cross entropy, and its logits without the changes of layout and number format on the way to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.reaching_definitions import definition_of
from diagnose.source.patterns.class_probabilities import are_probabilities
from diagnose.source.patterns.formula import Operation, constant, integer, operation
from diagnose.source.tree.arguments import has_star
from diagnose.source.tree.attributes import member
from diagnose.source.tree.syntax import Source

Step = tuple[cst.CSTNode, str]
"""A statement, and the name that it binds."""

_PASSED_ON = frozenset({"ignore_index", "label_smoothing", "reduction"})
_POSITIONAL = ("input", "target")
_BINDS_TIGHTLY = re.compile(r"[\w.]+")
_ROWS_AND_LENGTH = ({1, 2}, {-1, -2})


@dataclass(frozen=True)
class CrossEntropy:
    """A call of `F.cross_entropy`, or of a module that is one; or the same written out (see losses.py)."""

    source: Source
    root: cst.BaseExpression
    logits: cst.BaseExpression
    targets: cst.BaseExpression
    keywords: tuple[tuple[str, str], ...]
    """Name and code of the options that the fused kernels know too."""
    refused: str | None
    """Why no fused kernel computes it."""
    portable: bool
    """Whether its options mean the same anywhere else in the program."""
    last: bool = False
    """Classes are the last axis of the logits, whatever their rank; else the second."""
    column: bool = False
    """The targets, whatever their rank, are made one axis on the way."""
    steps: tuple[Step, ...] = ()
    """The statements that a written one is made of besides `root`; nothing else reads what they bind."""
    flat: bool = False
    """All axes but the last of the logits, whatever their rank, are made one on the way."""
    sizes: tuple[cst.BaseExpression, ...] = ()
    """What the program takes for the size of the last axis there, where that is not seen to be it."""


@dataclass(frozen=True)
class Unlaid:
    """`base`, from which an expression is made by changes of layout and format alone."""

    base: cst.BaseExpression
    flat: bool
    """All axes but the last were made one."""
    second: bool
    """The last axis was made the second."""
    picks: tuple[str, ...]
    """Subscripts that leave the last axis alone, in the order in which they are applied: `[..., :-1, :]`."""
    sizes: tuple[cst.BaseExpression, ...]
    """What the program takes for the size of the last axis."""
    steps: tuple[Step, ...]
    """The statements that were followed, that of the base last."""


def cross_entropies(source: Source, below: cst.CSTNode | None = None) -> Iterator[CrossEntropy]:
    """Yield the cross entropies of a file or of a part of it, in the order of the text."""
    for call in source.every(cst.Call, below):
        options = _options(source, call)
        if options is None or has_star(call):
            continue
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        given |= dict(zip(_POSITIONAL, (arg.value for arg in call.args if arg.keyword is None), strict=False))
        if not given.keys() >= {"input", "target"}:
            continue
        options = {**options, **{name: value for name, value in given.items() if name not in _POSITIONAL}}
        named = tuple((name, source.code(value)) for name, value in options.items())
        yield CrossEntropy(
            source,
            call,
            given["input"],
            given["target"],
            tuple((name, code) for name, code in named if name in _PASSED_ON),
            _by_position(call) or refused_option(named) or why_not_indices(source, given["target"]),
            all(means_the_same(source, value) for value in options.values()),
        )


def _options(source: Source, call: cst.Call) -> dict[str, cst.BaseExpression] | None:
    """The options that the module or the partial function was built with; none for the function itself; None for a call
    of something else."""
    if _is_function(source, call.func):
        return {}
    built = _built(source, call.func)
    if built is None or has_star(built):
        return None
    given = [arg.value for arg in built.args if arg.keyword is None]
    module = any(name.endswith("torch.nn.CrossEntropyLoss") for name in source.names(built.func)) and not given
    partial = "functools.partial" in source.names(built.func) and len(given) == 1 and _is_function(source, given[0])
    options = {arg.keyword.value: arg.value for arg in built.args if arg.keyword is not None}
    known = (module or partial) and options.keys().isdisjoint(_POSITIONAL)
    return options if known and all(means_the_same(source, value) for value in options.values()) else None


def _is_function(source: Source, node: cst.BaseExpression) -> bool:
    return any(name in {"torch.nn.functional.cross_entropy", "torch.nn.cross_entropy"} for name in source.names(node))


def _built(source: Source, function: cst.BaseExpression) -> cst.Call | None:
    """Return how what is called was built: `nn.CrossEntropyLoss()`, `partial(…)`, by name, as a member, or right
    there."""
    if isinstance(function, cst.Call):
        return function
    found = member(source, function) if isinstance(function, cst.Attribute) else None
    if isinstance(function, cst.Name):
        bound = binding_of(source, function)
        found = bound.value if bound is not None else None
    if (
        isinstance(found, cst.Call)
        and isinstance(found.func, cst.Attribute)
        and found.func.attr.value in {"to", "cuda"}
    ):
        found = found.func.value
    return found if isinstance(found, cst.Call) else None


def refused_option(named: Sequence[tuple[str, str]]) -> str | None:
    """Why no fused kernel computes a loss with these options (name and code)."""
    other = next((name for name, _ in named if name not in _PASSED_ON), None)
    if other is not None:
        return f"the fused kernel knows no `{other}`"
    reduction = dict(named).get("reduction", '"mean"').strip("\"'")
    return None if reduction in {"mean", "sum", "none"} else "its reduction is not written out"


def _by_position(call: cst.Call) -> str | None:
    more = sum(arg.keyword is None for arg in call.args) > len(_POSITIONAL)
    return "its options are given by position" if more else None


def why_not_indices(source: Source, targets: cst.BaseExpression) -> str | None:
    """Why no fused kernel takes these targets."""
    return "its targets are probabilities of classes" if are_probabilities(source, targets) else None


def means_the_same(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an option's value has no names, which other files may not know."""
    return isinstance(value, cst.SimpleString) or (
        constant(source, value) is not None and not any(source.every(cst.Name, value))
    )


def follow_names(source: Source, node: cst.BaseExpression, steps: list[Step]) -> cst.BaseExpression:
    """Return the expression that a name stands for, through plain assignments, which are added to `steps`. Other
    expressions are returned unchanged.
    """
    while isinstance(node, cst.Name):
        found = definition_of(source, node)
        if found.assigned is None or found.statement is None:
            break
        steps.append((found.statement, node.value))
        node = found.assigned
    return node


def unlaid(loss: CrossEntropy) -> Unlaid | None:
    """Logits (rows, classes) or (batch, classes, length), taken back to (…, classes); None where that is not seen."""
    source, node, last = loss.source, loss.logits, loss.last
    flat, second = loss.flat, False
    picks: list[str] = []
    sizes: list[cst.BaseExpression] = [*loss.sizes]
    steps: list[Step] = []
    while True:
        node = follow_names(source, node, steps)
        if isinstance(node, cst.Subscript):
            if not _leaves_last(source, node) or not (flat or second or last):
                return None
            picks.insert(0, source.text[source.wide_span(node.value)[1] : source.span(node)[1]].strip())
            node = node.value
            continue
        made = operation(source, node) if isinstance(node, cst.Call | cst.Attribute) else None
        if made is None or not made.operands:
            break
        rows = rows_of(made)
        if rows is not None:
            if picks or second:
                return None
            flat = True
            sizes += rows
        elif _swaps(made):
            if picks or flat or second or last:
                return None
            second = True
        elif not _keeps_values(source, made):
            break
        node = made.operands[0]
    return Unlaid(node, flat, second, tuple(picks), tuple(sizes), tuple(steps))


def classes_last(loss: CrossEntropy) -> str | None:
    """The code of logits as rows (…, classes), less what only changes their format; None where that is not seen."""
    laid = unlaid(loss)
    if laid is None or not (laid.flat or laid.second or loss.last) or loss.sizes:
        return None
    code, swapped = _peeled(loss.source, loss.logits)
    if loss.flat:
        code = f"{code if _BINDS_TIGHTLY.fullmatch(code) else f'({code})'}.flatten(0, -2)"
    return code if swapped is laid.second else None


def _peeled(source: Source, node: cst.BaseExpression) -> tuple[str, bool]:
    """The code of an expression without changes of format and of the order of axes, and whether it had one of these."""
    made = operation(source, node) if isinstance(node, cst.Call | cst.Attribute) else None
    if made is None or not made.method or not made.operands:
        return source.code(node), False
    inner, swaps = made.operands[0], _swaps(made)
    if not swaps and rows_of(made) is None and not _keeps_values(source, made):
        return source.code(node), False
    code, swapped = _peeled(source, inner)
    kept = rows_of(made) is not None or made.name == "contiguous"
    rest = source.text[source.wide_span(inner)[1] : source.span(node)[1]] if kept and not swapped else ""
    return code + rest, swapped or swaps


def flattened(source: Source, node: cst.BaseExpression, steps: list[Step]) -> tuple[cst.BaseExpression, bool]:
    """Targets before they were made one axis, and whether they were."""
    flat = False
    while True:
        # A name is followed only where that leads to a change of layout.
        tried: list[Step] = []
        value = follow_names(source, node, tried)
        made = operation(source, value) if isinstance(value, cst.Call) else None
        if made is None or not made.operands or not made.method:
            return node, flat
        axes = [integer(operand) for operand in made.operands[1:]]
        whole = made.name == "flatten" and axes in ([], [0], [0, 1], [0, -1]) and not made.keywords
        if made.name in {"view", "reshape"} and len(made.operands) == 2:
            whole = not isinstance(made.operands[1], cst.Tuple | cst.Attribute)
        if not whole and not (made.name == "contiguous" and len(made.operands) == 1):
            return node, flat
        steps += tried
        flat = flat or whole
        node = made.operands[0]


def rows_of(made: Operation) -> list[cst.BaseExpression] | None:
    """The size of the last axis where all others become one (none where it is not told); None for other layouts."""
    if made.name in {"view", "reshape"}:
        sizes = list(made.operands[1:])
        if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple | cst.List):
            sizes = [element.value for element in sizes[0].elements]
        return sizes[1:] if len(sizes) == 2 else None
    if made.name == "flatten":
        first, last = made.given("start_dim", 1), made.given("end_dim", 2)
        starts = first is None or integer(first) == 0
        return [] if starts and integer(last) in {1, -2} else None
    pattern = _pattern(made)
    if pattern is not None:
        before, after = pattern
        merged = f"({' '.join(before[:-1])}) {before[-1]}" if before else ""
        return [] if len(before) > 2 and after == merged else None
    return None


def _swaps(made: Operation) -> bool:
    """Whether the last two of three axes change places."""
    numbers = [integer(operand) for operand in made.operands[1:]]
    if made.name == "transpose":
        return set(numbers) in _ROWS_AND_LENGTH
    if made.name == "permute":
        return numbers == [0, 2, 1]
    pattern = _pattern(made)
    if pattern is not None:
        before, after = pattern
        return len(before) == 3 and after.split() == [before[0], before[2], before[1]]
    return made.name == "mT"


def _pattern(made: Operation) -> tuple[list[str], str] | None:
    """The axes before and after of `rearrange(x, "b n c -> (b n) c")`."""
    given = made.operands[1] if made.name == "rearrange" and len(made.operands) == 2 else None
    if not isinstance(given, cst.SimpleString) or made.keywords:
        return None
    before, arrow, after = str(given.evaluated_value).partition("->")
    return (before.split(), after.strip()) if arrow and "(" not in before and "..." not in before else None


def _keeps_values(source: Source, made: Operation) -> bool:
    if made.name in {"contiguous", "float"}:
        return len(made.operands) == 1
    wider = made.given("dtype", 1)
    single = wider is not None and not {"torch.float32", "torch.float"}.isdisjoint(source.names(wider))
    return made.name in {"to", "type"} and single and len(made.operands) + len(made.keywords) == 2


def _leaves_last(source: Source, node: cst.Subscript) -> bool:
    """Whether a subscript takes a stretch of the leading axes and the whole last one."""
    parts = [element.slice for element in node.slice]
    if any(not isinstance(part, cst.Slice) for part in parts[1:]):
        return False
    dotted = isinstance(parts[0], cst.Index) and isinstance(parts[0].value, cst.Ellipsis)
    if not dotted and not isinstance(parts[0], cst.Slice):
        return False
    whole = isinstance(parts[-1], cst.Slice) and source.code(node.slice[-1]).rstrip(", ") == ":"
    return whole if dotted or len(parts) > 2 else True
