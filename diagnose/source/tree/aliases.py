"""The names by which a program calls a function of its own."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source


def called_as(source: Source, function: cst.FunctionDef, sources: Iterable[Source]) -> frozenset[str]:
    """The last parts of those names: the function's own; of `__call__`, those of the instances of its class."""
    owner = source.inside(function, cst.ClassDef)
    if function.name.value != "__call__" or owner is None:
        return frozenset({function.name.value})
    return frozenset(name for each in sources for name in instances_of(each, owner.name.value))


def instances_of(source: Source, owner: str) -> Iterable[str]:
    """Return the names to which a file assigns instances of a class: `scaler = Scaler()`, `self.scaler = Scaler()`."""
    if not source.may_call(owner, *source.imported_as(owner)):
        return
    known = {owner}
    for alias in source.every(cst.ImportAlias):
        if alias.asname is not None and source.code(alias.name) == owner:
            known.add(source.code(alias.asname.name))
    for node in source.walk(None, cst.Assign, cst.AnnAssign):
        if not isinstance(node, cst.Assign | cst.AnnAssign) or not isinstance(node.value, cst.Call):
            continue
        if call_name(node.value) in known:
            targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
            yield from (source.code(target).rpartition(".")[2] for target in targets)
