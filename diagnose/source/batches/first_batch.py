"""Where a program makes an iterator of a loader and does more before it asks for the first batch.

A sampler draws its order with the first batch. Workers ask for that as soon as the iterator is made: random numbers
that the program draws in between are then others. `iter`, `itertools.cycle` and their like make one at once; `zip`
makes those of all its loaders before it asks the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.iteration import ADAPTERS, ITERATORS, OF_ONE, unwrapped
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all, per_source
from diagnose.source.tree.syntax import Source

_DRAW_NOTHING = frozenset({"len", "print", "range", "tqdm", "trange", "time", "perf_counter"})
_DRAW_NOTHING |= {"zero_grad", "set_epoch", "float", "int", "append"}
_OPENS = frozenset(f"{ADAPTERS[name].module}.{name}" for name in OF_ONE & ITERATORS)
"""Functions that make an iterator of their first argument at once."""
_OPENS_ALL = frozenset({"builtins.zip", "itertools.zip_longest"})


def late_first_batch(sources: Mapping[str, str]) -> str | None:
    """The file and line of the first such iterator; None where each is asked at once, or by a `for`."""
    parsed = parse_all(sources)
    loaders = {name for source in parsed.values() for name in _loaders(source)}
    for path, source in parsed.items():
        for call in source.every(cst.Call) if not source.words.isdisjoint(ITERATORS) else ():
            opens = source.names(call.func)
            one = bool(_OPENS & set(opens)) and bool(call.args)
            if "builtins.iter" in opens and len(call.args) != 1:
                continue  # it calls a function until that returns a value
            several = bool(_OPENS_ALL & set(opens)) and _opens_several(source, call, loaders)
            if several or (one and _may_be_late(source, call)):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


@per_source
def _loaders(source: Source) -> frozenset[str]:
    """Names and attributes that are given what a call of `DataLoader` makes, or several such calls."""
    return frozenset(
        name.value
        for assign in source.every(cst.Assign)
        if any(call_name(call) == "DataLoader" for call in source.every(cst.Call, assign.value))
        for target in assign.targets
        for name in source.every(cst.Name, target)
    ) - {"self"}


def _opens_several(source: Source, call: cst.Call, loaders: set[str]) -> bool:
    """Whether `zip` goes through two loaders, as far as that is seen: parameters are, where the loop trains."""
    loop = source.parent(call)
    while isinstance(loop, cst.Arg | cst.Call):
        loop = source.parent(loop)
    trains = isinstance(loop, cst.For) and any(call_name(each) == "backward" for each in source.every(cst.Call, loop))
    return sum(_is_loader(source, arg.value, loaders, trains) for arg in call.args) > 1


def _is_loader(source: Source, node: cst.BaseExpression, loaders: set[str], trains: bool) -> bool:
    node = unwrapped(node)
    if isinstance(node, cst.Call):
        return call_name(node) == "DataLoader"
    if isinstance(node, cst.Subscript):
        node = node.value  # one of several
    name = node.attr.value if isinstance(node, cst.Attribute) else node.value if isinstance(node, cst.Name) else ""
    if name in loaders:
        return True
    return trains and isinstance(node, cst.Name) and not bound_to(source, node)


def _may_be_late(source: Source, call: cst.Call) -> bool:
    given = call.args[0].value
    values = bound_to(source, given) if isinstance(given, cst.Name) else []
    if not isinstance(given, cst.Name | cst.Attribute):
        return isinstance(given, cst.Call) and call_name(given) == "DataLoader" and _is_kept(source, call)
    if values and not any(isinstance(each, cst.Call) for each in values):
        return False  # a list
    return _is_kept(source, call)


def _is_kept(source: Source, call: cst.Call) -> bool:
    """Whether an iterator is not asked where it is made, nor by the statements behind that before anything else."""
    assign = source.parent(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if not isinstance(target, cst.Name | cst.Attribute):
        function = source.inside(call, cst.FunctionDef)
        handed_on = isinstance(assign, cst.Return) and function is not None and function.name.value == "__iter__"
        # `next(iter(loader))` and loops ask at once; what `__iter__` returns is asked as its object is
        return not handed_on and not isinstance(assign, cst.Arg | cst.For | cst.CompFor)
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
