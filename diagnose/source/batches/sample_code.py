"""The program's own code that a data loader runs: what builds its dataset, and what makes each sample.

It is followed from the dataset's `__getitem__` and the collate function through the program's own functions and
classes, in all of its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.dataflow.flow import is_variable
from diagnose.source.tree.definitions import Definition, Definitions
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

__all__ = ["SampleCode", "is_read"]

_BY_THE_LOADER = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"})
_Method: TypeAlias = tuple[int, int, str, cst.FunctionDef]
"""The number of its class, its place in the file, and the file."""
_Task: TypeAlias = Iterator["_Task"]
"""Follows one piece of code, and yields what is to be followed before it goes on."""


@dataclass
class SampleCode:
    """The program's own code that a loader runs: what builds its dataset, and what makes each sample."""

    sources: Mapping[str, Source]
    building: dict[cst.CSTNode, str] = field(default_factory=dict)
    """Run once, by the file that it lies in."""
    sampling: dict[cst.FunctionDef | cst.Lambda, str] = field(default_factory=dict)
    """Run for each sample."""
    classes: dict[cst.ClassDef, str] = field(default_factory=dict)
    lasting: dict[cst.ClassDef, str] = field(default_factory=dict)
    """Classes of which an instance lives on from one sample to the next."""

    def __post_init__(self) -> None:
        self.defined = Definitions(self.sources)
        self._methods = set(_BY_THE_LOADER)
        """Names of what is called on some object for a sample."""
        self._others: dict[str, list[_Method]] = {}
        """Methods of the classes that have another name, by it."""
        self._due: list[_Method] = []
        """Those that have one of these, as a heap; some of them may be followed already."""

    @cached_property
    def _files(self) -> Mapping[str, Sequence[str]]:
        """By their last part."""
        found: dict[str, list[str]] = {}
        for path in self.sources:
            found.setdefault(path.rpartition("/")[2], []).append(path)
        return found

    def builds(self, path: str, node: cst.CSTNode) -> None:
        """Follow an expression, or a function's body, that makes a dataset, a transform or a collate function."""
        _follow(self._builds(path, node))

    def makes_samples_by(self, name: str) -> None:
        """Follow a class or function that the run saw at work."""
        for path, found in self.defined.named(name.rpartition(".")[2]):
            _follow(self._goes_to(path, found, lasting=True))

    def _builds(self, path: str, node: cst.CSTNode) -> _Task:
        if node in self.building:
            return
        self.building[node] = path
        source = self.sources[path]
        for function in source.every(cst.Lambda, node):
            yield self._samples(path, function)
        called = {call.func for call in source.every(cst.Call, node)}
        for name in _reads(source, node):
            for file, value in self.values(path, name):
                yield self._builds(file, value)
        for each in source.walk(node, cst.Name, cst.Attribute):
            for file, found in self._named(source, each):
                if isinstance(found, cst.ClassDef):
                    yield self._of_class(file, found, lasting=True)
                elif each in called:
                    yield self._builds(file, found)
                else:
                    yield self._samples(file, found)

    def _samples(self, path: str, node: cst.FunctionDef | cst.Lambda) -> _Task:
        """Follow code that runs for each sample into what it calls."""
        if node in self.sampling:
            return
        self.sampling[node] = path
        source = self.sources[path]
        for each in source.walk(node, cst.Name, cst.Attribute):
            for file, found in self._named(source, each):
                if found is not node:
                    yield self._goes_to(file, found)
        # A property is read, and a method may be passed on: each attribute counts, called or not.
        new = {each.attr.value for each in source.every(cst.Attribute, node)} - self._methods
        self._methods |= new
        for method in (method for name in new for method in self._others.pop(name, ())):
            heappush(self._due, method)
        while self._due:
            _, _, file, function = heappop(self._due)
            yield self._samples(file, function)
        for name in _reads(source, node):
            bound = binding_of(source, name)
            if bound is not None and isinstance(bound.scope, cst.Module) and isinstance(bound.value, cst.Call):
                yield self._builds(path, bound.value)

    def _goes_to(self, path: str, found: Definition, lasting: bool = False) -> _Task:
        return self._of_class(path, found, lasting) if isinstance(found, cst.ClassDef) else self._samples(path, found)

    def _of_class(self, path: str, found: cst.ClassDef, lasting: bool = False) -> _Task:
        if found in self.classes and (found in self.lasting or not lasting):
            return
        if lasting:
            self.lasting[found] = path
        source = self.sources[path]
        methods = list(source.every(cst.FunctionDef, found))
        if found not in self.classes:
            self.classes[found] = path
            for method in methods:
                each = (len(self.classes), source.extent(method)[0], path, method)
                if method.name.value in self._methods:
                    heappush(self._due, each)
                else:
                    self._others.setdefault(method.name.value, []).append(each)
            for method in methods:
                if method.name.value in self._methods:
                    yield self._samples(path, method)
        for method in methods:
            if method.name.value == "__init__":
                yield self._builds(path, method)
        for base in found.bases:
            for file, above in self._named(source, base.value):
                if isinstance(above, cst.ClassDef):
                    yield self._of_class(file, above, lasting)

    def _named(self, source: Source, node: cst.CSTNode) -> Iterator[tuple[str, Definition]]:
        """The program's own functions and classes, no methods, that a name or `module.name` may stand for."""
        if isinstance(node, cst.Name):
            if node.value not in self.defined or not is_read(source, node):
                return
            bound = binding_of(source, node)
            if bound is not None and bound.parameter is not None:
                return  # what a parameter stands for is followed where it is passed
            last = node.value
        elif isinstance(node, cst.Attribute) and node.attr.value in self.defined and source.names(node):
            last = node.attr.value
        else:
            return
        for path, found in self.defined.named(last):
            if not isinstance(self.sources[path].parent(self.sources[path].parent(found) or found), cst.ClassDef):
                yield path, found

    def values(self, path: str, name: cst.Name) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yield the expressions that a name is bound to; for a parameter, those that the program passes for it."""
        bound = binding_of(self.sources[path], name)
        if bound is None:
            yield from ((path, value) for value in _assigned(self.sources[path], name.value))
            return
        if bound.imported is not None:
            module, known = bound.imported
            for file in self._files.get(f"{module.rpartition('.')[2]}.py", ()):
                yield from ((file, value) for value in _assigned(self.sources[file], known))
        if bound.value is not None:
            yield path, bound.value
        function, parameter = bound.scope, bound.parameter
        if parameter is None or not isinstance(function, cst.FunctionDef) or name.value in ("self", "cls"):
            return
        owner = self.sources[path].inside(function, cst.ClassDef)
        own = owner.name.value if owner is not None and function.name.value == "__init__" else None
        for file, value in passed_to(function, parameter, own, self.sources) or ():
            if value is not None:
                yield file, value

    def calls(self, path: str, node: cst.CSTNode) -> Iterator[cst.Call]:
        return self.sources[path].every(cst.Call, node)


def is_read(source: Source, name: cst.Name) -> bool:
    """Whether it is a variable's name that is no parameter's and no import's."""
    return is_variable(source, name) and not isinstance(source.parent(name), cst.Param | cst.ImportAlias | cst.AsName)


@per_source
def _reads(source: Source, node: cst.CSTNode) -> tuple[cst.Name, ...]:
    """Return one place that reads each variable below a node."""
    return tuple({each.value: each for each in source.every(cst.Name, node) if is_read(source, each)}.values())


def _assigned(source: Source, name: str) -> Sequence[cst.BaseExpression]:
    """What assignments give a variable of this name, also as one of several: `train, test = split(data)`."""
    return _assignments(source).get(name, ()) if name in source.words else ()


@per_source
def _assignments(source: Source) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """By the variables that they bind, in the order of the text."""
    found: dict[str, dict[cst.BaseExpression, None]] = {}
    for assign in source.every(cst.Assign):
        for each in (each for target in assign.targets for each in source.every(cst.Name, target.target)):
            if is_variable(source, each):
                found.setdefault(each.value, {})[assign.value] = None
    return {name: tuple(values) for name, values in found.items()}


def _follow(task: _Task) -> None:
    """Do a task and what it yields, each before it goes on; programs are deeper than Python lets functions call."""
    pending = [task]
    while pending:
        following = next(pending[-1], None)
        if following is None:
            pending.pop()
        else:
            pending.append(following)
