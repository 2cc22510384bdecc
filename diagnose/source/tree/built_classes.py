"""The classes of modules that a run of the program built: the code of the others was not part of any step."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping

import libcst as cst

from diagnose.model import Site
from diagnose.source.tree.memo import files_with, per_program
from diagnose.source.tree.syntax import Source

Classes = frozenset[tuple[str, str]]
"""Files and names of classes."""


def unbuilt_classes(sources: Mapping[str, str], sites: Iterable[Site]) -> Classes:
    """Return the classes of modules of a program of which a watched run had no instance; none where no run tells."""
    told = [site for site in sites if site.kind == "module classes"]
    built = frozenset((site.file, name) for site in told for name in str(site.arguments.get("classes")).split(", "))
    return _module_classes(sources) - built if built else frozenset()


def in_class_of(source: Source, node: cst.CSTNode, path: str, classes: Classes) -> bool:
    """Whether the class that a node of a file is part of, the innermost one, is one of these."""
    around = source.inside(node, cst.ClassDef)
    return around is not None and (path, around.name.value) in classes


@per_program
def _module_classes(sources: Mapping[str, str]) -> Classes:
    """The classes derived from one whose name ends in `Module`, or from such a class of the program's.

    A name that other classes of the program have as well tells nothing of what is derived from it.
    """
    bases: dict[tuple[str, str], set[str]] = {}
    for path, source in files_with(sources, "class "):
        for made in source.outline.every(ast.ClassDef):
            names = {ast.unparse(base).rpartition(".")[2] for base in made.bases}
            bases.setdefault((path, made.name), set()).update(names)
    found: Classes = frozenset()
    while True:
        others = {name for path, name in bases if (path, name) not in found}
        named = {name for _, name in found} - others
        more = frozenset(
            each for each, above in bases.items() if any(_is_module(name, others) or name in named for name in above)
        )
        if more == found:
            return found
        found = more


def _is_module(name: str, others: Collection[str]) -> bool:
    """Whether a class's name is that of a library's modules; Lightning's data modules are none."""
    return name.endswith("Module") and not name.endswith("DataModule") and name not in others
