"""Edits that fixers are made of: find a call at a recorded line, set its keywords, add statements and imports.

Every function returns splices of the text; `splice` makes them. New text follows the style of the code around it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import libcst as cst

from diagnose.program.syntax import Source, Splice, parse, splice

__all__ = [
    "Source",
    "Splice",
    "argument",
    "call_at",
    "call_name",
    "ensure_import",
    "free_name",
    "has_star",
    "insert_after",
    "insert_before",
    "parse",
    "replace",
    "set_keywords",
    "splice",
    "top_of_program",
]


def call_name(call: cst.Call) -> str:
    """The last part of what is called: `DataLoader` for `torch.utils.data.DataLoader(…)`; empty for other callees."""
    function = call.func
    if isinstance(function, cst.Subscript):  # DataLoader[int](…)
        function = function.value
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def call_at(source: Source, line: int, named: Collection[str]) -> cst.Call | None:
    """The one call of something `named` (last part of its name, imports resolved) that covers a line, from 1.

    The interpreter records a call by the line of its expression or of one of its arguments, so any line of it counts.
    None where there is no such call, or several and none begins on the line.
    """
    covering: list[tuple[int, cst.Call]] = []
    for call in source.every(cst.Call):
        first, last = source.lines_of(call)
        resolved = {name.rpartition(".")[2] for name in source.names(call.func)} | {call_name(call)}
        if first <= line <= last and resolved.intersection(named):
            covering.append((last - first, call))
    if len(covering) > 1:
        covering = [(height, call) for height, call in covering if source.lines_of(call)[0] == line] or covering
        lowest = min(height for height, _ in covering)
        covering = [(height, call) for height, call in covering if height == lowest]
    return covering[0][1] if len(covering) == 1 else None


def argument(call: cst.Call, keyword: str, position: int | None = None) -> cst.Arg | None:
    """The argument given for a parameter, by keyword or at a position from 0 (where no star comes before it)."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg
    if position is not None and position < len(call.args):
        before = call.args[: position + 1]
        if all(arg.keyword is None and not arg.star for arg in before):
            return before[-1]
    return None


def has_star(call: cst.Call) -> bool:
    """Whether arguments come from a sequence or mapping that only the running program knows."""
    return any(arg.star for arg in call.args)


def replace(source: Source, node: cst.CSTNode, code: str) -> Splice:
    """Put `code` in the place of an expression and of the parentheses around it."""
    start, end = source.wide_span(node)
    return Splice(start, end, code)


def set_keywords(
    source: Source,
    call: cst.Call,
    values: Mapping[str, str],
    *,
    positions: Mapping[str, int] | None = None,
    remove: Sequence[str] = (),
) -> list[Splice]:
    """Set keyword arguments to code, in place where the argument is there already, else at the end of the call.

    `positions` gives the position of parameters that may be passed without their name. Arguments in `remove` give
    their place to new ones first; what is left of them goes. Raises ValueError for `remove` of more than one argument
    without a new one to take its place.
    """
    splices: list[Splice] = []
    new: list[str] = []
    for keyword, code in values.items():
        there = argument(call, keyword, (positions or {}).get(keyword))
        if there is None:
            new.append(f"{keyword}={code}")
        elif source.code(there.value) != code:
            splices.append(replace(source, there.value, code))
    gone = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value in remove]
    while gone and new:
        start, end = _arg_span(source, gone.pop(0))
        splices.append(Splice(start, end, new.pop(0)))
    if len(gone) > 1:
        raise ValueError("only one argument can be removed without a new one in its place")
    if gone:
        splices.append(_without(source, call, gone[0]))
    return splices + (_with(source, call, new) if new else [])


def _arg_span(source: Source, arg: cst.Arg) -> tuple[int, int]:
    """From the keyword or star to the end of the value; without the comma."""
    start, _ = source.wide_span(arg)
    return start, source.wide_span(arg.value)[1]


def _comma_end(source: Source, arg: cst.Arg) -> int | None:
    return source.span(arg.comma)[1] if isinstance(arg.comma, cst.Comma) else None


def _own_lines(source: Source, call: cst.Call) -> bool:
    """Whether each argument of a call begins a line."""
    starts = [_arg_span(source, arg)[0] for arg in call.args]
    return all(not source.text[source.line_start(start) : start].strip() for start in starts)


def _with(source: Source, call: cst.Call, new: Sequence[str]) -> list[Splice]:
    if not call.args:
        end = source.span(call)[1] - 1
        return [Splice(end, end, ", ".join(new))]
    last = call.args[-1]
    start, end = _arg_span(source, last)
    comma_end = _comma_end(source, last)
    if not _own_lines(source, call):
        if comma_end is None:
            return [Splice(end, end, "".join(f", {text}" for text in new))]
        return [Splice(comma_end, comma_end, "".join(f" {text}," for text in new))]
    lead = source.newline + source.text[source.line_start(start) : start]
    line_end = source.line_end(comma_end or end)
    closing = source.span(call)[1] - 1
    if closing < line_end:  # the parenthesis closes on the line of the last argument
        line_end = comma_end or end
    if comma_end is None:
        block = "".join(f"{lead}{text}," for text in new)[:-1]
        if line_end == end:
            return [Splice(end, end, "," + block)]
        return [Splice(end, end, ","), Splice(line_end, line_end, block)]
    return [Splice(line_end, line_end, "".join(f"{lead}{text}," for text in new))]


def _without(source: Source, call: cst.Call, arg: cst.Arg) -> Splice:
    index = call.args.index(arg)
    start, end = _arg_span(source, arg)
    end = _comma_end(source, arg) or end
    if _own_lines(source, call) and source.span(call)[1] - 1 > source.line_end(end):
        return Splice(source.line_start(start), source.after_line(end), "")
    if index + 1 < len(call.args):
        return Splice(start, _arg_span(source, call.args[index + 1])[0], "")
    if index:
        before = call.args[index - 1]
        return Splice(_arg_span(source, before)[1], end, "")
    return Splice(start, end, "")


def insert_before(source: Source, statement: cst.CSTNode, lines: Sequence[str]) -> Splice:
    """Lines of code, each given without indentation, before a statement that begins a line."""
    start, _ = source.span(statement)
    at = source.line_start(start)
    indent = source.indent(statement)
    return Splice(at, at, "".join(f"{indent}{line}{source.newline}" for line in lines))


def insert_after(source: Source, statement: cst.CSTNode, lines: Sequence[str]) -> Splice:
    """The same after it."""
    indent = source.indent(statement)
    _, end = source.span(statement)
    at = source.after_line(end)
    text = "".join(f"{indent}{line}{source.newline}" for line in lines)
    if at == len(source.text) and not source.text.endswith(("\n", "\r")):
        text = source.newline + text[: -len(source.newline)]
    return Splice(at, at, text)


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
    anchor = top_of_program(source)
    line = [f"import {module}"]
    if anchor is not None:
        return module, [insert_after(source, anchor, line)]
    return module, [insert_before(source, source.module.body[0], line)] if source.module.body else []


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


def _plain(source: Source) -> list[cst.BaseSmallStatement]:
    """The simple statements at the top level of a file."""
    lines = [statement for statement in source.module.body if isinstance(statement, cst.SimpleStatementLine)]
    return [small for line in lines for small in line.body]


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""
