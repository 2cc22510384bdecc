"""Leftovers of removed code: statements whose names nobody reads, imports that nobody needs any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from diagnose.source.dataflow.flow import scope_of
from diagnose.source.dataflow.reaching_definitions import may_be_bound_by, names_in
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.tree.syntax import Source, Splice, parse, splice


def unread_after(
    source: Source, candidates: Sequence[tuple[cst.CSTNode, str]], gone: Sequence[cst.CSTNode]
) -> list[cst.CSTNode]:
    """Return the statements whose names nothing reads once `gone` (statements and expressions) is gone, and they
    with it."""
    removed = list(gone)
    found: list[cst.CSTNode] = []
    progress = True
    while progress:
        progress = False
        for statement, name in candidates:
            if any(statement is one for one in removed) or not isinstance(statement, cst.SimpleStatementLine):
                continue
            scope = scope_of(source, statement)
            if not isinstance(scope, cst.FunctionDef):
                continue
            there = [node for node in names_in(source, scope) if node.value == name]
            inside = {id(one) for one in [*removed, statement]}
            outside = [
                node
                for node in there
                if id(node) not in inside and not any(id(above) in inside for above in source.ancestors(node))
            ]
            if not outside:
                removed.append(statement)
                found.append(statement)
                progress = True
    return found


def without_import(source: Source, splices: Sequence[Splice], module: str) -> list[Splice]:
    """The splices, with the line `import module` taken out too where they leave nobody who reads what it binds."""
    edits = list(dict.fromkeys(splices))
    if not edits:
        return []
    after = parse(splice(source.text, edits))
    for statement in source.module.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Import) or len(small.names) != 1 or source.code(small.names[0].name) != module:
            continue
        bound = source.code(small.names[0].asname.name) if small.names[0].asname is not None else module
        exported = re.search(rf"__all__[^\n]*[\"']{bound}[\"']", source.text)
        if after is not None and not exported and _reads(source, bound) and not _reads(after, bound):
            return [*edits, *remove_statements(source, [small])]
    return edits


def _reads(source: Source, name: str) -> bool:
    """Whether anything but imports names it."""
    return any(
        node.value == name and source.inside(node, cst.Import) is None and source.inside(node, cst.ImportFrom) is None
        for node in source.every(cst.Name)
    )


def without_from_import(source: Source, splices: list[Splice], name: str) -> list[Splice]:
    """The splices, with the name taken out of its `from … import name` too where they leave nobody who reads it."""
    text = splice(source.text, splices)
    if len(re.findall(rf"\b{name}\b", re.sub(r"from [\w.]+ import", "", text))) != 1:
        return splices
    for statement in source.module.body:
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(first, cst.ImportFrom) or isinstance(first.names, cst.ImportStar) or first.lpar is not None:
            continue
        names = [source.code(alias).rstrip(", ") for alias in first.names]
        if name not in names:
            continue
        if len(names) == 1:
            start, end = source.span(statement)
            return [*splices, Splice(source.line_start(start), source.after_line(end), "")]
        start, end = source.span(first.names[0])[0], source.span(first)[1]
        return [*splices, Splice(start, end, ", ".join(each for each in names if each != name))]
    return splices


def nothing_else_reads(source: Source, root: cst.CSTNode, steps: Sequence[tuple[cst.CSTNode, str]]) -> bool:
    """Whether what these statements bind is read by themselves and within `root` alone."""
    scope, statements = scope_of(source, root), [statement for statement, _ in steps]
    together = all(scope_of(source, statement) is scope for statement in statements)
    return together and not any(True for _ in reads_of(source, scope, steps, [root, *statements]))


def reads_of(
    source: Source, scope: cst.CSTNode, steps: Sequence[tuple[cst.CSTNode, str]], without: Sequence[cst.CSTNode]
) -> Iterator[cst.Name]:
    """Yield where a scope reads what the steps bind, other than in the nodes `without`."""
    names = {name for _, name in steps}
    bound = {id(statement) for statement, _ in steps}
    left_out = {id(each) for each in without}
    for name in names_in(source, scope):
        if name.value not in names or any(id(above) in left_out for above in source.ancestors(name)):
            continue
        parent = source.parent(name)
        unpacks = isinstance(parent, cst.Element) and source.inside(name, cst.AssignTarget) is not None
        if unpacks or isinstance(parent, cst.AssignTarget | cst.Param):
            continue
        if may_be_bound_by(source, name, bound) or scope_of(source, name) is not scope:
            yield name
