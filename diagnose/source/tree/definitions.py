"""Where a program defines its functions and classes, the names that call them, and the files that imports lead to."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

Definition = cst.ClassDef | cst.FunctionDef


class Definitions:
    """The definitions of a program's files, methods and those within functions too; only files that define a name
    are parsed."""

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


def is_foreign(source: Source, node: cst.CSTNode, paths: Iterable[str]) -> bool:
    """Whether a name is imported from a module that is none of the files `paths`, nor in a folder of them."""
    imported = source.imported(node)
    return bool(imported) and all(
        name[:1] != "." and name.partition(".")[0] not in _own_modules(tuple(paths)) for name in imported
    )


@lru_cache(maxsize=8)
def _own_modules(paths: tuple[str, ...]) -> frozenset[str]:
    """The first parts that names of modules in these files may have; folders above them are among them."""
    parts = {part for path in paths for part in path.replace("\\", "/").split("/")}
    return frozenset(part.removesuffix(".py") for part in parts)


def called_as(source: Source, function: cst.FunctionDef, sources: Iterable[Source]) -> frozenset[str]:
    """The last parts of those names: the function's own; of `__call__`, those of the instances of its class."""
    owner = source.inside(function, cst.ClassDef)
    if function.name.value != "__call__" or owner is None:
        return frozenset({function.name.value})
    return frozenset(name for each in sources for name in instances_of(each, owner.name.value))


def instances_of(source: Source, owner: str) -> Iterable[str]:
    """Yield the names to which a file assigns instances of a class: `scaler = Scaler()`, `self.scaler = Scaler()`."""
    if not source.may_call(owner, *source.imported_as(owner)):
        return
    known = {owner}
    for alias in source.every(cst.ImportAlias):
        if alias.asname is not None and source.code(alias.name) == owner:
            known.add(source.code(alias.asname.name))
    for node in source.walk(None, cst.Assign, cst.AnnAssign):
        if not isinstance(node, cst.Assign | cst.AnnAssign) or not isinstance(node.value, cst.Call):
            continue
        if call_name(node.value) in known:
            targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
            yield from (source.code(target).rpartition(".")[2] for target in targets)


def module_file(module: str, importer: str, paths: Collection[str]) -> str | None:
    """The one of `paths` that a module lies in, as `importer` names it; dots in front go up from the importer.

    A plain name may start at the importer's folder or at any folder above it: which of them is on the search path
    only the running program knows, so the nearest file of that name counts.
    """
    ups = len(module) - len(module.lstrip("."))
    folder = posixpath.dirname(importer)
    for _ in range(ups - 1):
        folder = posixpath.dirname(folder)
    stem = module.lstrip(".").replace(".", "/")
    while True:
        base = posixpath.join(folder, stem) if stem else folder
        for candidate in (f"{base}.py", posixpath.join(base, "__init__.py")):
            if candidate in paths:
                return candidate
        above = posixpath.dirname(folder)
        if ups or above == folder:
            return None
        folder = above
