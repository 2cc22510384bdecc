"""Marks the loops of a program that train, so that a run of a copy can take a few turns of each.

`for epoch in range(epochs):` becomes `for epoch in diagnose_shortened(range(epochs)):`, a name that only the process of
such a run knows. A loop trains where its body calls `.backward(` or `.step(`, or a function of the program's own that
does. Lines stay where they are. A `while` loop and a loop over anything but a `range` are left as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from diagnose.source.tree.outline import read_outline

MARK = "diagnose_shortened"
_TRAINS = frozenset({"backward", "step", "manual_backward"})


def mark_loops(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts of a program's files with every training loop over a `range` marked; those without one are left out."""
    trees = {path: outline.tree for path, text in texts.items() if (outline := read_outline(text)) is not None}
    trains = _functions_that_train(trees.values())
    changed = {path: _mark(texts[path], tree, trains) for path, tree in trees.items()}
    return {path: text for path, text in changed.items() if text != texts[path]}


def _functions_that_train(trees: Iterable[ast.Module]) -> set[str]:
    """Names of functions whose body trains, also through each other."""
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    called = {id(one): set(_called(one)) for one in functions}
    found: set[str] = set()
    while True:
        more = {one.name for one in functions if called[id(one)] & (_TRAINS | found)} - found
        if not more:
            return found
        found |= more


def _called(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute):
                yield call.func.attr
            elif isinstance(call.func, ast.Name):
                yield call.func.id


def _mark(text: str, tree: ast.Module, trains: set[str]) -> str:
    ranges = []
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(set(_called(one)) & (_TRAINS | trains) for one in loop.body):
            found = _range_in(loop.iter)
            if found is not None:
                ranges.append(found)
    content = text.encode()
    starts = [0]  # of lines as the parser counts them: a form feed ends none
    for line in content.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    for call in sorted(ranges, key=lambda one: (one.lineno, one.col_offset), reverse=True):
        assert call.end_lineno is not None and call.end_col_offset is not None  # ast.parse sets both
        begin, end = starts[call.lineno - 1] + call.col_offset, starts[call.end_lineno - 1] + call.end_col_offset
        content = content[:begin] + MARK.encode() + b"(" + content[begin:end] + b")" + content[end:]
    return content.decode()


def _range_in(iterated: ast.expr) -> ast.Call | None:
    """The `range(…)` that a loop goes over, itself or as the first argument of `tqdm`, `enumerate` and the like."""
    if not isinstance(iterated, ast.Call):
        return None
    if isinstance(iterated.func, ast.Name) and iterated.func.id == "range":
        return iterated
    return _range_in(iterated.args[0]) if iterated.args else None
