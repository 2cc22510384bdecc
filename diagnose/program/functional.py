"""How a file calls `torch.nn.functional`, and calls of it laid out as the file's other lines are."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from diagnose.program.edit import ensure_import
from diagnose.program.syntax import Source, Splice

__all__ = ["call_in_place", "functional"]

_LINE = 120


def functional(source: Source) -> tuple[str, list[Splice]]:
    """The name by which a file knows `torch.nn.functional`, and the import to be added first, if any."""
    for statement in source.module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Import):
                for alias in small.names:
                    if source.code(alias.name) == "torch.nn.functional" and alias.asname is not None:
                        return source.code(alias.asname.name), []
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                if small.module is None or source.code(small.module) not in {"torch", "torch.nn"}:
                    continue
                for alias in small.names:
                    name = source.code(alias.name)
                    known = source.code(alias.asname.name) if alias.asname is not None else name
                    if name == "functional":
                        return known, []
    for statement in source.module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                if small.module is not None and source.code(small.module) == "torch":
                    for alias in small.names:
                        if source.code(alias.name) == "nn":
                            known = source.code(alias.asname.name) if alias.asname is not None else "nn"
                            return f"{known}.functional", []
            if isinstance(small, cst.Import):
                for alias in small.names:
                    if source.code(alias.name) == "torch.nn" and alias.asname is not None:
                        return f"{source.code(alias.asname.name)}.functional", []
    torch, splices = ensure_import(source, "torch")
    return f"{torch}.nn.functional", splices


def call_in_place(source: Source, node: cst.CSTNode, function: str, arguments: Sequence[str], after: str = "") -> str:
    """The code of a call for the place of `node`: on one line where it fits, else an argument a line."""
    row = f"{function}({', '.join(arguments)}){after}"
    start, end = source.wide_span(node)
    line_start = source.line_start(start)
    before, behind = source.text[line_start:start], source.text[end : source.line_end(end)]
    longest = max(100, min(_LINE, max(map(len, source.text.splitlines()), default=0)))
    behind = behind.split("#")[0].rstrip()
    if len(before) + len(row) + len(behind) <= longest:
        return row
    outer = before[: len(before) - len(before.lstrip())]
    inner = outer + source.module.default_indent
    lines = "".join(f"{inner}{argument},{source.newline}" for argument in arguments)
    return f"{function}({source.newline}{lines}{outer}){after}"
