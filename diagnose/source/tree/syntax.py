"""A parsed source: LibCST's tree with the offset of every node, so that edits are splices of the text itself.

Whatever an edit does not touch stays as it is by construction: comments, quotes, indentation, line ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar, cast

import libcst as cst
from libcst.metadata import (
    CodePosition,
    CodeRange,
    MetadataWrapper,
    PositionProvider,
    QualifiedName,
    QualifiedNameProvider,
    WhitespaceInclusivePositionProvider,
)

__all__ = ["Source", "Splice", "only_statement", "parse", "splice"]

_LINE_END = re.compile(r"\r\n|\r|\n")
_USUAL_LINE, _LONGEST_LINE = 100, 120
_Node = TypeVar("_Node", bound=cst.CSTNode)


@dataclass(frozen=True, slots=True)
class Splice:
    """Put `text` in the place of the characters `start` to `end`."""

    start: int
    end: int
    text: str


def splice(text: str, splices: list[Splice]) -> str:
    """The text with all splices made; those at one place keep their order. Raises ValueError where two overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(splices, key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise ValueError(f"two edits overlap at character {edit.start}")
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


@lru_cache(maxsize=128)  # every fixer asks for the same few files
def parse(text: str) -> Source | None:
    """The source parsed, or None where it is no Python that LibCST can read."""
    try:
        return Source(text)
    except (cst.ParserSyntaxError, RecursionError):
        return None


def only_statement(line: cst.CSTNode | None) -> cst.BaseSmallStatement | None:
    """What a line says, where it is one simple statement: not a block, nor `a; b`."""
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None


class _Tree:
    """A node and all below it, gone through once: LibCST makes a copy of a node to tell its children."""

    def __init__(self, root: cst.CSTNode) -> None:
        self.nodes: list[cst.CSTNode] = []
        """In the order of the text."""
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        pending = [root]
        while pending:
            node = pending.pop()
            self.nodes.append(node)
            children = node.children
            self.parents.update(dict.fromkeys(children, node))
            pending += reversed(children)
        ends: dict[cst.CSTNode, int] = {}
        for at in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[at]
            end = ends.setdefault(node, at + 1)
            if at:
                above = self.parents[node]
                ends[above] = max(ends.get(above, 0), end)
        self.extents = {node: (at, ends[node]) for at, node in enumerate(self.nodes)}
        """Of each node, where it and all below it begin and end among the nodes."""


class Source:
    """One file: its text, its tree, and where each node lies."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The tree comes straight from the parser, so that no node is in it twice and no copy is needed.
        self._wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self._wrapper.module

    @cached_property
    def newline(self) -> str:
        """The line end that most of the file uses."""
        return self.module.default_newline

    @cached_property
    def indentation(self) -> str:
        """One level of it, as most blocks have it: LibCST takes the first that it meets for the file's."""
        levels = Counter(each.indent or self.module.default_indent for each in self.every(cst.IndentedBlock))
        return levels.most_common(1)[0][0] if levels else self.module.default_indent

    @cached_property
    def line_limit(self) -> int:
        """How long a new line may be: as the file's longest, between the usual limits of formatters."""
        return max(_USUAL_LINE, min(_LONGEST_LINE, max(map(len, self.text.splitlines()), default=0)))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, CodeRange]:
        return cast("dict[cst.CSTNode, CodeRange]", self._wrapper.resolve(PositionProvider))

    @cached_property
    def _wide_positions(self) -> dict[cst.CSTNode, CodeRange]:
        return cast("dict[cst.CSTNode, CodeRange]", self._wrapper.resolve(WhitespaceInclusivePositionProvider))

    @cached_property
    def _qualified(self) -> dict[cst.CSTNode, Any]:
        return cast("dict[cst.CSTNode, Any]", self._wrapper.resolve(QualifiedNameProvider))

    @cached_property
    def _tree(self) -> _Tree:
        return _Tree(self.module)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node without the parentheses around it."""
        return self._offsets(self._positions[node])

    def wide_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node with the parentheses (and for statements the white space) that belong to it."""
        return self._offsets(self._wide_positions[node])

    def _offsets(self, position: CodeRange) -> tuple[int, int]:
        return self._offset(position.start), self._offset(position.end)

    def _offset(self, position: CodePosition) -> int:
        # A block that ends a file without a line end is said to end on the line after it.
        beyond = position.line > len(self._line_starts)
        return len(self.text) if beyond else self._line_starts[position.line - 1] + position.column

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node, with its parentheses."""
        start, end = self.wide_span(node)
        return self.text[start:end].strip()

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node, from 1."""
        position = self._positions[node]
        return position.start.line, position.end.line

    def line_text(self, line: int) -> str:
        """A line, from 1, without its end; empty beyond the file."""
        if not 1 <= line <= len(self._line_starts):
            return ""
        start = self._line_starts[line - 1]
        return self.text[start : self.line_end(start)]

    def line_start(self, offset: int) -> int:
        """The offset at which the line of `offset` begins."""
        return max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1

    def line_end(self, offset: int) -> int:
        """The offset of the line end at or after `offset`."""
        match = _LINE_END.search(self.text, offset)
        return match.start() if match else len(self.text)

    def after_line(self, offset: int) -> int:
        """The offset at which the line after that of `offset` begins."""
        match = _LINE_END.search(self.text, offset)
        return match.end() if match else len(self.text)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node; None for the module."""
        return self._tree.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def inside(self, node: cst.CSTNode, kind: type[_Node]) -> _Node | None:
        """The innermost node of a kind around a node."""
        return next((above for above in self.ancestors(node) if isinstance(above, kind)), None)

    def walk(self, node: cst.CSTNode | None = None) -> Iterator[cst.CSTNode]:
        """All nodes below `node` (the module) and itself, in the order of the text."""
        below = node or self.module
        tree = self._tree if below in self._tree.extents else _Tree(below)  # a node that was made anew is in none
        begin, end = tree.extents[below]
        return iter(tree.nodes[begin:end])

    def every(self, kind: type[_Node], below: cst.CSTNode | None = None) -> Iterator[_Node]:
        """All nodes of a kind, in the order of the text."""
        return (node for node in self.walk(below) if isinstance(node, kind))

    def names(self, node: cst.CSTNode) -> frozenset[str]:
        """The dotted names that an expression may stand for, imports resolved: `torch.utils.data.DataLoader`."""
        found = self._qualified.get(node, ())
        qualified: Iterable[QualifiedName] = found() if callable(found) else found  # LibCST defers some of them
        return frozenset(name.name for name in qualified)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The statement with a line of its own that a node lies in."""
        for candidate in (node, *self.ancestors(node)):
            if isinstance(candidate, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return candidate
        return None

    def indent(self, statement: cst.CSTNode) -> str:
        """The white space before a statement."""
        start, _ = self.span(statement)
        before = self.text[self.line_start(start) : start]
        return before if not before.strip() else before[: len(before) - len(before.lstrip())]
