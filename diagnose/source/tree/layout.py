"""Where the nodes of a parsed file lie: parents, order and offsets of all of them, from one pass over the tree.

LibCST has no positions in its nodes. It finds them by writing the file out again, once for positions with the white
space that belongs to a node and once for those without, and makes a copy of a node to tell its children. Here the file
is written out once, and all four are noted on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

import libcst as cst

_MARKS = (
    *(cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Newline, cst.Comment),
    *(cst.Comma, cst.Semicolon, cst.Dot, cst.AssignEqual, cst.LeftParen, cst.RightParen),
)
_Node = TypeVar("_Node", bound=cst.CSTNode)


class Layout:
    """A node and all below it, in the order of the text. Raises RecursionError for trees that are too deep."""

    def __init__(self, root: cst.CSTNode, newline: str = "\n", indent: str = "    ") -> None:
        state = _Writing(newline, indent)
        root._codegen(cast("Any", state))  # as LibCST's own position providers do
        self.nodes = state.nodes
        """The nodes in the order of the text."""
        self.places = dict(zip(map(id, state.nodes), range(len(state.nodes)), strict=True))
        """Maps the identity of each node to its index among the nodes."""
        self.parents = state.parents
        """Per node, the index of its parent; -1 for the root."""
        self.ends = state.last
        """Per node, the index at which its subtree ends."""
        self._begin, self._end = state.begin, state.end
        self.narrow = state.narrow
        """Offsets without them, of the nodes for which they are others."""
        self._of_type: defaultdict[type, list[int]] = defaultdict(list)
        for at, kind in enumerate(map(type, state.nodes)):
            self._of_type[kind].append(at)
        self._of_kind: dict[object, list[int]] = {}
        self._types: dict[object, frozenset[type]] = {}

    def wide(self, at: int) -> tuple[int, int]:
        """Offsets of the node at a place with the white space and the parentheses that belong to it."""
        return self._begin[at], self._end[at]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node; None for the root, and for a node elsewhere."""
        at = self.places.get(id(node))
        above = self.parents[at] if at is not None else -1
        return self.nodes[above] if above >= 0 else None

    def children(self, node: cst.CSTNode) -> Sequence[cst.CSTNode] | None:
        """The nodes directly below a node, without white space, commas and other marks; None of a node elsewhere."""
        at = self.places.get(id(node))
        return self._children[at] if at is not None else None

    @cached_property
    def _children(self) -> list[list[cst.CSTNode]]:
        found: list[list[cst.CSTNode]] = [[] for _ in self.nodes]
        marks = self.types(_MARKS)
        for node, parent in zip(self.nodes, self.parents, strict=True):
            if parent >= 0 and type(node) not in marks:
                found[parent].append(node)
        return found

    def every(self, kind: type[_Node] | tuple[type[_Node], ...], at: int = 0) -> Iterator[_Node]:
        """The nodes of a kind (or of several) below the node at a place, and it itself, in the order of the text."""
        found = self._of_kind.get(kind)
        if found is None:
            groups = [self._of_type[each] for each in self.types(kind)]
            found = groups[0] if len(groups) == 1 else sorted(place for group in groups for place in group)
            self._of_kind[kind] = found
        return cast("Iterator[_Node]", self._those_below(found, at))

    def named(self, name: str, at: int = 0) -> Iterator[cst.Name]:
        """The names that read so, below the node at a place and at it, in the order of the text."""
        return cast("Iterator[cst.Name]", self._those_below(self._names.get(name, []), at))

    def types(self, kind: type[cst.CSTNode] | tuple[type[cst.CSTNode], ...]) -> frozenset[type]:
        """The classes of nodes here that are of a kind; to ask each node for it takes LibCST long."""
        if kind not in self._types:
            self._types[kind] = frozenset(each for each in self._of_type if issubclass(each, kind))
        return self._types[kind]

    def _those_below(self, places: list[int], at: int) -> Iterator[cst.CSTNode]:
        first = bisect_left(places, at)
        return (self.nodes[place] for place in places[first : bisect_left(places, self.ends[at], first)])

    @cached_property
    def _names(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place in self._of_type.get(cst.Name, ()):
            found.setdefault(cast("cst.Name", self.nodes[place]).value, []).append(place)
        return found


class _Writing:
    """The state that LibCST's nodes write themselves to (`libcst.CodegenState`): it counts characters, keeping none."""

    def __init__(self, newline: str, indent: str) -> None:
        self.default_newline, self.default_indent = newline, indent
        self.nodes: list[cst.CSTNode] = []
        self.parents: list[int] = []
        self.last: list[int] = []
        self.begin: list[int] = []
        self.end: list[int] = []
        self.narrow: dict[int, tuple[int, int]] = {}
        self.offset = 0
        self._around = [-1]
        self._indents: list[int] = []
        self._indent = 0

    @property
    def tokens(self) -> range:
        """A range as long as the text in characters: a module only asks whether anything was written."""
        return range(self.offset)

    def increase_indent(self, value: str) -> None:
        self._indents.append(len(value))
        self._indent += len(value)

    def decrease_indent(self) -> None:
        self._indent -= self._indents.pop()

    def add_indent_tokens(self) -> None:
        self.offset += self._indent

    def add_token(self, value: str) -> None:
        self.offset += len(value)

    def pop_trailing_newline(self) -> None:
        """Leave what lies behind the end of a file without a line end: its offsets are beyond the text."""

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.parents.append(self._around[-1])
        self._around.append(len(self.nodes))
        self.nodes.append(node)
        self.begin.append(self.offset)
        self.end.append(0)
        self.last.append(0)

    def after_codegen(self, _node: cst.CSTNode) -> None:
        at = self._around.pop()
        self.end[at] = self.offset
        self.last[at] = len(self.nodes)

    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Narrow:
        return _Narrow(self, node, start_node, end_node)

    def span(self, node: cst.CSTNode, since: int) -> tuple[int, int]:
        """Return the span of a node that was written, found among those from `since` on."""
        at = next(at for at in range(since, len(self.nodes)) if self.nodes[at] is node)
        return self.narrow.get(at) or (self.begin[at], self.end[at])


class _Narrow:
    """The part of what a node writes that is not the white space around it."""

    def __init__(self, state: _Writing, node: cst.CSTNode, start: cst.CSTNode | None, end: cst.CSTNode | None) -> None:
        self._state, self._node, self._start, self._end = state, node, start, end

    def __enter__(self) -> None:
        self._at = self._state._around[-1]
        self._offset = self._state.offset

    def __exit__(self, *_error: object) -> None:
        state = self._state
        assert state.nodes[self._at] is self._node
        start, end = self._offset, state.offset
        if self._start is not None:
            start = state.span(self._start, self._at)[0]
        if self._end is not None:
            end = state.span(self._end, self._at)[1]
        state.narrow[self._at] = (start, end)
