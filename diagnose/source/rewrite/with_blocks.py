"""Put statements that stand in a row into a `with` block: the lines move to the right, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from diagnose.source.tree.syntax import Source, Splice


def block_of(source: Source, statement: cst.CSTNode) -> Sequence[cst.CSTNode] | None:
    """The statements of the block that a statement is one of; None where it shares its line with the block's head."""
    block = source.parent(statement)
    return block.body if isinstance(block, cst.IndentedBlock | cst.Module) else None


def wrap_statements(source: Source, statements: Sequence[cst.CSTNode], header: str) -> list[Splice]:
    """Statements in a row of one block below a `header` such as `with context:`, comments between them included.

    Lines that begin within a string stay where they are, since their white space is a part of the string.
    """
    first, last = source.span(statements[0])[0], source.span(statements[-1])[1]
    at, end = source.line_start(first), source.line_end(last)
    indent = source.indent(statements[0])
    splices = [Splice(at, at, f"{indent}{header}{source.newline}")]
    strings = [
        source.span(node)
        for statement in statements
        for node in source.walk(statement)
        if isinstance(node, cst.SimpleString | cst.FormattedString)
    ]
    while at <= end and at < len(source.text):
        inside = any(start < at < finish for start, finish in strings)
        if not inside and source.text[at : source.line_end(at)].strip():
            # Behind what the block has: a file may indent some blocks by tabs, and in front of those are no spaces.
            behind = at + len(indent) if source.text.startswith(indent, at) else at
            splices.append(Splice(behind, behind, source.indentation))
        at = source.after_line(at)
    return splices
