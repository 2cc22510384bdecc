"""Edits that fixers are made of: find a call at a recorded line, replace an expression, add statements and imports.

Every function returns splices of the text; `splice` makes them. New text follows the style of the code around it.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Collection, Sequence

import libcst as cst

from diagnose.source.tree.attributes import is_label
from diagnose.source.tree.syntax import Source, Splice, call_name, parse, splice

__all__ = [
    "Source",
    "Splice",
    "call_at",
    "call_name",
    "calls_at",
    "ensure_from_import",
    "ensure_import",
    "free_name",
    "insert_above",
    "insert_after",
    "insert_before",
    "parse",
    "replace",
    "set_in_torch",
    "splice",
    "top_of_program",
]


def call_at(source: Source, line: int, named: Collection[str]) -> cst.Call | None:
    """The one call of something `named` (last part of its name, imports resolved) that covers a line, from 1.

    The interpreter records a call by the line of its expression or of one of its arguments, so any line of it counts.
    None where there is no such call, or several and none begins on the line.
    """
    found = calls_at(source, line, named)
    return found[0] if len(found) == 1 else None


def calls_at(source: Source, line: int, named: Collection[str]) -> list[cst.Call]:
    """Return the calls at a line like `call_at`, but several where the line has more, such as `train, test =
    DataLoader(…), DataLoader(…)`.
    """
    covering: list[tuple[int, cst.Call]] = []
    for call in source.every(cst.Call):
        first, last = source.lines_of(call)
        if not first <= line <= last:
            continue
        resolved = {name.rpartition(".")[2] for name in source.names(call.func)} | {call_name(call)}
        if resolved.intersection(named):
            covering.append((last - first, call))
    if len(covering) > 1:
        covering = [(height, call) for height, call in covering if source.lines_of(call)[0] == line] or covering
        lowest = min(height for height, _ in covering)
        covering = [(height, call) for height, call in covering if height == lowest]
    return [call for _, call in covering]


def replace(source: Source, node: cst.CSTNode, code: str) -> Splice:
    """Put `code` in the place of an expression and of the parentheses around it."""
    start, end = source.wide_span(node)
    return Splice(start, end, code)


def insert_before(source: Source, statement: cst.CSTNode, lines: Sequence[str]) -> Splice:
    """Lines of code, each given without indentation, before a statement that begins a line."""
    start, _ = source.span(statement)
    at = source.line_start(start)
    indent = source.indent(statement)
    return Splice(at, at, "".join(f"{indent}{line}{source.newline}" for line in lines))


def insert_above(source: Source, statement: cst.CSTNode, lines: Sequence[str]) -> Splice:
    """Insert lines above the comments that head the statement: what they say is said of it, not of the new lines."""
    at = source.line_start(source.span(statement)[0])
    if isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        above = reversed(getattr(statement, "leading_lines", ()))
        for _ in itertools.takewhile(lambda line: line.comment is not None and line.indent, above):
            at = source.line_start(len(source.text[:at].rstrip("\r\n")))
    indent = source.indent(statement)
    return Splice(at, at, "".join(f"{indent}{line}{source.newline}" for line in lines))


def insert_after(source: Source, statement: cst.CSTNode, lines: Sequence[str]) -> Splice:
    """Insert lines after a statement, with its indentation."""
    indent = source.indent(statement)
    _, end = source.span(statement)
    at = source.after_line(end)
    text = "".join(f"{indent}{line}{source.newline}" for line in lines)
    if at == len(source.text) and not source.text.endswith(("\n", "\r")):
        text = source.newline + text[: -len(source.newline)]
    return Splice(at, at, text)


def set_in_torch(source: Source, line: str) -> list[Splice]:
    """Add `torch.<line>` behind the imports at the top of a program; empty where there is no place for it."""
    anchor = top_of_program(source)
    if anchor is None:
        return []
    torch, imports = ensure_import(source, "torch")
    added = insert_after(source, anchor, [f"{torch}.{line}"])
    return [*imports, Splice(added.start, added.end, source.newline + added.text)]


def ensure_import(source: Source, module: str) -> tuple[str, list[Splice]]:
    """The name under which the file knows a top-level module, and the import that must be added first, if any."""
    for statement in _plain(source):
        if isinstance(statement, cst.Import):
            for alias in statement.names:
                if alias.asname is not None and _dotted(alias.name) == module:
                    assert isinstance(alias.asname.name, cst.Name)  # the only form that an import statement allows
                    return alias.asname.name.value, []
                if alias.asname is None and _dotted(alias.name).split(".")[0] == module:
                    return module, []
    line = [f"import {module}"]
    neighbours = _standard_imports(source) if module in sys.stdlib_module_names else []
    if neighbours:  # in the order of the alphabet, as import sorters keep it
        later = next((name for name, statement in neighbours if name > module), None)
        if later is not None:
            return module, [insert_before(source, dict(neighbours)[later], line)]
        return module, [insert_after(source, neighbours[-1][1], line)]
    first = _first_import(source)
    if first is not None and module in sys.stdlib_module_names:
        return module, [insert_before(source, first, [*line, ""])]
    anchor = top_of_program(source)
    if anchor is not None:
        return module, [insert_after(source, anchor, line)]
    return module, [insert_before(source, source.module.body[0], line)] if source.module.body else []


def ensure_from_import(source: Source, module: str, names: Sequence[str]) -> tuple[tuple[str, ...], list[Splice]]:
    """The names under which a file knows members of a module, and the edit of its imports that is needed for them.

    Where the file means something else by a name, the import gives the member another: `… import name as fused_name`.
    """
    known: dict[str, str] = {}
    there = [statement for statement in _plain(source) if _is_from(statement, module)]
    for statement in there:
        assert isinstance(statement, cst.ImportFrom) and not isinstance(statement.names, cst.ImportStar)
        for alias in statement.names:
            known[_dotted(alias.name)] = source.code(alias.asname.name if alias.asname is not None else alias.name)
    new = sorted({name for name in names if name not in known})
    known |= {name: _untaken(source, name) for name in new}
    wanted = [name if known[name] == name else f"{name} as {known[name]}" for name in new]
    return tuple(known[name] for name in names), _from_import(source, module, there, wanted) if wanted else []


def _is_from(statement: cst.BaseSmallStatement, module: str) -> bool:
    return (
        isinstance(statement, cst.ImportFrom)
        and statement.module is not None
        and not statement.relative
        and _dotted(statement.module) == module
        and not isinstance(statement.names, cst.ImportStar)
    )


def _untaken(source: Source, name: str) -> str:
    taken = {node.value for node in source.every(cst.Name) if not is_label(source, node)}
    while name in taken:
        name = f"fused_{name}"
    return name


def _from_import(
    source: Source, module: str, there: Sequence[cst.BaseSmallStatement], wanted: Sequence[str]
) -> list[Splice]:
    for statement in there:
        assert isinstance(statement, cst.ImportFrom)  # as it was found
        if statement.lpar is None and not isinstance(statement.names, cst.ImportStar):
            names = sorted([*(source.code(alias).rstrip(", ") for alias in statement.names), *wanted])
            return [Splice(source.span(statement.names[0])[0], source.span(statement)[1], ", ".join(names))]
    line = [f"from {module} import {', '.join(wanted)}"]
    anchor = top_of_program(source)
    if anchor is not None:
        later = _later_from(source, anchor, module)
        return [insert_before(source, later, line) if later is not None else insert_after(source, anchor, line)]
    return [insert_before(source, source.module.body[0], line)] if source.module.body else []


def _later_from(source: Source, last: cst.SimpleStatementLine, module: str) -> cst.SimpleStatementLine | None:
    """The first of the libraries' `from … import` at the top of a file that a sorter puts after a module."""
    for statement in source.module.body[: list(source.module.body).index(last) + 1]:
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(first, cst.ImportFrom) and first.module is not None and not first.relative:
            name = _dotted(first.module)
            if name.split(".")[0] not in sys.stdlib_module_names and name > module:
                assert isinstance(statement, cst.SimpleStatementLine)  # it holds an import
                return statement
    return None


