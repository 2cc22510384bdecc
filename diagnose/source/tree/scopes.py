"""The scopes of a parsed file, as LibCST finds them: which names are bound where, and what they stand for.

LibCST's own drivers go through a file four times for that, and make a copy of each node on the way. Here its two
visitors go through it once each, by the children that the file's layout knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import libcst as cst
from libcst.metadata import ExpressionContextProvider, Scope, ScopeProvider
from libcst.metadata.expression_context_provider import ExpressionContext, ExpressionContextVisitor
from libcst.metadata.scope_provider import _ASSIGNMENT_LIKE_NODES, ScopeVisitor

from diagnose.source.tree.layout import Layout

_Children = Callable[[cst.CSTNode], Sequence[cst.CSTNode] | None]
_Visit = Callable[[cst.CSTVisitor, cst.CSTNode], bool | None]


def scopes_of(layout: Layout) -> Mapping[cst.CSTNode, Scope | None]:
    """The scope of every node of a module that is no white space."""
    module = layout.nodes[0]
    contexts = ExpressionContextProvider()
    module.visit(_Contexts(layout.children, contexts))
    scopes = ScopeProvider()
    scopes.metadata = cast("Any", {ExpressionContextProvider: contexts._computed})
    visitor = _Scopes(layout.children, scopes)
    module.visit(visitor)
    visitor.infer_accesses()
    return cast("Mapping[cst.CSTNode, Scope | None]", scopes._computed)


def _visit_of(visitor: type[cst.CSTVisitor], methods: dict[type, _Visit | None], node: cst.CSTNode) -> _Visit | None:
    kind = type(node)
    if kind not in methods:
        methods[kind] = getattr(visitor, f"visit_{kind.__name__}", None)
    return methods[kind]


class _Contexts(ExpressionContextVisitor):
    """Whether names are read, written or deleted."""

    def __init__(self, children: _Children, provider: ExpressionContextProvider) -> None:
        super().__init__(provider, ExpressionContext.LOAD)
        self._children = children
        self._methods: dict[type, _Visit | None] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        children = self._children(node)
        if children is None:
            return super().on_visit(node)
        method = _visit_of(type(self), self._methods, node)
        if method is None or method(self, node) is not False:
            for child in children:
                self.on_visit(child)
        return False


class _Scopes(ScopeVisitor):
    """Assignments and accesses of names, by scope."""

    def __init__(self, children: _Children, provider: ScopeProvider) -> None:
        super().__init__(provider)
        self._children = children
        self._methods: dict[type, _Visit | None] = {}
        self._ends: dict[type, tuple[bool, Callable[[cst.CSTNode], None] | None]] = {}
        """Whether nodes of a kind assign, and what is to be done behind them: LibCST asks each node for both."""

    def on_leave(self, original_node: cst.CSTNode) -> None:
        kind = type(original_node)
        if kind not in self._ends:
            self._ends[kind] = issubclass(kind, _ASSIGNMENT_LIKE_NODES), getattr(self, f"leave_{kind.__name__}", None)
        is_assignment, leave = self._ends[kind]
        self.provider.set_metadata(original_node, self.scope)
        self.scope._assignment_count += is_assignment
        if leave is not None:
            leave(original_node)

    def on_visit(self, node: cst.CSTNode) -> bool:
        children = self._children(node)
        if children is None:
            return super().on_visit(node)  # it parses annotations that are strings
        method = _visit_of(type(self), self._methods, node)
        if method is None or method(self, node) is not False:
            for child in children:
                self.on_visit(child)
                self.on_leave(child)
        return False
