"""Reads of the device in a training program: `.item()`, the tensor behind it, and the loops that train."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

import libcst as cst

from diagnose.source.dataflow.flow import Loop, loops_around, scope_of, uses_of, within
from diagnose.source.device.value_kinds import is_fresh
from diagnose.source.tree.syntax import Source

_TRAINS = frozenset({"backward", "zero_grad", "step"})


def is_read(call: cst.Call) -> bool:
    """Whether a call is `tensor.item()`."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "item" and not call.args


def training_reads(source: Source, lines: Collection[int] = ()) -> Iterator[cst.Call]:
    """The reads in loops that train, and in loops around any of `lines`, in the order of the text."""
    for call in source.every(cst.Call) if lines or has_training_loops(source) else ():
        if is_read(call) and any(
            trains(source, loop) or _covers(source, loop, lines) for loop in loops_around(source, call)
        ):
            yield call


def has_training_loops(source: Source) -> bool:
    """Whether a loop of a file may go through steps of training; the file is not parsed for it."""
    loops = (*source.outline.loops, *source.outline.every(ast.While))
    calls = (each.func for loop in loops for each in ast.walk(loop) if isinstance(each, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr in _TRAINS for each in calls)


def _covers(source: Source, loop: Loop, lines: Collection[int]) -> bool:
    first, last = source.lines_of(loop)
    return any(first <= line <= last for line in lines)


def trains(source: Source, loop: Loop) -> bool:
    """Whether a loop goes through steps of training, and is not one over parameters within a step."""
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value in _TRAINS
        for call in source.every(cst.Call, loop)
    )


def trains_within(source: Source, loop: Loop) -> bool:
    """Whether a loop is one over epochs: another one in it trains, and what is read beside that is read rarely."""
    inner = (node for node in source.walk(loop.body) if isinstance(node, cst.For | cst.While))
    return any(trains(source, each) for each in inner)


def tensor_of(source: Source, read: cst.Call, then: str) -> str:
    """The tensor that a read waits for, cut from the graph; `.detach()` and `.cpu()` on the way are not needed."""
    value = tensor_read(read)
    code = source.code(value)
    if isinstance(value, cst.BinaryOperation | cst.Comparison | cst.UnaryOperation) and not value.lpar:
        code = f"({code})"
    if then == "kept" and not is_fresh(source, value):
        return f"{code}.detach().clone()"  # it may be changed in place before it is read
    return f"{code}.detach()" + (".double()" if then == "added" else "")


def tensor_read(read: cst.Call) -> cst.BaseExpression:
    """The tensor that a read waits for, without `.detach()` and `.cpu()` on the way."""
    assert isinstance(read.func, cst.Attribute)
    value = read.func.value
    while (
        isinstance(value, cst.Call)
        and not value.args
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in {"detach", "cpu"}
    ):
        value = value.func.value
    return value


def log_branch(source: Source, loop: cst.For, name: str) -> cst.CSTNode | None:
    """The first statement of the one branch that reads what a loop gathers anew in each step, if it is so."""
    uses = uses_of(source, scope_of(source, loop), name)
    block = source.parent(loop)
    siblings = list(block.body) if isinstance(block, cst.IndentedBlock) else []
    if uses.lost or not uses.reads or loop not in siblings:
        return None
    position = siblings.index(loop)
    fresh = any(source.statement(target) in siblings[:position] for target, _ in uses.assigned)
    reads = [use for use in uses.reads if not within(source, use, loop)]
    for branch in siblings[position + 1 :]:
        inside = [use for use in reads if within(source, use, branch)]
        if not inside:
            continue
        if not isinstance(branch, cst.If) or not isinstance(branch.body, cst.IndentedBlock) or not fresh:
            return None
        below = all(within(source, use, branch.body) for use in reads)
        return branch.body.body[0] if below else None
    return None
