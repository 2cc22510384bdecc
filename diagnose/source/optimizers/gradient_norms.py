"""A loop that adds up the norms of the gradients parameter by parameter, and the hand-written clipping after it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, bound_to, passed_to
from diagnose.source.dataflow.ranks import given_to
from diagnose.source.rewrite.with_blocks import block_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, only_statement

_START = re.compile(r"(?:0|0\.0?|torch\.zeros\((?:\(\)|\[\])(?:,.*)?\)|torch\.tensor\(0\.?0?\b.*\))$")
"""A number or a tensor of no axes, as torch's functions give."""
_ROOT = (r"{acc}\*\*(?:0?\.5|\(1\.?0?/2\.?0?\))", r"(?:math|np|numpy|torch)\.sqrt\({acc}\)", r"{acc}\.sqrt\(\)")
_SQUARE = (
    r"{p}\.grad\.norm\((?:2|2\.0|p=2|p=2\.0)?\)\*\*2(?:\.0)?",
    r"{p}\.grad\.norm\((?:2|2\.0|p=2|p=2\.0)?\)\.(?:pow\(2\)|square\(\))",
    r"torch\.(?:linalg\.)?(?:vector_)?norm\({p}\.grad(?:,(?:2|2\.0|p=2))?\)\*\*2(?:\.0)?",
    r"\(?{p}\.grad(?:\*\*2|\.pow\(2\)|\.square\(\))\)?\.sum\(\)",
)
_NUMBER = re.compile(r"\.item\(\)|\b(?:math|np|numpy)\.sqrt\(")
_ONCE = frozenset({"filter", "map", "iter", "chain", "parameters", "named_parameters"})
_EPSILON = r"(?:1e-0?6|0\.000001)"


@dataclass(frozen=True)
class NormLoop:
    """Statements in a row: a start at zero, the loop, and perhaps the root of the sum."""

    statements: tuple[cst.CSTNode, ...]
    """The statements, with those between, if there are any."""
    total: str
    """The variable that holds the sum of squares."""
    norm: str | None
    """The one that holds its root; None where no statement takes it."""
    parameters: str
    """What it loops over: `model.parameters()`."""
    is_number: bool
    """Whether what comes out is a number of Python: a tensor was read on the way, or its root taken by `math`."""


def norm_loops(source: Source, sources: Mapping[str, Source]) -> list[NormLoop]:
    """All of a file, one of `sources`, in the order of the text."""
    if not any(map(_may_add_squares, source.outline.loops)):
        return []
    found = [_norm_loop(source, sources, loop) for loop in source.every(cst.For)]
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class NormSum:
    """An expression such as `sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5`, which is a number."""

    node: cst.BaseExpression
    gradients: str
    """The code of a list of the gradients that it goes through."""
    is_root: bool


def norm_sums(source: Source) -> Iterator[NormSum]:
    """All of a file, in the order of the text."""
    for call in source.calls_named("sum") if "grad" in source.words else ():
        each = call.args[0].value if len(call.args) == 1 else None
        if not isinstance(each, cst.GeneratorExp | cst.ListComp) or "builtins.sum" not in source.names(call.func):
            continue
        over, name = each.for_in, source.code(each.for_in.target)
        if over.inner_for_in is not None or not _matches(_SQUARE, _compact(source.code(each.elt)), p=name):
            continue
        if all(_has_gradient(_compact(source.code(only.test)), name) for only in over.ifs):
            root = _root_of(source, call)
            if _NUMBER.search(source.code(root or call)):  # a tensor may be a part of another graph
                yield NormSum(root or call, f"[{name}.grad {source.code(over).strip()}]", root is not None)


def _root_of(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """The expression that takes the root of a sum at once; not by NumPy, which returns numbers of its own kind."""
    above = source.parent(call)
    taken = source.parent(above) if isinstance(above, cst.Arg) else above
    if not isinstance(taken, cst.BinaryOperation | cst.Call):
        return None
    acc = _compact(source.code(call))
    by_numpy = re.match(r"(?:np|numpy)\.", source.code(taken))
    return taken if by_numpy is None and _matches(_ROOT, _compact(source.code(taken)), acc=acc) else None


def _may_add_squares(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether a loop reads gradients and adds something up, as Python's own parser has it."""
    nodes = list(ast.walk(loop))
    adds = any(isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add) for each in nodes)
    return adds and any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in nodes)


def _norm_loop(source: Source, sources: Mapping[str, Source], loop: cst.For) -> NormLoop | None:
    block = block_of(source, loop)
    if block is None or not isinstance(loop.target, cst.Name) or loop.orelse is not None:
        return None
    total = _total(source, loop, loop.target.value)
    if total is None or _is_exhausted(source, sources, loop.iter):
        return None
    at = list(block).index(loop)
    before = block[at - 1] if at else None
    start = _assigned(source, before)
    if start is None or start[0] != total or not _START.match(start[1]):
        return None
    root = _assigned(source, block[at + 1]) if at + 1 < len(block) else None
    norm = root[0] if root is not None and _matches(_ROOT, root[1], acc=total) else None
    statements = block[at - 1 : at + 2] if norm is not None else block[at - 1 : at + 1]
    written = "".join(source.code(each) for each in statements)
    return NormLoop(tuple(statements), total, norm, source.code(loop.iter), _NUMBER.search(written) is not None)


