"""Where a program defines its functions and classes, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import libcst as cst

from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

Definition = cst.ClassDef | cst.FunctionDef


class Definitions:
    """Those of a program's files, methods and those within functions too; only files that define a name are parsed."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._found: dict[str, Sequence[tuple[str, Definition]]] = {}
        self._free: dict[str, Sequence[tuple[str, Definition]]] = {}

    @cached_property
    def _free_names(self) -> frozenset[str]:
        return frozenset().union(*(source.free_names for source in self._sources.values()))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset().union(*(source.defined_names for source in self._sources.values()))

    def named(self, name: str) -> Sequence[tuple[str, Definition]]:
        """All of that name with their files, in the order of the files and of their texts."""
        if name not in self._found:
            its = ((path, source) for path, source in self._sources.items() if name in source.defined_names)
            self._found[name] = [(path, each) for path, source in its for each in _definitions(source).get(name, ())]
        return self._found[name]

    def free(self, name: str) -> Sequence[tuple[str, Definition]]:
        """Those of that name that no class has as its own. A name that classes alone give their methods, as nearly all
        of them do with `__init__`, has no file parsed.
        """
        if name not in self._free:
            its = ((path, source) for path, source in self._sources.items() if name in source.free_names)
            self._free[name] = [
                (path, each)
                for path, source in its
                for each in _definitions(source).get(name, ())
                if not isinstance(source.parent(source.parent(each) or each), cst.ClassDef)
            ]
        return self._free[name]

    def has_free(self, name: str) -> bool:
        """Whether there are any of that name that no class has as its own; no file is parsed for it."""
        return name in self._free_names

    def __contains__(self, name: str) -> bool:
        return name in self._names


@per_source
def _definitions(source: Source) -> Mapping[str, Sequence[Definition]]:
    found: dict[str, list[Definition]] = {}
    for each in source.walk(None, cst.ClassDef, cst.FunctionDef):
        if isinstance(each, cst.ClassDef | cst.FunctionDef):
            found.setdefault(each.name.value, []).append(each)
    return found
