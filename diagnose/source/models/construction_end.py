"""Where lines go that need a model as it is built: after the branches that build it, before what wraps it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.models.model_construction import Built
from diagnose.source.models.weight_draws import fills_weights, trains
from diagnose.source.tree.edits import call_name, insert_after, insert_before
from diagnose.source.tree.syntax import Source, Splice, only_statement

_WRAPPERS = frozenset({"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "DataParallel", "prepare"})

_FILLS = frozenset({"apply", "load_state_dict", "init_weights", "reset_parameters", "initialize", "init_parameters"})
_MOVES = frozenset({"to", "cuda", "float", "half", "bfloat16", "double"})


def after_build(built: Built, lines: Sequence[str], *, filled: bool = False) -> Splice:
    """Insert lines after the model is built, on every way to it, and before it is wrapped for several devices.

    `filled`: also after the statements of its block that fill its weights, `model.apply(init_weights)`, or move it.
    """
    source = built.source
    end = end_of_build(built, filled=filled)
    if end is None:
        return insert_before(source, source.statement(built.assigned[0]) or built.assigned[0], lines)
    return insert_after(source, end, lines)


def end_of_build(built: Built, *, filled: bool = False) -> cst.CSTNode | None:
    """The statement that `after_build` inserts behind; None where it inserts before the first one."""
    source = built.source
    wraps = next((each for each in built.assigned if _wraps(built, each)), None)
    builds = [each for each in built.assigned if not _is_none(each)]
    builds = [each for each in builds if wraps is None or source.span(each)[0] < source.span(wraps)[0]]
    if not builds:
        return None
    ways = [each for each in (_outer(built, one) for one in reversed(builds)) if not _holds(source, each, wraps)]
    after = ways[0] if ways else source.statement(builds[-1]) or builds[-1]
    return _last_filling(built, after, wraps) if filled else after


def _is_none(statement: cst.Assign | cst.AnnAssign) -> bool:
    """Whether `model = None` only makes the name known."""
    return statement.value is None or (isinstance(statement.value, cst.Name) and statement.value.value == "None")


def _holds(source: Source, statement: cst.CSTNode, wraps: cst.CSTNode | None) -> bool:
    """Whether the model is wrapped within a statement: what comes after that comes too late."""
    return wraps is not None and (statement is wraps or within(source, wraps, statement))


def _last_filling(built: Built, after: cst.CSTNode, wraps: cst.CSTNode | None) -> cst.CSTNode:
    """The last statement of the block that writes into the weights or moves them, before one wraps or trains the model.

    What they draw depends on the layout, and a wrapper is made of weights where they are to stay.
    """
    source = built.source
    block = source.parent(after)
    siblings = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
    later = siblings[siblings.index(after) + 1 :] if after in siblings else []  # type: ignore[arg-type]
    filling = [each for each in later if _is_filling(built, each)]
    if not filling:
        return after
    own = (each for each in later if not isinstance(each, cst.FunctionDef | cst.ClassDef))
    before = list(takewhile(lambda each: not _holds(source, each, wraps) and not trains(source, each), own))
    return next((each for each in reversed(filling) if each in before), after)


def _is_filling(built: Built, statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    return _may_fill(built, statement) or fills_weights(built.source, statement)


def _may_fill(built: Built, statement: cst.CSTNode) -> bool:
    """Whether a statement is a call that fills or moves the model, or a branch with such a one in it."""
    if isinstance(statement, cst.If):
        blocks = [statement.body, *([statement.orelse] if statement.orelse is not None else [])]
        return any(_may_fill(built, each) for block in blocks for each in _statements(block))
    small = only_statement(statement)
    call = small.value if isinstance(small, cst.Expr) else None
    return isinstance(call, cst.Call) and _fills(built, call)


def _statements(block: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a branch; an `elif` is one itself."""
    if isinstance(block, cst.Else):
        block = block.body
    return block.body if isinstance(block, cst.IndentedBlock) else [block]


def _fills(built: Built, call: cst.Call) -> bool:
    method = built.source.code(call.func).startswith(f"{built.name}.") and call_name(call) in _FILLS | _MOVES
    return method or (
        call_name(call) in _FILLS and any(built.source.code(arg.value) == built.name for arg in call.args)
    )


def _wraps(built: Built, statement: cst.Assign | cst.AnnAssign) -> bool:
    calls = built.source.every(cst.Call, statement.value) if statement.value is not None else ()
    return any(
        call_name(call) in _WRAPPERS and any(built.source.code(_moved(arg.value)) == built.name for arg in call.args)
        for call in calls
    )


def _moved(value: cst.BaseExpression) -> cst.BaseExpression:
    """The model of `model.to(device)`."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _MOVES:
        value = value.func.value
    return value


def _outer(built: Built, statement: cst.CSTNode) -> cst.CSTNode:
    """The statement of the block that runs in any case: around branches, and around a `with` that only builds."""
    source = built.source
    outer = source.statement(statement)
    assert outer is not None  # an assignment lies in a statement
    for above in source.ancestors(outer):
        if above is built.scope or isinstance(above, cst.For | cst.While | cst.FunctionDef):
            break
        if isinstance(above, cst.With) and _used_after(built, statement, above):
            break
        if isinstance(above, cst.If | cst.Try) and all(within(source, each, above.body) for each in built.assigned):
            break  # `if __name__ == "__main__":` has the whole program in it, not one of several ways to a model
        elif_ = isinstance(above, cst.If) and isinstance(source.parent(above), cst.If)
        if isinstance(above, cst.If | cst.Try | cst.With) and not elif_:
            outer = above
    return outer


def _used_after(built: Built, statement: cst.CSTNode, block: cst.With) -> bool:
    end = built.source.span(statement)[1]
    root = built.name.removeprefix("self.")
    return any(
        name.value == root and built.source.span(name)[0] > end for name in built.source.every(cst.Name, block.body)
    )
