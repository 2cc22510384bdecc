"""The code that may run while some statements do: all that they mention, and what that mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import libcst as cst

from diagnose.source.dataflow.exception_handlers import Place, ways_to, ways_to_any
from diagnose.source.dataflow.flow import Loop, loops_around
from diagnose.source.tree.built_classes import Classes, in_class_of
from diagnose.source.tree.definitions import instances_of
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_Node = TypeVar("_Node", bound=cst.CSTNode)
_STARTS = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__"})
_OF_MODULES = frozenset({"train", "eval", "to", "cuda", "cpu", "step", "zero_grad", "backward", "forward", "update"})
"""Methods of torch's: `model.train()` is not the `train` of a trainer."""


class ReachableCode:
    """Pieces of code, and the functions of the program that may run in them. By name, so rather too many.

    What leads to the code that begins is not run by it, unless it is called `again`. `without`: classes that have no
    instance, and whose methods do not run.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        begins: Sequence[Place],
        *,
        again: bool = False,
        without: Classes = frozenset(),
    ) -> None:
        self._sources = sources
        self._again = again
        self._around = {above for _, other, place in ways_to_any(sources, begins) for above in other.ancestors(place)}
        """The nodes around each way that leads to that code."""
        self.pieces: dict[cst.CSTNode, Place] = {}
        self.aliases = {
            source.code(alias.asname.name): source.code(alias.name)
            for source in sources.values()
            for alias in source.every(cst.ImportAlias)
            if alias.asname is not None
        }
        """The imported name of each `as` name."""
        self._functions = [
            (path, source, function, source.inside(function, cst.ClassDef))
            for path, source in sources.items()
            for function in source.every(cst.FunctionDef)
            if not without or not in_class_of(source, function, path, without)
        ]
        self._known_as: dict[str, list[int]] = {}
        """Maps a name to what it may mean: a member of its own, or that of its class where it sets up instances."""
        for at, (_, _, function, owner) in enumerate(self._functions):
            starts = owner is not None and function.name.value in _STARTS
            name = owner.name.value if owner is not None and starts else function.name.value
            self._known_as.setdefault(name, []).append(at)
        self._made: dict[cst.ClassDef, frozenset[str]] = {}
        pending = [*begins, *self._implicit()]
        while pending:
            place = pending.pop()
            if place[2] not in self.pieces:
                self.pieces[place[2]] = place
                pending += self._mentioned(place)

    def every(self, kind: type[_Node]) -> Iterator[tuple[str, Source, _Node]]:
        """All nodes of a kind in that code, each once."""
        seen: set[cst.CSTNode] = set()
        for path, source, piece in self.pieces.values():
            for node in source.every(kind, piece):
                if node not in seen:
                    seen.add(node)
                    yield path, source, node

    def _implicit(self) -> Iterator[Place]:
        """Yield what nobody calls by its name: operators, hooks, the methods that a library calls."""
        handed = {name for source in self._sources.values() for name in names_handed_on(source)}
        for path, source, function, owner in self._functions:
            name = function.name.value
            dunder = owner is not None and name.startswith("__") and name not in _STARTS
            of_library = owner is not None and name not in _STARTS and self._is_of_library(source, owner)
            if (dunder or name == "forward" or name in handed or of_library) and function not in self._around:
                yield path, source, function

    def _is_of_library(self, source: Source, owner: cst.ClassDef) -> bool:
        """Whether a library other than torch may call methods of a class, as it does of a callback."""
        for base in owner.bases:
            names = source.names(base.value) or {source.code(base.value)}
            last = source.code(base.value).rpartition(".")[2]
            own = any(last in other.outline.classes for other in self._sources.values())
            plain = source.code(base.value) in {"object", "ABC", "Protocol", "Enum", "Exception", "RuntimeError"}
            if not own and not plain and not any(name.startswith("torch.") for name in names):
                return True
        return False

    def _instances(self, owner: cst.ClassDef) -> frozenset[str]:
        """The variables and attributes that are given new instances of a class."""
        if owner not in self._made:
            found = (name for source in self._sources.values() for name in instances_of(source, owner.name.value))
            self._made[owner] = frozenset(found)
        return self._made[owner]

    def _mentioned(self, place: Place) -> Iterator[Place]:
        _, source, piece = place
        plain: set[str] = set()
        parts: set[str] = set()
        own: set[str] = set()
        called_on: dict[str, set[str]] = {}
        for name in source.every(cst.Name, piece):
            above = source.parent(name)
            if isinstance(above, cst.Arg) and above.keyword is name:
                continue
            if isinstance(above, cst.Attribute) and above.attr is name:
                of_self = isinstance(above.value, cst.Name) and above.value.value in {"self", "cls"}
                (own if of_self else parts).add(name.value)
                called_on.setdefault(name.value, set()).add(source.code(above.value).rpartition(".")[2])
            else:
                plain.add(self.aliases.get(name.value, name.value))
        around = source.inside(piece, cst.ClassDef)
        may_mean = {at for name in plain | parts | own for at in self._known_as.get(name, ())}
        for path, other, function, owner in (self._functions[at] for at in sorted(may_mean)):
            name_of = function.name.value
            if (function in self._around and not self._again) or function is piece:
                continue
            if owner is None:
                named = name_of in plain | parts
            elif name_of in _STARTS:
                named = owner.name.value in plain | parts
            else:
                theirs = name_of in parts and name_of not in _OF_MODULES
                theirs = theirs or not self._instances(owner).isdisjoint(called_on.get(name_of, ()))
                named = theirs or (name_of in own and (around is None or owner is around or bool(around.bases)))
            if named:
                yield path, other, function


@per_source
def names_handed_on(source: Source) -> frozenset[str]:
    """The names that calls and classes are given, and those that they are given them by; no file is parsed for it."""
    keywords = source.outline.every(ast.keyword)
    values = [value for call in source.outline.every(ast.Call) for value in call.args]
    values += [value for owner in source.outline.every(ast.ClassDef) for value in owner.bases]
    values += [keyword.value for keyword in keywords]
    plain = (value.value if isinstance(value, ast.Starred) else value for value in values)
    return frozenset({each.id for each in plain if isinstance(each, ast.Name)} | {each.arg or "" for each in keywords})


def runs_after(sources: Mapping[str, Source], path: str, node: cst.CSTNode) -> Iterator[Place]:
    """The statements that may run after a node, in its function and in those that lead to it."""
    for at, source, place in ways_to(sources, path, node):
        loops: list[Loop] = loops_around(source, place)
        if loops:
            yield at, source, loops[-1]
        below = place
        for above in source.ancestors(place):
            if isinstance(above, cst.Try):
                for part in (*above.handlers, above.orelse, above.finalbody):
                    if part is not None and part is not below:
                        yield at, source, part
            if isinstance(above, cst.FunctionDef):
                break
            block = list(above.body) if isinstance(above, cst.IndentedBlock | cst.Module) else []
            later = block[block.index(below) + 1 :] if below in block else []  # type: ignore[arg-type]
            for statement in later:
                if not isinstance(statement, cst.FunctionDef | cst.ClassDef):
                    yield at, source, statement
            below = above