def top_of_program(source: Source) -> cst.SimpleStatementLine | None:
    """The last import, future import or docstring at the top of a file: what comes after it is the program.

    Imports after the first function, class, loop or main guard belong to the program and do not count.
    """
    last: cst.SimpleStatementLine | None = None
    for index, statement in enumerate(source.module.body):
        if isinstance(statement, cst.FunctionDef | cst.ClassDef | cst.For | cst.While | cst.With):
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        first = statement.body[0]
        docstring = index == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        if docstring or isinstance(first, cst.Import | cst.ImportFrom):
            last = statement
    return last


def free_name(source: Source, name: str, taken: Collection[str] = ()) -> str:
    """The name, or a longer one that the file does not use yet."""
    while name in taken or re.search(rf"\b{name}\b", source.text):
        name += "_"
    return name


def _standard_imports(source: Source) -> list[tuple[str, cst.SimpleStatementLine]]:
    """The plain imports of the standard library at the top of a file, with the module of each."""
    found: list[tuple[str, cst.SimpleStatementLine]] = []
    for statement in source.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef | cst.For | cst.While | cst.With):
            break
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(first, cst.Import) and isinstance(statement, cst.SimpleStatementLine):
            name = _dotted(first.names[0].name)
            if name.split(".")[0] in sys.stdlib_module_names:
                found.append((name, statement))
    return found


def _first_import(source: Source) -> cst.SimpleStatementLine | None:
    """The first import of a file that does not change the language."""
    for statement in source.module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            first = statement.body[0]
            if isinstance(first, cst.ImportFrom) and first.module is not None and _dotted(first.module) == "__future__":
                continue
            if isinstance(first, cst.Import | cst.ImportFrom):
                return statement
    return None


def _plain(source: Source) -> list[cst.BaseSmallStatement]:
    """The simple statements at the top level of a file."""
    lines = [statement for statement in source.module.body if isinstance(statement, cst.SimpleStatementLine)]
    return [small for line in lines for small in line.body]


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""
