"""The program's own code that a data loader runs: what builds its dataset, and what makes each sample.

It is followed from the dataset's `__getitem__` and the collate function through the program's own functions and
classes, in all of its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.dataflow.flow import is_variable
from diagnose.source.tree.syntax import Source

__all__ = ["SampleCode", "is_read"]

_BY_THE_LOADER = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"})
_Definition = cst.ClassDef | cst.FunctionDef


@dataclass
class SampleCode:
    """The program's own code that a loader runs: what builds its dataset, and what makes each sample."""

    sources: Mapping[str, Source]
    building: dict[cst.CSTNode, str] = field(default_factory=dict)
    """Run once, by the file that it lies in."""
    sampling: dict[cst.FunctionDef | cst.Lambda, str] = field(default_factory=dict)
    """Run for each sample."""
    paths: dict[cst.ClassDef, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.defined: dict[str, list[tuple[str, _Definition]]] = {}
        self.classes: set[cst.ClassDef] = set()
        self.methods: set[str] = set()
        """Names of what is called on some object for a sample."""
        for path, source in self.sources.items():
            for each in source.walk():
                if isinstance(each, cst.ClassDef | cst.FunctionDef):
                    self.defined.setdefault(each.name.value, []).append((path, each))

        self.lasting: set[cst.ClassDef] = set()
        """Classes of which an instance lives on from one sample to the next."""

    def builds(self, path: str, node: cst.CSTNode) -> None:
        """Follow an expression, or a function's body, that makes a dataset, a transform or a collate function."""
        if node in self.building:
            return
        self.building[node] = path
        source = self.sources[path]
        for function in source.every(cst.Lambda, node):
            self.samples(path, function)
        called = {call.func for call in source.every(cst.Call, node)}
        for name in _reads(source, node):
            for file, value in self.values(path, name):
                self.builds(file, value)
        for each in source.walk(node):
            for file, found in self.named(source, each):
                if isinstance(found, cst.ClassDef):
                    self._of_class(file, found, lasting=True)
                elif each in called:
                    self.builds(file, found)
                else:
                    self.samples(file, found)

    def makes_samples_by(self, name: str) -> None:
        """Follow a class or function that the run saw at work."""
        for path, found in self.defined.get(name.rpartition(".")[2], ()):
            self._goes_to(path, found, lasting=True)

    def samples(self, path: str, node: cst.FunctionDef | cst.Lambda) -> None:
        """Follow code that runs for each sample into what it calls."""
        if node in self.sampling:
            return
        self.sampling[node] = path
        source = self.sources[path]
        for each in source.walk(node):
            for file, found in self.named(source, each):
                if found is not node:
                    self._goes_to(file, found)
        # A property is read, and a method may be passed on: each attribute counts, called or not.
        self.methods |= {each.attr.value for each in source.every(cst.Attribute, node)}
        for owner in list(self.classes):
            self._its_methods(owner)
        for name in _reads(source, node):
            bound = binding_of(source, name)
            if bound is not None and isinstance(bound.scope, cst.Module) and isinstance(bound.value, cst.Call):
                self.builds(path, bound.value)

    def _goes_to(self, path: str, found: _Definition, lasting: bool = False) -> None:
        if isinstance(found, cst.ClassDef):
            self._of_class(path, found, lasting)
        else:
            self.samples(path, found)

    def _of_class(self, path: str, found: cst.ClassDef, lasting: bool = False) -> None:
        if found in self.classes and (found in self.lasting or not lasting):
            return
        if lasting:
            self.lasting.add(found)
        self.classes.add(found)
        source = self.sources[path]
        self.paths[found] = path
        self._its_methods(found)
        for function in source.every(cst.FunctionDef, found):
            if function.name.value == "__init__":
                self.builds(path, function)
        for base in found.bases:
            for file, above in self.named(source, base.value):
                if isinstance(above, cst.ClassDef):
                    self._of_class(file, above, lasting)

    def _its_methods(self, owner: cst.ClassDef) -> None:
        path = self.paths[owner]
        for function in self.sources[path].every(cst.FunctionDef, owner):
            if function.name.value in _BY_THE_LOADER | self.methods:
                self.samples(path, function)

    def named(self, source: Source, node: cst.CSTNode) -> Iterator[tuple[str, _Definition]]:
        """The program's own functions and classes, no methods, that a name or `module.name` may stand for."""
        if isinstance(node, cst.Name):
            bound = binding_of(source, node) if is_read(source, node) and node.value in self.defined else None
            if not is_read(source, node) or (bound is not None and bound.parameter is not None):
                return  # what a parameter stands for is followed where it is passed
            last = node.value
        elif isinstance(node, cst.Attribute) and source.names(node):
            last = node.attr.value
        else:
            return
        for path, found in self.defined.get(last, ()):
            if not isinstance(self.sources[path].parent(self.sources[path].parent(found) or found), cst.ClassDef):
                yield path, found

    def values(self, path: str, name: cst.Name) -> Iterator[tuple[str, cst.BaseExpression]]:
        """What a name is bound to; of a parameter, what the program passes for it."""
        bound = binding_of(self.sources[path], name)
        if bound is None:
            yield from ((path, value) for value in _assigned(self.sources[path], name.value))
            return
        if bound.imported is not None:
            module, known = bound.imported
            for file, source in self.sources.items():
                if file.rpartition("/")[2] == f"{module.rpartition('.')[2]}.py":
                    yield from ((file, value) for value in _assigned(source, known))
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


def _reads(source: Source, node: cst.CSTNode) -> Iterator[cst.Name]:
    """Of each variable below a node, one place that reads it."""
    yield from {each.value: each for each in source.every(cst.Name, node) if is_read(source, each)}.values()


def _assigned(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """What assignments give a variable of this name, also as one of several: `train, test = split(data)`."""
    for assign in source.every(cst.Assign) if name in source.text else ():
        bound = (each for target in assign.targets for each in source.named(name, target.target))
        if any(is_variable(source, each) for each in bound):
            yield assign.value
