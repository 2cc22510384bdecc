"""A parsed source: LibCST's tree with the offset of every node, so that edits are splices of the text itself.

Whatever an edit does not touch stays as it is by construction: comments, quotes, indentation, line ends.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import QualifiedNameSource, Scope

from diagnose.source.tree.imported_names import ImportedNames, Imports, is_one, may_be_one, may_hold
from diagnose.source.tree.layout import Layout
from diagnose.source.tree.named_nodes import NamedNodes, call_name
from diagnose.source.tree.outline import Function, Outline, dotted_name, read_outline
from diagnose.source.tree.scopes import scopes_of
from diagnose.source.tree.text_lines import Text
from diagnose.source.tree.time_limit import check_time, check_time_now_and_then

__all__ = ["Source", "Splice", "call_name", "only_statement", "overlaps", "parse", "splice"]

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


def overlaps(one: Splice, other: Splice) -> bool:
    """Whether two splices want the same characters."""
    return one.start < other.end and other.start < one.end


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@lru_cache(maxsize=1024)  # every fixer asks for the same files, and most of them are never parsed as a whole
def parse(text: str) -> Source | None:
    """The source, or None where it is no Python that this interpreter can read."""
    check_time()
    outline = read_outline(text)
    return Source(text, outline) if outline is not None else None


def only_statement(line: cst.CSTNode | None) -> cst.BaseSmallStatement | None:
    """Return a line's statement, where the line is one simple statement: not a block, nor `a; b`."""
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None


