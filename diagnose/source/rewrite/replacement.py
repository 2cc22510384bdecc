"""New code in the place of an expression: laid out as the file's other lines are, with the comments of the old one.

A comment inside the expression stays beside the argument that it spoke of, where the new call has that too; else it
goes above the statement. A shorter way to say the same is no reason to lose what was said about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import libcst as cst

from diagnose.source.tree.edits import insert_before, replace
from diagnose.source.tree.syntax import Source, Splice


def in_place(source: Source, node: cst.CSTNode, code: str) -> list[Splice]:
    """`code` in the place of an expression and of the parentheses around it, and comments that it lacks above it."""
    return [*comments_above(source, node, code), replace(source, node, code)]


def call_in_place(
    source: Source, node: cst.CSTNode, function: str, arguments: Sequence[str], after: str = ""
) -> list[Splice]:
    """A call in the place of an expression; `after` follows it, as `.sum()` would."""
    beside: dict[str, str] = {}
    above: list[str] = []
    for comment, subject in _comments(source, node, " ".join(arguments)):
        if subject in arguments and subject not in beside:
            beside[subject] = comment
        else:
            above.append(comment)
    code = _laid_out(source, node, function, arguments, after, beside)
    return [*_above(source, node, above), replace(source, node, code)]


def comments_above(source: Source, node: cst.CSTNode, code: str) -> list[Splice]:
    """The comments inside a node that `code`, which takes its place, does not have, above the statement of the node."""
    return _above(source, node, [comment for comment, _ in _comments(source, node, code)])


def _laid_out(
    source: Source,
    node: cst.CSTNode,
    function: str,
    arguments: Sequence[str],
    after: str = "",
    comments: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The code of a call for the place of `node`: on one line where it fits or what stood there did not, else an
    argument a line.

    `comments` go to the ends of the lines of the arguments that they are given for.
    """
    row = f"{function}({', '.join(arguments)}){after}"
    start, end = source.wide_span(node)
    before, behind = source.text[source.line_start(start) : start], source.text[end : source.line_end(end)]
    behind = behind.split("#")[0].rstrip()
    long_before = (
        len(before) + end - start + len(behind) > source.line_limit and source.newline not in source.text[start:end]
    )
    if (long_before or len(before) + len(row) + len(behind) <= source.line_limit) and not comments:
        return row
    outer = before[: len(before) - len(before.lstrip())]
    inner = outer + source.indentation
    ends = [f",  {comments[argument]}" if argument in comments else "," for argument in arguments]
    lines = "".join(f"{inner}{argument}{end}{source.newline}" for argument, end in zip(arguments, ends, strict=True))
    return f"{function}({source.newline}{lines}{outer}){after}"


def _comments(source: Source, node: cst.CSTNode, kept: str) -> Iterator[tuple[str, str]]:
    """The comments inside a node that `kept` does not have, each with the code that it stands beside, if any."""
    is_whole = isinstance(node, cst.BaseStatement)  # with comments above and behind, which are not inside
    begin, end = source.span(node) if is_whole else source.wide_span(node)
    for comment in source.every(cst.Comment, node):
        start, _ = source.span(comment)
        if begin <= start < end and comment.value not in kept:
            yield comment.value, source.text[source.line_start(start) : start].strip().removesuffix(",")


def _above(source: Source, node: cst.CSTNode, comments: Sequence[str]) -> list[Splice]:
    statement = source.statement(node)
    return [insert_before(source, statement, comments)] if comments and statement is not None else []
