"""Loops that keep a moving average of weights, tensor by tensor: `e = decay * e + (1 - decay) * p`, however spelt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.arguments import argument
from diagnose.source.edit import call_name
from diagnose.source.flow import binds, is_after, uses_of, within
from diagnose.source.pure import only_computes
from diagnose.source.reaching import Bound, reaching, statement_of
from diagnose.source.syntax import Source

__all__ = ["MovingAverage", "moving_averages"]

_PLAIN = re.compile(r"\.data\b|\.detach\(\)|\s")
_BUFFERS = r"(?:state_dict|named_buffers|buffers)\("
"""What may hold counts beside weights: no mean of whole numbers is one."""


@dataclass(frozen=True)
class MovingAverage:
    """One such loop."""

    loop: cst.For
    averages: str
    """Code of a list of what is kept, in the order of `values`."""
    values: str
    weight: str
    """How much of a new value goes into the average."""
    anew: bool
    """Each turn puts a new tensor in the place of the average (`e.data = …`), and does not write into it."""


@dataclass(frozen=True)
class _Term:
    """A factor times one tensor."""

    tensor: str
    factor: str


def moving_averages(source: Source) -> Iterator[MovingAverage]:
    """The loops of a file that do this and nothing else."""
    for loop in source.every(cst.For):
        lines = loop.body.body
        simple = [line for line in lines if isinstance(line, cst.SimpleStatementLine)]
        if loop.orelse is not None or len(simple) != len(lines):
            continue
        statements = [small for line in simple for small in line.body if not _is_said(small)]
        found = _formula(source, loop, statements)
        if found is not None:
            kept, value, weight, anew = found
            lists = _lists(source, loop, kept, value)
            if lists is not None and not _is_used_after(source, loop):
                yield MovingAverage(loop, *lists, weight, anew)


def _is_said(small: cst.BaseSmallStatement) -> bool:
    """Whether a statement is a string that stands for a comment, or nothing."""
    return isinstance(small, cst.Pass) or (isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString))


def _formula(
    source: Source, loop: cst.For, statements: list[cst.BaseSmallStatement]
) -> tuple[str, str, str, bool] | None:
    """What is kept, what goes in, its weight, and whether a new tensor takes the place of the old."""
    meanings: dict[str, str] = {}
    terms: list[_Term] = []
    kept: str | None = None
    anew = False
    for small in statements:
        written = _written(source, small)
        if written is None:
            if kept is not None or not _names(source, small, meanings):
                return None
            continue
        target, expression, fresh = written
        target = _meant(target, meanings)
        if kept is None:
            kept, terms = target, [_Term(target, "1")]
        if target != kept:
            return None
        anew = anew or fresh
        after = _update(source, expression, kept, terms, meanings)
        if after is None:
            return None
        terms = after
    if kept is None or len(terms) != 2:
        return None
    old = next((term for term in terms if term.tensor == kept), None)
    new = next((term for term in terms if term.tensor != kept), None)
    if old is None or new is None or not _complement(old.factor, new.factor):
        return None
    bound = {name.value for name in source.every(cst.Name, loop.target)} | set(meanings)
    if {*re.findall(r"[A-Za-z_]\w*", new.factor)} & bound:
        return None
    return kept, new.tensor, new.factor, anew


def _written(source: Source, small: cst.BaseSmallStatement) -> tuple[str, cst.BaseExpression, bool] | None:
    """The tensor that a statement writes to, the expression that says what, and whether a new tensor is put there."""
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        code = source.code(small.targets[0].target)
        return (_plain(code), small.value, True) if code.endswith(".data") else None
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        inner: cst.BaseExpression = small.value
        while (
            isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and inner.func.attr.value[-1] == "_"
        ):
            inner = inner.func.value
        return (_plain(source.code(inner)), small.value, False) if inner is not small.value else None
    return None


def _names(source: Source, small: cst.BaseSmallStatement, meanings: dict[str, str]) -> bool:
    """Note what `old, new = e.data, p.data` calls the tensors; False for another statement."""
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    target, value = small.targets[0].target, small.value
    pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(target, value)]
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        if len(target.elements) != len(value.elements):
            return False
        pairs = [(left.value, right.value) for left, right in zip(target.elements, value.elements, strict=True)]
    for left, right in pairs:
        if not isinstance(left, cst.Name) or not re.fullmatch(r"\w+(?:\[\w+\])?", _plain(source.code(right))):
            return False
        meanings[left.value] = _meant(_plain(source.code(right)), meanings)
    return True


def _update(
    source: Source, node: cst.BaseExpression, kept: str, terms: list[_Term], meanings: dict[str, str]
) -> list[_Term] | None:
    """The terms of what is kept after `e.mul_(d).add_(p, alpha=w)` and its like, or of a sum of products."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value[-1] != "_":
        return _sum(source, node, meanings) if terms == [_Term(kept, "1")] else None
    base = node.func.value
    if isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute) and base.func.attr.value[-1] == "_":
        before = _update(source, base, kept, terms, meanings)
        if before is None:
            return None
        terms = before
    method = call_name(node)
    if not node.args or any(arg.star for arg in node.args):
        return None
    first = node.args[0].value
    if method == "copy_" and len(node.args) == 1 and terms == [_Term(kept, "1")]:
        return _sum(source, first, meanings)
    if method == "mul_" and len(node.args) == 1 and terms == [_Term(kept, "1")]:
        return [_Term(kept, _bare(source.code(first)))]
    if method == "lerp_" and len(node.args) == 2 and terms == [_Term(kept, "1")]:
        weight = argument(node, "weight", 1)
        if weight is not None and node.args[0].keyword is None and _is_factor(source, weight.value, meanings):
            code = _bare(source.code(weight.value))
            return [_Term(kept, f"1 - ({code})"), _Term(_tensor(source, first, meanings), code)]
    if method == "add_" and len(terms) == 1 and node.args[0].keyword is None:
        alpha = argument(node, "alpha")
        if len(node.args) == 2 and alpha is not None and _is_factor(source, alpha.value, meanings):
            return [*terms, _Term(_tensor(source, first, meanings), _bare(source.code(alpha.value)))]
        added = _product(source, first, meanings) if len(node.args) == 1 else None
        return [*terms, added] if added is not None else None
    return None