class Source(Text):
    """One file: its text, its tree, and where each node lies; each is made when it is first asked for."""

    def __init__(self, text: str, outline: Outline | None = None) -> None:
        super().__init__(text)
        self._outline = outline
        self.answers: dict[object, dict[tuple[Hashable, ...], object]] = {}
        """What `diagnose.source.tree.memo` keeps: by question, by its arguments."""

    @cached_property
    def outline(self) -> Outline:
        """The file as Python's own parser has it: quick to read and to go through, and of no use for edits."""
        return self._outline or read_outline(self.text) or Outline(ast.Module([], []))

    @cached_property
    def outlined(self) -> tuple[Function, ...]:
        """The functions that are defined in no other function, in the order of the text."""
        return self.outline.functions

    @cached_property
    def function_names(self) -> frozenset[str]:
        """The names of all functions, those within others too."""
        return self.outline.names

    @cached_property
    def defined_names(self) -> frozenset[str]:
        """The names of all functions and classes."""
        return self.outline.names | self.outline.classes

    @cached_property
    def free_names(self) -> frozenset[str]:
        """The names of the functions and classes that no class has as its own."""
        return self.outline.free_names

    @cached_property
    def _imports(self) -> Imports:
        return self.outline.imports

    def function(self, number: int) -> cst.FunctionDef:
        """The function with a number (`Function.number`)."""
        return self._functions[number]

    def outline_of(self, function: cst.FunctionDef) -> Function | None:
        """The outline of a function; None where it is defined in another one."""
        return next((each for each in self.outlined if self.function(each.number) is function), None)

    @cached_property
    def _functions(self) -> tuple[cst.FunctionDef, ...]:
        return tuple(self.every(cst.FunctionDef))

    @cached_property
    def module(self) -> cst.Module:
        """The tree."""
        check_time()
        try:
            return cst.parse_module(self.text)
        except (cst.ParserSyntaxError, RecursionError):
            return cst.Module([])  # what LibCST cannot read has no nodes

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
    def _layout(self) -> Layout:
        return Layout(self.module, self.module.default_newline, self.module.default_indent)

    @cached_property
    def _named_nodes(self) -> NamedNodes:
        return NamedNodes(self._layout)

    @cached_property
    def _imported_names(self) -> ImportedNames:
        return ImportedNames(self._imports, self._layout)

    @cached_property
    def _scopes(self) -> Mapping[cst.CSTNode, Scope | None]:
        return scopes_of(self._layout)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node without the parentheses around it."""
        start, end = self._narrow(node)
        return min(start, len(self.text)), min(end, len(self.text))

    def wide_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets of a node with the parentheses (and for statements the white space) that belong to it."""
        start, end = self._layout.wide(self._layout.places[id(node)])
        return min(start, len(self.text)), min(end, len(self.text))

    def _narrow(self, node: cst.CSTNode) -> tuple[int, int]:
        """Offsets without parentheses; a file without a line end is written with one, beyond its text."""
        at = self._layout.places[id(node)]
        return self._layout.narrow.get(at) or self._layout.wide(at)

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node, with its parentheses."""
        start, end = self.wide_span(node)
        return self.text[start:end].strip()

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node, from 1."""
        start, end = self._narrow(node)
        return self._line(start), self._line(end)

    def extent(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return where a node, and all below it, begins and ends among the nodes of the file."""
        at = self._layout.places[id(node)]
        return at, self._layout.ends[at]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node; None for the module."""
        return self._layout.parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        layout = self._layout
        at = layout.places.get(id(node))
        while at is not None and (at := layout.parents[at]) >= 0:
            yield layout.nodes[at]

    def inside(self, node: cst.CSTNode, kind: type[_Node] | tuple[type[_Node], ...]) -> _Node | None:
        """The innermost node of a kind around a node."""
        layout = self._layout
        at = layout.places.get(id(node))
        types = layout.types(kind)
        while at is not None and (at := layout.parents[at]) >= 0:
            if type(layout.nodes[at]) in types:
                return cast("_Node", layout.nodes[at])
        return None

    def walk(self, node: cst.CSTNode | None = None, *kinds: type) -> Iterator[cst.CSTNode]:
        """All nodes below `node` (the module) and itself, or those of some kinds, in the order of the text."""
        check_time_now_and_then()
        layout, at = self._below(node)
        return layout.every(kinds, at) if kinds else iter(layout.nodes[at : layout.ends[at]])

    def every(self, kind: type[_Node], below: cst.CSTNode | None = None) -> Iterator[_Node]:
        """All nodes of a kind, in the order of the text."""
        check_time_now_and_then()
        layout, at = self._below(below)
        return layout.every(kind, at)

    def named(self, name: str, below: cst.CSTNode | None = None) -> Iterator[cst.Name]:
        """All names that read so, those of attributes and keywords too, in the order of the text."""
        if below is None and not self.may_name(name):
            return iter(())
        layout, at = self._below(below)
        return layout.named(name, at)

    def _below(self, node: cst.CSTNode | None) -> tuple[Layout, int]:
        """The layout that a node is in, and its place there; a node that was made anew has one of its own."""
        if node is None:
            return self._layout, 0
        at = self._layout.places.get(id(node))
        return (self._layout, at) if at is not None else (Layout(node), 0)

    def may_name(self, *names: str) -> bool:
        """Whether the code, and no comment or string, holds one of these names: cheap, where the tree is not."""
        return any(self._held(names, self.outline.mentioned))

    def may_call(self, *names: str) -> bool:
        """Whether the file has calls of one of these names (`call_name`): cheap, where the tree is not."""
        return any(self._held(names, self.outline.called))

    def _held(self, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
        """Yield the names that are known of the file; the outline has but one form of what is not ASCII."""
        return (name for name in names if name in self.words and (name in known or not name.isascii()))

    def imported_as(self, *last: str) -> frozenset[str]:
        """The names that imports bind to what has one of these names itself: `DDP` for DistributedDataParallel."""
        return frozenset(name for each in last for name in self._imported_as.get(each, ()))

    @cached_property
    def _imported_as(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name, full in self._imports.items():
            for last in {_last(each) for each in full}:
                found.setdefault(last, []).append(name)
        return found

    def calls_named(self, *names: str) -> Sequence[cst.Call]:
        """All calls of one of these names (`call_name`), in the order of the text; a file without any is not parsed."""
        held = list(self._held(names, self.outline.called))
        return self._named_nodes.calls.those(held) if held else ()

    def attributes_named(self, *names: str) -> Sequence[cst.Attribute]:
        """All attributes of one of these names in the order of the text; a file without any is not parsed."""
        held = list(self._held(names, self.outline.attributes))
        return self._named_nodes.attributes.those(held) if held else ()

    def functions_named(self, *names: str) -> Sequence[cst.FunctionDef]:
        """All functions of one of these names in the order of the text; a file without any is not parsed."""
        held = list(self._held(names, self.outline.names))
        return self._named_nodes.functions.those(held) if held else ()

    def classes_named(self, *names: str) -> Sequence[cst.ClassDef]:
        """All classes of one of these names in the order of the text; a file without any is not parsed."""
        held = list(self._held(names, self.outline.classes))
        return self._named_nodes.classes.those(held) if held else ()

    def calls_of(self, *names: str) -> Iterator[cst.Call]:
        """All calls of what one of these dotted names stands for, imports resolved, in the order of the text."""
        last = set(map(_last, names))
        if not self.mentions(*last) or not may_hold(self._imports, self.words, names):
            return
        for call in self.calls_named(*last, *self.imported_as(*last)):
            if self.is_called(call.func, *names):
                yield call

    def may_call_below(self, *modules: str) -> bool:
        """Whether there are calls that `calls_below` has; the file is not parsed for it."""
        return bool(self._called_below(modules))

    def _called_below(self, modules: tuple[str, ...]) -> set[str]:
        called = (dotted_name(call.func) for call in self.outline.every(ast.Call))
        return {name for name in called if name is not None and may_be_one(self._imports, name, modules)}

    def calls_below(self, *modules: str) -> Sequence[cst.Call]:
        """All calls that may be of something below one of these modules, `torch.optim.`, as far as imports tell."""
        return self.calls_named(*map(_last, self._called_below(modules)))

    @cached_property
    def _qualified(self) -> dict[cst.CSTNode, frozenset[str]]:
        """The answers of `names`."""
        return {}

    def names(self, node: cst.CSTNode) -> frozenset[str]:
        """The dotted names that an expression may stand for, imports resolved: `torch.utils.data.DataLoader`."""
        found = self._qualified.get(node)
        if found is None:
            found = self._imported_names.of(node)
            if found is None:
                scope = self._scopes.get(node)
                names = scope.get_qualified_names_for(node) if scope else ()
                found = frozenset(name.name for name in names)
            self._qualified[node] = found
        return found

    def is_called(self, node: cst.CSTNode, *known: str) -> bool:
        """Whether an expression may stand for one of these dotted names, imports resolved; `torch.` is all below it."""
        return self._imported_names.may_be(node, known) and any(is_one(name, known) for name in self.names(node))

    def imported(self, node: cst.CSTNode) -> frozenset[str]:
        """Return the names that an expression may stand for, where each of them is imported; else none."""
        if not self._imported_names.binds(node):
            return frozenset()
        known = self._imported_names.of(node)
        if known is not None:
            return known
        scope = self._scopes.get(node)
        names = tuple(scope.get_qualified_names_for(node)) if scope else ()
        if any(name.source is not QualifiedNameSource.IMPORT for name in names):
            return frozenset()
        return frozenset(name.name for name in names)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The statement with a line of its own that a node lies in."""
        for candidate in (node, *self.ancestors(node)):
            if isinstance(candidate, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return candidate
        return None

    def statement_at(self, line: int) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The innermost statement that covers a line, from 1."""
        return self._statements.get(line)

    @cached_property
    def _statements(self) -> dict[int, cst.SimpleStatementLine | cst.BaseCompoundStatement]:
        found: dict[int, cst.SimpleStatementLine | cst.BaseCompoundStatement] = {}
        for node in self.walk(None, cst.SimpleStatementLine, cst.BaseCompoundStatement):
            if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                first, last = self.lines_of(node)
                found.update(dict.fromkeys(range(first, last + 1), node))
        return found

    def indent(self, statement: cst.CSTNode) -> str:
        """The white space before a statement."""
        start, _ = self.span(statement)
        before = self.text[self.line_start(start) : start]
        return before if not before.strip() else before[: len(before) - len(before.lstrip())]
