"""A parsed source: LibCST's tree with the offset of every node, so that edits are splices of the text itself.

Whatever an edit does not touch stays as it is by construction: comments, quotes, indentation, line ends.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, Scope, ScopeProvider

from diagnose.source.tree.layout import Layout

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
    def _layout(self) -> Layout:
        return Layout(self.module, self.module.default_newline, self.module.default_indent)

    @cached_property
    def _scopes(self) -> Mapping[cst.CSTNode, Scope | None]:
        return self._wrapper.resolve(ScopeProvider)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node without the parentheses around it."""
        start, end = self._narrow(node)
        return min(start, len(self.text)), min(end, len(self.text))

    def wide_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node with the parentheses (and for statements the white space) that belong to it."""
        start, end = self._layout.wide[self._layout.places[id(node)]]
        return min(start, len(self.text)), min(end, len(self.text))

    def _narrow(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets without parentheses; a file without a line end is written with one, beyond its text."""
        at = self._layout.places[id(node)]
        return self._layout.narrow.get(at) or self._layout.wide[at]

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node, with its parentheses."""
        start, end = self.wide_span(node)
        return self.text[start:end].strip()

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node, from 1."""
        start, end = self._narrow(node)
        return self._line(start), self._line(end)

    def _line(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset) + (offset > len(self.text))

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
        at = self._layout.places.get(id(node))
        above = self._layout.parents[at] if at is not None else -1
        return self._layout.nodes[above] if above >= 0 else None

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
        layout, at = self._below(node)
        return iter(layout.nodes[at : layout.ends[at]])

    def every(self, kind: type[_Node], below: cst.CSTNode | None = None) -> Iterator[_Node]:
        """All nodes of a kind, in the order of the text."""
        layout, at = self._below(below)
        return layout.every(kind, at)

    def _below(self, node: cst.CSTNode | None) -> tuple[Layout, int]:
        """The layout that a node is in, and its place there; a node that was made anew has one of its own."""
        if node is None:
            return self._layout, 0
        at = self._layout.places.get(id(node))
        return (self._layout, at) if at is not None else (Layout(node), 0)

    def names(self, node: cst.CSTNode) -> frozenset[str]:
        """The dotted names that an expression may stand for, imports resolved: `torch.utils.data.DataLoader`."""
        scope = self._scopes.get(node)
        return frozenset(name.name for name in scope.get_qualified_names_for(node)) if scope else frozenset()

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
