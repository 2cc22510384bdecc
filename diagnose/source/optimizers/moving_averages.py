"""Loops that keep a moving average of weights, tensor by tensor: `e = decay * e + (1 - decay) * p`, however spelt."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import binds, is_after, uses_of, within
from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of
from diagnose.source.optimizers.weighted_sum import (
    Term,
    bare,
    is_factor,
    may_hold_weighted_sum,
    meant,
    plain,
    product,
    sum_to_one,
    tensor_of,
    weighted_sum,
)
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.outline import called_name
from diagnose.source.tree.syntax import Source

UPDATES = frozenset({"mul_", "lerp_", "add_", "copy_"})
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


def may_be_moving_average(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether a loop has simple statements alone, with a method that updates a tensor or a sum of products."""
    if loop.orelse or any(hasattr(each, "body") for each in loop.body):
        return False
    calls = (each for line in loop.body for each in ast.walk(line) if isinstance(each, ast.Call))
    return any(called_name(each) in UPDATES for each in calls) or any(map(may_hold_weighted_sum, loop.body))


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
            if lists is not None and not is_used_after(source, loop):
                yield MovingAverage(loop, *lists, weight, anew)


def _is_said(small: cst.BaseSmallStatement) -> bool:
    """Whether a statement is a string that stands for a comment, or nothing."""
    return isinstance(small, cst.Pass) or (isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString))


def _formula(
    source: Source, loop: cst.For, statements: list[cst.BaseSmallStatement]
) -> tuple[str, str, str, bool] | None:
    """What is kept, what goes in, its weight, and whether a new tensor takes the place of the old."""
    meanings: dict[str, str] = {}
    terms: list[Term] = []
    kept: str | None = None
    anew = False
    for small in statements:
        written = _written(source, small)
        if written is None:
            if kept is not None or not _names(source, small, meanings):
                return None
            continue
        target, expression, fresh = written
        target = meant(target, meanings)
        if kept is None:
            kept, terms = target, [Term(target, "1")]
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
    if old is None or new is None or not sum_to_one(old.factor, new.factor):
        return None
    bound = {name.value for name in source.every(cst.Name, loop.target)} | set(meanings)
    if {*re.findall(r"[A-Za-z_]\w*", new.factor)} & bound:
        return None
    return kept, new.tensor, new.factor, anew


def _written(source: Source, small: cst.BaseSmallStatement) -> tuple[str, cst.BaseExpression, bool] | None:
    """The tensor that a statement writes to, the expression that says what, and whether a new tensor is put there."""
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        code = source.code(small.targets[0].target)
        return (plain(code), small.value, True) if code.endswith(".data") else None
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        inner: cst.BaseExpression = small.value
        while (
            isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and inner.func.attr.value[-1] == "_"
        ):
            inner = inner.func.value
        return (plain(source.code(inner)), small.value, False) if inner is not small.value else None
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
        if not isinstance(left, cst.Name) or not re.fullmatch(r"\w+(?:\[\w+\])?", plain(source.code(right))):
            return False
        meanings[left.value] = meant(plain(source.code(right)), meanings)
    return True


def _update(
    source: Source, node: cst.BaseExpression, kept: str, terms: list[Term], meanings: dict[str, str]
) -> list[Term] | None:
    """The terms of what is kept after `e.mul_(d).add_(p, alpha=w)` and its like, or of a sum of products."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value[-1] != "_":
        return weighted_sum(source, node, meanings) if terms == [Term(kept, "1")] else None
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
    if method == "copy_" and len(node.args) == 1 and terms == [Term(kept, "1")]:
        return weighted_sum(source, first, meanings)
    if method == "mul_" and len(node.args) == 1 and terms == [Term(kept, "1")]:
        return [Term(kept, bare(source.code(first)))]
    if method == "lerp_" and len(node.args) == 2 and terms == [Term(kept, "1")]:
        weight = argument(node, "weight", 1)
        if weight is not None and node.args[0].keyword is None and is_factor(source, weight.value, meanings):
            code = bare(source.code(weight.value))
            return [Term(kept, f"1 - ({code})"), Term(tensor_of(source, first, meanings), code)]
    if method == "add_" and len(terms) == 1 and node.args[0].keyword is None:
        alpha = argument(node, "alpha")
        if len(node.args) == 2 and alpha is not None and is_factor(source, alpha.value, meanings):
            return [*terms, Term(tensor_of(source, first, meanings), bare(source.code(alpha.value)))]
        added = product(source, first, meanings) if len(node.args) == 1 else None
        return [*terms, added] if added is not None else None
    return None


def is_used_after(source: Source, loop: cst.For) -> bool:
    """Whether what the loop binds is read when it has ended: its last weight, by its name."""
    scope = next((above for above in source.ancestors(loop) if isinstance(above, cst.FunctionDef)), source.module)
    names = {name.value for name in source.every(cst.Name, loop) if binds(source, loop, name.value)}
    return any(
        is_after(source, read, loop) and not _is_bound_anew(source, read, loop)
        for name in names
        for read in uses_of(source, scope, name).reads
    )


def _is_bound_anew(source: Source, read: cst.Name | cst.Attribute, loop: cst.For) -> bool:
    """Whether a read behind a loop sees another binding: of a loop around it, or of a plain assignment before it."""
    for above in source.ancestors(read):
        if isinstance(above, cst.For | cst.BaseComp) and not within(source, loop, above):
            target = above.target if isinstance(above, cst.For) else above.for_in.target
            if any(name.value == source.code(read) for name in source.every(cst.Name, target)):
                return True
    return reaching(source, statement_of(source, read), source.code(read)).bound in {Bound.ASSIGNED, Bound.UNPACKED}


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
