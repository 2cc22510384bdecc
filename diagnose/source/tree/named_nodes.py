"""The nodes of a parsed file by the names that they have: calls, attributes, functions and classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

import libcst as cst

from diagnose.source.tree.layout import Layout

_Node = TypeVar("_Node", bound=cst.CSTNode)


def call_name(call: cst.Call) -> str:
    """The last part of what is called: `DataLoader` for `torch.utils.data.DataLoader(…)`; empty for other callees."""
    function = call.func
    if type(function) is cst.Subscript:  # DataLoader[int](…); isinstance takes LibCST's nodes ten times as long
        function = function.value
    if type(function) is cst.Attribute:
        return function.attr.value
    return function.value if type(function) is cst.Name else ""


class Named(Generic[_Node]):
    """The nodes of one kind."""

    def __init__(self, layout: Layout, kind: type[_Node], name_of: Callable[[_Node], str]) -> None:
        self._layout, self._kind, self._name_of = layout, kind, name_of

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[_Node]]:
        found: dict[str, list[_Node]] = {}
        for node in self._layout.every(self._kind):
            found.setdefault(self._name_of(node), []).append(node)
        return found

    def those(self, names: Iterable[str]) -> Sequence[_Node]:
        """Return the nodes with one of these names, in the order of the text."""
        found = [nodes for name in dict.fromkeys(names) if (nodes := self._by_name.get(name))]
        if len(found) < 2:
            return found[0] if found else ()
        places = self._layout.places
        return sorted((node for nodes in found for node in nodes), key=lambda node: places[id(node)])


class NamedNodes:
    """The nodes of one file by name."""

    def __init__(self, layout: Layout) -> None:
        self.calls = Named(layout, cst.Call, call_name)
        self.attributes = Named(layout, cst.Attribute, lambda attribute: attribute.attr.value)
        self.functions = Named(layout, cst.FunctionDef, lambda function: function.name.value)
        self.classes = Named(layout, cst.ClassDef, lambda found: found.name.value)
