"""Loops that keep a moving average of weights in a dictionary: `kept[name] = decay * kept[name] + (1 - decay) * p`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import values_of
from diagnose.source.optimizers.moving_averages import is_used_after
from diagnose.source.optimizers.weighted_sum import may_hold_weighted_sum, sum_to_one, weighted_sum
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.outline import called_name
from diagnose.source.tree.syntax import Source, only_statement

_DICTIONARY = re.compile(r"\{|(?:\w+\.)*(?:dict|OrderedDict)\(|.*\.state_dict\(\)\)?$", re.DOTALL)


@dataclass(frozen=True)
class KeptAverage:
    """One such loop, which puts a new tensor into the dictionary for each weight."""

    loop: cst.For
    kept: str
    """Code of the dictionary."""
    key: str
    value: str
    """The loop's names of a key and of a weight."""
    over: str
    """Code of what the loop goes through."""
    condition: str | None
    """Which weights are averaged."""
    weight: str
    """How much of a new value goes into the average."""


def may_be_kept_average(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether a loop goes through keys and values, and puts a sum of two products into a dictionary."""
    through = isinstance(loop.iter, ast.Call) and called_name(loop.iter) in {"items", "named_parameters"}
    only = loop.body[0] if len(loop.body) == 1 else None
    last = (only.body if isinstance(only, ast.If) else loop.body)[-1]
    puts = isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Subscript)
    return through and isinstance(loop.target, ast.Tuple) and puts and may_hold_weighted_sum(loop)


def kept_averages(source: Source) -> Iterator[KeptAverage]:
    """The loops of a file that do this and nothing else."""
    for loop in source.every(cst.For):
        target, over = loop.target, loop.iter
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2 or loop.orelse is not None:
            continue
        if not isinstance(over, cst.Call) or over.args:
            continue
        key, value = (source.code(each.value) for each in target.elements)
        if call_name(over) not in {"items", "named_parameters"} or is_used_after(source, loop):
            continue
        test, lines = _body(loop)
        condition = source.code(test) if test is not None else None
        floating = call_name(over) == "named_parameters" or "is_floating_point" in (condition or "")
        found = _average(source, lines, key, value) if floating else None
        if found is not None and _only_chooses(condition, found[0], key, value):
            yield KeptAverage(loop, found[0], key, value, source.code(over), condition, found[1])


def _body(loop: cst.For) -> tuple[cst.BaseExpression | None, Sequence[cst.CSTNode]]:
    """The condition around all of a loop's statements, and these."""
    lines = loop.body.body
    only = lines[0] if len(lines) == 1 else None
    if isinstance(only, cst.If) and only.orelse is None:
        return only.test, only.body.body
    return None, lines


def _only_chooses(condition: str | None, kept: str, key: str, value: str) -> bool:
    """Whether a condition asks for no more than which weights learn, are no whole numbers, or are kept."""
    asks = rf"{value}\.requires_grad|{value}(?:\.dtype)?\.is_floating_point(?:\(\))?|{key} in {re.escape(kept)}"
    asks += rf"|torch\.is_floating_point\({value}\)"
    return condition is None or re.fullmatch(asks, condition) is not None


def _average(source: Source, lines: Sequence[cst.CSTNode], key: str, value: str) -> tuple[str, str] | None:
    """The dictionary, and the weight of a new value; the mean may have a name before it is put there."""
    *rest, final = lines
    end = _assigned(final)
    if end is None:
        return None
    target, formula = end
    kept = source.code(target.value) if isinstance(target, cst.Subscript) else ""
    assigned = [_assigned(line) for line in rest if not _asserts(source, line, f"{key} in {kept}")]
    before = [each for each in assigned if each is not None]
    if len(assigned) > 1 or len(before) < len(assigned):
        return None
    names = {key, value}
    if isinstance(formula, cst.Call) and call_name(formula) == "clone" and isinstance(formula.func, cst.Attribute):
        formula = formula.func.value  # a mean is new already
    for named, mean in before:
        if not isinstance(named, cst.Name) or named.value in names or not named.deep_equals(formula):
            return None
        names.add(named.value)
        formula = mean
    if not isinstance(target, cst.Subscript) or not _is_dictionary(source, target.value):
        return None
    weight = _weight(source, formula, f"{kept}[{key}]", value) if source.code(target) == f"{kept}[{key}]" else None
    return (kept, weight) if weight and not {*re.findall(r"[A-Za-z_]\w*", weight)} & names else None


def _assigned(line: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Target and value of a line that is one assignment."""
    small = only_statement(line)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    return small.targets[0].target, small.value


def _asserts(source: Source, line: cst.CSTNode, test: str) -> bool:
    """Whether a line asserts that the dictionary has a name, and nothing else: asked for it, the dictionary says so."""
    small = only_statement(line)
    return isinstance(small, cst.Assert) and source.code(small.test) == test


def _weight(source: Source, formula: cst.BaseExpression, old: str, new: str) -> str | None:
    """The factor of the new value in a mean of both; None for another formula."""
    terms = weighted_sum(source, formula, {old: old, new: new}) or []
    factors = {term.tensor: term.factor for term in terms}
    fits = factors.keys() == {old, new} and sum_to_one(factors[old], factors[new])
    return factors[new] if fits else None


def _is_dictionary(source: Source, node: cst.BaseExpression) -> bool:
    """Whether all that is bound to a variable, or to an attribute of the object, is a dictionary."""
    values = values_of(source, node)
    return bool(values) and all(_DICTIONARY.match(source.code(value)) for value in values)
