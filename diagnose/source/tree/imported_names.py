"""Resolves expressions whose first name imports or Python alone bind, without the scopes of their file.

LibCST takes as long to find the scopes of a file as to parse it, and most questions are about names such as `nn.Linear`
in a file that binds `nn` by one import and by nothing else.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from typing import cast

import libcst as cst
from libcst.helpers import get_full_name_for_node

from diagnose.source.tree.layout import Layout

Imports = Mapping[str, Mapping[str, bool]]
"""The dotted names that imports bind names to, by those names, and whether outside of all functions and classes."""
_READING = (
    *(cst.Attribute, cst.Arg, cst.Call, cst.Subscript, cst.Index, cst.Annotation, cst.Comparison, cst.ComparisonTarget),
    *(cst.BinaryOperation, cst.BooleanOperation, cst.UnaryOperation, cst.IfExp, cst.DictElement, cst.Return),
    *(cst.Decorator, cst.ImportAlias, cst.ImportFrom),
)
"""Nodes right below which a name is bound by nothing but an import."""


def may_hold(imports: Imports, words: Collection[str], names: tuple[str, ...]) -> bool:
    """Whether an import, and the words behind what it binds, can make anything in a file one of these names."""
    known = {each for targets in imports.values() for each in targets}
    for name in names:
        parts = name.split(".")
        if all(part in words for part in parts):
            return True
        for at in range(2, len(parts) + 1):
            if ".".join(parts[:at]) in known and all(part in words for part in parts[at:]):
                return True
    return False


class ImportedNames:
    """The imported names of one file."""

    def __init__(self, imports: Imports, layout: Layout) -> None:
        self._imports, self._layout = imports, layout
        self._known: dict[str, tuple[str, ...] | None] = {}
        """The names that imports or Python alone bind, with what to; None of others."""

    def binds(self, node: cst.CSTNode) -> bool:
        """Whether an import binds the first name of an expression, or the expression has none."""
        code = get_full_name_for_node(node)
        return code is None or code.partition(".")[0] in self._imports

    def of(self, node: cst.CSTNode) -> frozenset[str] | None:
        """Resolve an expression whose first name imports or Python bind and nothing else; None for others."""
        root, _, rest = (get_full_name_for_node(node) or "").partition(".")
        built_in = not rest and hasattr(builtins, root)
        if not (built_in or root in self._imports) or self._has_no_scope(node):
            return None
        if root not in self._known:
            known = self._imports.get(root, {f"builtins.{root}": built_in})
            certain = all(known.values()) and all(map(self._is_read, self._layout.named(root)))
            self._known[root] = tuple(known) if certain else None
        known_as = self._known[root]
        return frozenset(f"{each}.{rest}" if rest else each for each in known_as) if known_as is not None else None

    def may_be(self, node: cst.CSTNode, known: tuple[str, ...]) -> bool:
        """Whether an expression may stand for one of these names, as far as imports alone tell."""
        code = get_full_name_for_node(node)
        return code is not None and may_be_one(self._imports, code, known)

    def _has_no_scope(self, node: cst.CSTNode) -> bool:
        """Whether LibCST has no scope for a node: in an import, of the name of an attribute or a keyword, or new."""
        above = self._layout.parent(node)
        if above is None:
            return True
        if isinstance(above, cst.Attribute | cst.Arg | cst.Param) and getattr(above, "value", None) is not node:
            return True
        while above is not None and not isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            above = self._layout.parent(above)
        return isinstance(above, cst.Import | cst.ImportFrom)

    def _is_read(self, name: cst.Name) -> bool:
        """Whether a name stands where it is read, or in an import, or is that of an attribute or a keyword."""
        below, above = cast("cst.CSTNode", name), self._layout.parent(name)
        if isinstance(above, cst.AsName):
            return isinstance(self._layout.parent(above), cst.ImportAlias)
        while isinstance(above, cst.Element | cst.Tuple | cst.List):
            below, above = above, self._layout.parent(above)
        if isinstance(above, cst.Param):
            return above.default is below
        return isinstance(above, _READING) or (isinstance(above, cst.Assign | cst.AnnAssign) and above.value is below)


def may_be_one(imports: Imports, name: str, known: tuple[str, ...]) -> bool:
    """Whether a dotted name of the text may stand for one of these names, as far as imports alone tell."""
    root, _, rest = name.partition(".")
    imported = (f"{each}.{rest}" if rest else each for each in imports.get(root, ()))
    return any(is_one(each, known) for each in (name, f"builtins.{root}", *imported))


def is_one(name: str, known: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of others, or below one that ends with a dot."""
    return any(name.startswith(each) if each[-1] == "." else name == each for each in known)