def _sum(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> list[_Term] | None:
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Add):
        return None
    terms = [_product(source, side, meanings) for side in (node.left, node.right)]
    return [term for term in terms if term is not None] if None not in terms else None


def _product(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> _Term | None:
    """`p * w` or `w * p`: the tensor is the side that is one of the loop's, or a part of something by such a name."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return None
    sides = [(node.left, node.right), (node.right, node.left)]
    for tensor, factor in sides:
        code = source.code(tensor)
        held = _plain(code) in meanings or ".data" in code or ".detach()" in code or isinstance(tensor, cst.Name)
        number = isinstance(tensor, cst.Float | cst.Integer | cst.BinaryOperation)
        if held and not number and _is_factor(source, factor, meanings):
            return _Term(_tensor(source, tensor, meanings), _bare(source.code(factor)))
    return None


def _is_factor(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> bool:
    """Whether an expression may be a number: it holds no tensor of the loop's, and calls nothing that does more."""
    code = source.code(node)
    return (
        ".data" not in code
        and not any(name.value in meanings for name in source.every(cst.Name, node))
        and only_computes(source, node, {})
    )


def _tensor(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> str:
    return _meant(_plain(source.code(node)), meanings)


def _plain(code: str) -> str:
    """A tensor's code without `.data` and `.detach()`, which are the same values."""
    return _PLAIN.sub("", code)


def _meant(code: str, meanings: dict[str, str]) -> str:
    return meanings.get(code, code)


def _bare(code: str) -> str:
    """Without parentheses around all of it."""
    code = code.strip()
    while code.startswith("(") and code.endswith(")") and "(" not in code[1:-1]:
        code = code[1:-1].strip()
    return code


def _complement(old: str, new: str) -> bool:
    """Whether two factors sum to one."""
    if _rest_of_one(old) == new or _rest_of_one(new) == old:
        return True
    try:
        return abs(float(old) + float(new) - 1) < 1e-12
    except ValueError:
        return False


def _rest_of_one(code: str) -> str | None:
    """`x` of `1 - x`."""
    node = cst.parse_expression(code)
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Subtract):
        return None
    one = isinstance(node.left, cst.Integer | cst.Float) and node.left.evaluated_value == 1
    return _bare(cst.Module([]).code_for_node(node.right)) if one else None


def _is_used_after(source: Source, loop: cst.For) -> bool:
    """Whether what the loop binds is read when it has ended: its last weight, by its name."""
    scope = next((above for above in source.ancestors(loop) if isinstance(above, cst.FunctionDef)), source.module)
    names = {name.value for name in source.every(cst.Name, loop) if binds(source, loop, name.value)}
    return any(
        is_after(source, read, loop) and not _is_bound_anew(source, read, loop)
        for name in names
        for read in uses_of(source, scope, name).reads
    )


def _is_bound_anew(source: Source, read: cst.Name, loop: cst.For) -> bool:
    """Whether a read behind a loop sees another binding: of a loop around it, or of a plain assignment before it."""
    for above in source.ancestors(read):
        if isinstance(above, cst.For | cst.BaseComp) and not within(source, loop, above):
            target = above.target if isinstance(above, cst.For) else above.for_in.target
            if any(name.value == read.value for name in source.every(cst.Name, target)):
                return True
    return reaching(source, statement_of(source, read), read.value).bound in {Bound.ASSIGNED, Bound.UNPACKED}


def _lists(source: Source, loop: cst.For, kept: str, value: str) -> tuple[str, str] | None:
    """Code of both lists."""
    over, target = loop.iter, loop.target
    names = [source.code(each.value) for each in target.elements] if isinstance(target, cst.Tuple) else []
    if not isinstance(over, cst.Call) or len(names) != 2 or any(arg.star or arg.keyword for arg in over.args):
        return None
    if call_name(over) == "zip" and len(over.args) == 2:
        given = {name: source.code(arg.value) for name, arg in zip(names, over.args, strict=True)}
        if set(given) != {kept, value} or any(_holds_buffers(source, code) for code in given.values()):
            return None
        return f"list({given[kept]})", f"list({given[value]})"
    base = source.code(over.func.value) if isinstance(over.func, cst.Attribute) else ""
    named = re.fullmatch(rf"([\w.]+)\[{re.escape(names[0])}\]", kept)
    if over.args or value != names[1] or named is None or _holds_buffers(source, base):
        return None
    if call_name(over) == "items":
        return f"[{kept} for {names[0]} in {base}]", f"list({base}.values())"
    if call_name(over) == "named_parameters":
        return f"[{kept} for {names[0]}, _ in {source.code(over)}]", f"list({base}.parameters())"
    return None


def _holds_buffers(source: Source, code: str) -> bool:
    """Whether what a loop goes through may be more than parameters: a state dictionary, or a variable that is one."""
    if re.search(_BUFFERS, code):
        return True
    root = re.escape(code.partition(".")[0])
    return re.search(rf"^\s*(?:\w+\s*,\s*)*{root}\b[^=\n]*=[^=\n]*{_BUFFERS}", source.text, re.MULTILINE) is not None
