"""Taking a statement out of a program, with what is then left over: an empty branch, a comment on it, an import."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, Splice

_ASKS = frozenset({"is_available", "is_initialized", "device_count", "isinstance", "len", "hasattr"})
_LISTS = frozenset({"modules", "named_modules", "children", "named_children", "parameters", "named_parameters"})
_HARMLESS = _ASKS | _LISTS | {"range", "enumerate", "zip", "list", "items", "values"}


def remove_statements(
    source: Source, statements: Sequence[cst.BaseSmallStatement | cst.BaseCompoundStatement], about: str = "(?!)"
) -> list[Splice]:
    """Take out statements; of a block that would be left empty, the `if` around it goes too, else `pass` stays."""
    gone: set[cst.CSTNode] = set(statements)
    # A branch all of whose statements go is what goes; again for the branch around it.
    while True:
        emptied = {
            branch
            for branch in _branches(source)
            if branch not in gone and _goes_with(source, branch, gone) and not _inside(source, branch, gone)
        }
        if not emptied:
            break
        gone = {node for node in gone if not any(within(source, node, branch) for branch in emptied)} | emptied
    splices: list[Splice] = []
    for node in sorted(gone, key=lambda node: source.span(node)[0]):
        splices.append(_cut(source, node, gone, about))
    return _joined(source.text, splices)


def take_out(source: Source, statements: Iterable[cst.CSTNode]) -> list[Splice]:
    """Take out the lines of one formula; comments right above the first of them stay, those above others go."""
    lines = sorted({id(one): one for one in statements}.values(), key=lambda one: source.span(one)[0])
    nodes = [one.body[0] if isinstance(one, cst.SimpleStatementLine) else one for one in lines]
    gone = {small for one in lines for small in (one.body if isinstance(one, cst.SimpleStatementLine) else (one,))}
    cuts = [_cut(source, node, gone, "." if number else "(?!)") for number, node in enumerate(nodes)]
    return _joined(source.text, cuts)


def _goes_with(source: Source, branch: cst.If | cst.For, gone: Collection[cst.CSTNode]) -> bool:
    """Whether nothing is left of an `if` or of a loop, and asking its question does nothing else."""
    if branch.orelse is not None or isinstance(source.parent(branch), cst.If):
        return False
    head = branch.test if isinstance(branch, cst.If) else branch.iter
    quiet = all(call_name(call) in _HARMLESS for call in source.every(cst.Call, head))
    return quiet and not any(source.every(cst.NamedExpr, head)) and _all_gone(branch.body, gone)


def _all_gone(body: cst.BaseSuite, gone: Collection[cst.CSTNode]) -> bool:
    if isinstance(body, cst.SimpleStatementSuite):
        return all(small in gone for small in body.body)
    lines = list(body.body)
    return all(
        all(small in gone for small in line.body) if isinstance(line, cst.SimpleStatementLine) else line in gone
        for line in lines
    )


def _inside(source: Source, node: cst.CSTNode, gone: Collection[cst.CSTNode]) -> bool:
    return any(above in gone for above in source.ancestors(node))


def _cut(source: Source, node: cst.CSTNode, gone: Collection[cst.CSTNode], about: str) -> Splice:
    line = source.parent(node)
    if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
        left = [small for small in line.body if small not in gone]
        if left:
            return _from_row(source, line.body, node, gone)
        if isinstance(line, cst.SimpleStatementSuite) or _alone(source, line, gone):
            first = next(small for small in line.body if small in gone)
            begin, end = source.span(node)[0], source.span(line.body[-1])[1]
            return Splice(begin, end, "pass") if first is node else Splice(begin, begin, "")
        return _lines(source, line, about)
    if _alone(source, node, gone):
        return Splice(*source.span(node), "pass")
    return _lines(source, node, about)


def _alone(source: Source, statement: cst.CSTNode, gone: Collection[cst.CSTNode]) -> bool:
    """Whether a block would be left without a statement; then its first one becomes `pass`."""
    block = source.parent(statement)
    return isinstance(block, cst.IndentedBlock) and _all_gone(block, gone) and block.body[0] is statement


def _from_row(
    source: Source, row: Sequence[cst.BaseSmallStatement], node: cst.CSTNode, gone: Collection[cst.CSTNode]
) -> Splice:
    """One of several statements on a line, with the semicolon on its side of those that stay."""
    at = next(index for index, small in enumerate(row) if small is node)
    if any(small not in gone for small in row[at + 1 :]):
        return Splice(source.span(node)[0], source.span(row[at + 1])[0], "")
    return Splice(source.span(row[at - 1])[1], source.span(node)[1], "")


def _lines(source: Source, statement: cst.CSTNode, about: str) -> Splice:
    """Whole lines, with comments above that speak of the statement."""
    start, end = source.span(statement)
    start, end = source.line_start(start), source.after_line(end)
    while start > 0:
        above = _line_above(source.text, start)
        comment = source.text[above:start].strip()
        if not (comment.startswith("#") and re.search(about, comment, re.IGNORECASE)):
            break
        start = above
    return Splice(start, end, "")


def _line_above(text: str, start: int) -> int:
    """The offset at which the line before begins, of a line that begins at `start` > 0."""
    end = start - (2 if text[:start].endswith("\r\n") else 1)
    return max(text.rfind("\n", 0, end), text.rfind("\r", 0, end)) + 1


def _joined(text: str, splices: Sequence[Splice]) -> list[Splice]:
    """Cuts of whole lines with nothing but blank lines between them become one."""
    joined: list[Splice] = []
    for edit in splices:
        last = joined[-1] if joined else None
        lines = last is not None and _is_lines(text, last) and _is_lines(text, edit)
        if last is not None and lines and not text[last.end : edit.start].strip():
            joined[-1] = Splice(last.start, max(last.end, edit.end), "")
        else:
            joined.append(edit)
    return [_without_blanks(text, edit) if _is_lines(text, edit) else edit for edit in joined]


def _is_lines(text: str, edit: Splice) -> bool:
    starts = edit.start == 0 or text[edit.start - 1] in "\r\n"
    ends = edit.end == len(text) or text[edit.end - 1] in "\r\n"
    return not edit.text and edit.end > edit.start and starts and ends


def _without_blanks(text: str, cut: Splice) -> Splice:
    """The cut with the blank lines on one side of it, where both sides would leave theirs together."""
    start, end = cut.start, cut.end
    above = len(text[:start].rstrip())
    before = min(_after_line(text, above), start) if above else 0
    match = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*").match(text, end)
    after = match.end() if match else end
    depth = _depth(text, start)
    closes = after >= len(text) or _depth(text, after) < depth
    opens = not above or _depth(text, _line_above(text, before)) < depth
    blanks = text[before:start].count("\n"), text[end:after].count("\n")
    if before < start and (after > end or closes):
        start, end = (start, after) if after > end and blanks[1] < blanks[0] else (before, end)
    elif opens:
        end = after
    if end == len(text) and not text.endswith(("\n", "\r")):
        start = above  # the line before ends the file, without an end as this one had
    return Splice(start, end, "")


def _after_line(text: str, offset: int) -> int:
    match = re.compile(r"\r\n|\r|\n").search(text, offset)
    return match.end() if match else len(text)


def _depth(text: str, start: int) -> int:
    line = text[start : _after_line(text, start)]
    return len(line) - len(line.lstrip(" \t"))


def _branches(source: Source) -> list[cst.If | cst.For]:
    return [*source.every(cst.If), *source.every(cst.For)]
