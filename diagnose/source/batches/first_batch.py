"""Where a program makes an iterator of a loader and does more before it asks for the first batch.

A sampler draws its order with the first batch. Workers ask for that as soon as the iterator is made: random numbers
that the program draws in between are then others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

__all__ = ["late_first_batch"]

_DRAW_NOTHING = frozenset({"next", "iter", "len", "print", "range", "tqdm", "trange", "time", "perf_counter"})
_DRAW_NOTHING |= {"zero_grad", "enumerate", "set_epoch", "float", "int", "append"}


def late_first_batch(sources: Mapping[str, str]) -> str | None:
    """The file and line of the first such iterator; None where each is asked at once, or by a `for`."""
    for path, text in sources.items():
        source = parse(text) if "iter(" in text else None
        for call in source.every(cst.Call) if source is not None else ():
            assert source is not None  # or it would have no calls
            if "builtins.iter" in source.names(call.func) and len(call.args) == 1 and _may_be_late(source, call):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def _may_be_late(source: Source, call: cst.Call) -> bool:
    given = call.args[0].value
    values = bound_to(source, given) if isinstance(given, cst.Name) else []
    if not isinstance(given, cst.Name | cst.Attribute):
        return isinstance(given, cst.Call) and call_name(given) == "DataLoader"
    if values and not any(isinstance(each, cst.Call) for each in values):
        return False  # a list
    assign = source.parent(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if not isinstance(target, cst.Name | cst.Attribute):
        return not isinstance(assign, cst.Arg)  # `next(iter(loader))` asks at once
    statement = source.statement(call)
    block = source.parent(statement) if statement is not None else None
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return True
    rows = list(block.body)
    after = rows[next(at for at, row in enumerate(rows) if row is statement) + 1 :]
    return _comes_late(source, after, source.code(target))


def _comes_late(source: Source, rows: Sequence[cst.CSTNode], name: str) -> bool:
    """Whether statements call anything that may draw before they ask an iterator of this name."""
    for row in rows:
        asks = any(
            call_name(each) == "next" and each.args and source.code(each.args[0].value) == name
            for each in source.every(cst.Call, row)
        )
        asks = asks or any(source.code(loop.iter) == name for loop in source.every(cst.For, row))
        body = getattr(row, "body", None)
        if asks and isinstance(body, cst.IndentedBlock) and not isinstance(row, cst.FunctionDef | cst.ClassDef):
            return not (isinstance(row, cst.For) and source.code(row.iter) == name) and _comes_late(
                source, body.body, name
            )
        if asks:
            return isinstance(row, cst.FunctionDef | cst.ClassDef)
        if any(_may_draw(each) for each in source.every(cst.Call, row)):
            return True
    return True


def _may_draw(call: cst.Call) -> bool:
    mode = isinstance(call.func, cst.Attribute) and call_name(call) in {"train", "eval"} and not call.args
    return not mode and call_name(call) not in _DRAW_NOTHING