def _is_exhausted(
    source: Source, sources: Mapping[str, Source], over: cst.BaseExpression, seen: tuple[cst.CSTNode, ...] = ()
) -> bool:
    """Whether a variable holds what can be gone through once: a second loop over it, or a clip, finds nothing."""
    values: list[tuple[Source, cst.CSTNode]] = []
    if isinstance(over, cst.Attribute):
        values = [(source, value) for value in given_to(source, over)]
    elif isinstance(over, cst.Name):
        bound = binding_of(source, over)
        values = [(source, value) for value in bound_to(source, over)]
        if bound is not None and bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
            passed = passed_to(bound.scope, bound.parameter, None, sources) or []
            values = [(sources[path], value) for path, value in passed if value is not None]
    for at, value in values:
        if isinstance(value, cst.GeneratorExp) or (isinstance(value, cst.Call) and call_name(value) in _ONCE):
            return True
        named = isinstance(value, cst.Name | cst.Attribute) and value not in seen
        if named and isinstance(value, cst.BaseExpression) and _is_exhausted(at, sources, value, (*seen, value)):
            return True
    return False


def _total(source: Source, loop: cst.For, name: str) -> str | None:
    """The variable to which the loop adds the squares of the norms of all gradients."""
    lines = _guarded(source, list(loop.body.body), name)
    known: dict[str, str] = {}
    for number, line in enumerate(lines):
        small = only_statement(line)
        last = number == len(lines) - 1
        if isinstance(small, cst.Assign) and not last:
            assigned = _assigned(source, line)
            if assigned is None:
                return None
            known[assigned[0]] = _inlined(assigned[1], known)
        elif isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign) and last:
            square = _inlined(_compact(source.code(small.value)), known)
            return source.code(small.target) if _matches(_SQUARE, square, p=name) else None
        else:
            return None
    return None


def _guarded(source: Source, body: list[cst.CSTNode], name: str) -> list[cst.CSTNode]:
    """The statements for parameters that have a gradient."""
    first = body[0] if body else None
    if not isinstance(first, cst.If) or first.orelse is not None:
        return body
    test = _compact(source.code(first.test))
    if len(body) == 1 and _has_gradient(test, name):
        return list(first.body.body)
    jumps = _compact(source.code(first.body)) == "continue"
    return body[1:] if jumps and re.fullmatch(rf"{name}\.gradisNone|not{name}\.grad", test) else body


def _has_gradient(test: str, name: str) -> bool:
    """Whether a condition asks for nothing but a gradient: `p.grad is not None`."""
    return re.fullmatch(rf"{name}\.grad(isnotNone)?(and{name}\.requires_grad)?", test) is not None


def _assigned(source: Source, statement: cst.CSTNode | None) -> tuple[str, str] | None:
    small = only_statement(statement)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    return source.code(small.targets[0].target), _compact(source.code(small.value))


def _compact(code: str) -> str:
    """Return code without white space, and without what changes no value: a read, a cut from the graph."""
    return re.sub(r"\.item\(\)|\.detach\(\)|\.data\b|\.cpu\(\)", "", re.sub(r"#[^\n]*|\s+", "", code))


def _inlined(code: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        code = value.join(re.split(rf"(?<![\w.]){re.escape(name)}(?!\w)", code))
    return code


def _matches(patterns: Sequence[str], code: str, **names: str) -> bool:
    plain = {key: re.escape(value) for key, value in names.items()}
    return any(re.fullmatch(pattern.format(**plain), code) for pattern in patterns)


@dataclass(frozen=True)
class HandClipping:
    """The statements after a loop over norms that scale the gradients as `clip_grad_norm_` does."""

    statements: tuple[cst.CSTNode, ...]
    largest: str
    """The code of the largest norm."""
    spreads_nan: bool
    """Whether a norm that is NaN makes all gradients NaN, as it does in torch's function.

    `if factor < 1` and `min(1, factor)` leave the gradients of other parameters as they are: NaN is not less than 1.
    """


def clipped_by_hand(source: Source, found: NormLoop) -> HandClipping | None:
    """The clipping after a loop; None where there is none, or it is another formula."""
    block = block_of(source, found.statements[0])
    if block is None or found.norm is None:
        return None
    rest = list(block)[list(block).index(found.statements[-1]) + 1 :]
    factor = _assigned(source, rest[0]) if rest else None
    if factor is None or len(rest) < 2:
        return None
    name, code = factor
    norm = re.escape(found.norm)
    match = re.fullmatch(rf"(?P<max>[\w.]+)/\({norm}\+{_EPSILON}\)", code)
    one_first = re.fullmatch(rf"min\(1(?:\.0)?,(?P<max>[\w.]+)/\({norm}\+{_EPSILON}\)\)", code)
    one_last = re.fullmatch(rf"min\((?P<max>[\w.]+)/\({norm}\+{_EPSILON}\),1(?:\.0)?\)", code)
    capped = one_first or one_last
    scaling = rest[1]
    if match is not None and isinstance(scaling, cst.If) and scaling.orelse is None:
        test = re.fullmatch(rf"{re.escape(name)}<=?1(?:\.0)?", _compact(source.code(scaling.test)))
        inner = list(scaling.body.body)
        if test is None or len(inner) != 1:
            return None
        scaling = inner[0]
    elif capped is None:
        return None
    largest = (match or capped)["max"] if (match or capped) else ""  # type: ignore[index]
    if not isinstance(scaling, cst.For) or not _scales(source, scaling, found, name):
        return None
    used_later = any(re.search(rf"\b{re.escape(name)}\b", source.code(each)) for each in rest[2:])
    return None if used_later else HandClipping(tuple(rest[:2]), largest, one_last is not None)


def _scales(source: Source, loop: cst.For, found: NormLoop, factor: str) -> bool:
    if source.code(loop.iter) != found.parameters or not isinstance(loop.target, cst.Name):
        return False
    name = loop.target.value
    lines = _guarded(source, list(loop.body.body), name)
    code = _compact(source.code(lines[0])) if len(lines) == 1 else ""
    return code in {f"{name}.grad.mul_({factor})", f"{name}.grad*={factor}"}
