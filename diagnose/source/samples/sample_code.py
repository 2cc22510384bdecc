"""The program's own code that a data loader runs: what builds its dataset, and what makes each sample.

It is followed from the dataset's `__getitem__` and the collate function through the program's own functions and
classes, in all of its files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, parameter_of, passed_to
from diagnose.source.dataflow.flow import is_variable, within
from diagnose.source.samples.sample_names import (
    attribute_of,
    hands_itself_on,
    imported_as,
    is_of_library,
    is_of_object,
    is_read,
    module_of,
    place_in,
    reads,
    returned_at,
)
from diagnose.source.tree.attributes import is_of_self, members_named
from diagnose.source.tree.definitions import Definition, Definitions, is_foreign
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_WITHOUT_A_NAME = frozenset(
    {"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"}
    | {"__missing__", "__getattr__", "__contains__", "__enter__", "__exit__"}
)
"""Methods that the loader or Python calls, which no code names."""
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
    handing_out: dict[tuple[cst.FunctionDef, int | None], bool] = field(default_factory=dict)
    """Whether methods of datasets return objects that are kept, all or one of several, as far as somebody has asked."""
    without_handle: dict[tuple[cst.Name, bool], int] = field(default_factory=dict)
    """How far names have been followed to open files and the like in vain, or are just being followed."""
    makes_changer: bool | None = None
    """Whether a library's object that writes to its input is made for samples, where somebody has asked."""

    def __post_init__(self) -> None:
        self.defined = Definitions(self.sources)
        self._methods = set(_WITHOUT_A_NAME)
        """Names of what is called on some object for a sample."""
        self._others: dict[str, list[_Method]] = {}
        """Methods of the classes that have another name, by it."""
        self._due: list[_Method] = []
        """Methods with one of these names, as a heap; some of them may have been followed already."""
        self._called: set[cst.CSTNode] = set()
        """Functions that code which is followed calls, and nothing else has reached: it passes all they are given."""

    @cached_property
    def _files(self) -> Mapping[str, Sequence[str]]:
        """Return the files by the last part of their names."""
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

    def _builds(self, path: str, node: cst.CSTNode, called: bool = False) -> _Task:
        """Follow what builds; `called`: a function, from a call of it that is followed with all its arguments."""
        if node in self.building and (called or node not in self._called):
            return
        self.building[node] = path
        self._called -= {node}
        if called:
            self._called.add(node)
        source = self.sources[path]
        for function in source.every(cst.Lambda, node):
            yield self._samples(path, function)
        owner = source.inside(node, cst.ClassDef)
        if owner is not None and any(hands_itself_on(source, name) for name in source.every(cst.Name, node)):
            yield self._of_class(path, owner, lasting=True)
        callees = {call.func for call in source.every(cst.Call, node)}
        for name, attributes in reads(source, node):
            bound = binding_of(source, name) if called else None
            if bound is not None and bound.parameter is not None and bound.scope is node:
                continue
            for file, value in self.values(path, name, attributes):
                if not called or file != path or not within(source, value, node):
                    for where, part in self._returned(file, value, name) or self._read_of(file, value, attributes):
                        yield self._builds(where, part)
        for file, owner_of_it, method in self._bound_methods(source, node):
            yield self._of_class(file, owner_of_it, lasting=True)
            yield self._samples(file, method)
        for each in source.walk(node, cst.Name, cst.Attribute):
            for file, found in self.named(source, each):
                if isinstance(found, cst.ClassDef):
                    yield self._of_class(file, found, lasting=True, called=True)
                elif each in callees:
                    yield self._builds(file, found, called=True)
                else:
                    yield self._samples(file, found)

    def _returned(
        self, path: str, value: cst.BaseExpression, name: cst.Name
    ) -> Sequence[tuple[str, cst.BaseExpression]]:
        """Return what the program's functions return for a variable that is one of several: `model, data = build()`."""
        source = self.sources[path]
        place = place_in(source, value, name.value)
        parts: list[tuple[str, cst.BaseExpression]] = []
        if place is None or not isinstance(value, cst.Call):
            return parts
        for file, found in self.named(source, value.func):
            returned = returned_at(self.sources[file], found, place) if isinstance(found, cst.FunctionDef) else ()
            if not returned:
                return []
            parts += [(file, each) for each in returned]
        return parts

    def _read_of(
        self, path: str, value: cst.BaseExpression, attributes: frozenset[str] | None
    ) -> Sequence[tuple[str, cst.BaseExpression]]:
        """Return what the program's class stores in the attributes that are read of a new object of it, where it
        stores them all; else the value itself.
        """
        source = self.sources[path]
        made = list(self.named(source, value.func)) if isinstance(value, cst.Call) and attributes else []
        parts: list[tuple[str, cst.BaseExpression]] = []
        for file, found in made:
            for name in attributes or ():
                stored = members_named(self.sources[file], found, name) if isinstance(found, cst.ClassDef) else []
                if not stored or self.defined.named(name):
                    return [(path, value)]
                parts += [(file, each) for each in stored]
        return parts or [(path, value)]

    def _bound_methods(self, source: Source, node: cst.CSTNode) -> Iterator[tuple[str, cst.ClassDef, cst.FunctionDef]]:
        """Methods of the program's classes that an expression takes as values, `self.collate`, with file and class."""
        for each in source.every(cst.Attribute, node):
            above = source.parent(each)
            taken = isinstance(above, cst.Arg) and above.value is each
            if (not taken and each is not node) or self._is_stored(source, each):
                continue
            for file, found in self.defined.named(each.attr.value):
                owner = self.sources[file].inside(found, cst.ClassDef)
                if isinstance(found, cst.FunctionDef) and isinstance(owner, cst.ClassDef):
                    yield file, owner, found

    def _samples(self, path: str, node: cst.FunctionDef | cst.Lambda) -> _Task:
        """Follow code that runs for each sample into what it calls."""
        if node in self.sampling:
            return
        self.sampling[node] = path
        source = self.sources[path]
        callees = {call.func for call in source.every(cst.Call, node)}
        for each in source.walk(node, cst.Name, cst.Attribute):
            for file, found in self.named(source, each):
                decorates = source.inside(each, cst.Decorator) is not None
                if found is not node and not (decorates and isinstance(found, cst.FunctionDef)):
                    yield self._goes_to(file, found, lasting=decorates, called=each in callees)
                for function in _run_with(source, each, self.sources[file], found, decorates):
                    yield self._samples(file, function)
        # A property is read, and a method may be passed on: each attribute counts, called or not.
        read = (each for each in source.every(cst.Attribute, node) if not is_of_library(source, each.value))
        new = {each.attr.value for each in read} - self._methods
        self._methods |= new
        for method in (method for name in new for method in self._others.pop(name, ())):
            heappush(self._due, method)
        while self._due:
            _, _, file, function = heappop(self._due)
            yield self._samples(file, function)
        for name, _ in reads(source, node):
            bound = binding_of(source, name)
            if bound is not None and isinstance(bound.scope, cst.Module) and isinstance(bound.value, cst.Call):
                yield self._builds(path, bound.value)

    def _goes_to(self, path: str, found: Definition, lasting: bool = False, called: bool = False) -> _Task:
        if isinstance(found, cst.ClassDef):
            return self._of_class(path, found, lasting, called)
        return self._samples(path, found)

    def _of_class(self, path: str, found: cst.ClassDef, lasting: bool = False, called: bool = False) -> _Task:
        reached = called or found not in self._called
        if found in self.classes and (found in self.lasting or not lasting) and reached:
            return
        self._called -= {found}
        if called:
            self._called.add(found)
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
                yield self._builds(path, method, called)
        for base in found.bases:
            for file, above in self.named(source, base.value):
                if isinstance(above, cst.ClassDef):
                    yield self._of_class(file, above, lasting, called)

    def reads_attribute(self, node: cst.BaseExpression) -> bool:
        """Whether samples read an attribute of the name of this one."""
        return isinstance(node, cst.Attribute) and node.attr.value in self._methods

    def named(self, source: Source, node: cst.CSTNode) -> Iterator[tuple[str, Definition]]:
        """The program's own functions and classes, no methods, that a name or `module.name` may stand for."""
        if isinstance(node, cst.Name):
            last = node.value if self.defined.has_free(node.value) else imported_as(source, node)
            if not self.defined.has_free(last) or not is_read(source, node):
                return
            bound = binding_of(source, node)
            if bound is not None and bound.parameter is not None:
                return  # what a parameter stands for is followed where it is passed
        elif isinstance(node, cst.Attribute) and self.defined.has_free(node.attr.value) and source.names(node):
            if self._is_stored(source, node) or is_of_object(source, node):
                return  # what is stored is followed where it is stored
            last = node.attr.value
        else:
            return
        if not is_foreign(source, node, self.sources) and source.inside(node, cst.Annotation) is None:
            found = self.defined.free(last)
            modules = {name.rpartition(".")[0].rpartition(".")[2] for name in source.imported(node)}
            for file, each in [each for each in found if module_of(each[0]) in modules] or found:
                around = self.sources[file].inside(each, cst.FunctionDef)
                if around is None or (self.sources[file] is source and within(source, node, around)):
                    yield file, each  # what a function defines, nobody else names

    def _is_stored(self, source: Source, node: cst.Attribute) -> bool:
        """Whether a node is `self.name` of an object whose class, or one above it, stores a value there, and so no
        function of that name."""
        name, around = node.attr.value, source.inside(node, cst.ClassDef) if is_of_self(node) else None
        classes = [(source, around)] if isinstance(around, cst.ClassDef) else []
        for its, made in classes:  # and those above it
            if members_named(its, made, name):
                return True
            above = {its.code(base.value).rpartition(".")[2] for base in made.bases}
            for file, each in (found for base in above for found in self.defined.named(base)):
                if isinstance(each, cst.ClassDef) and not any(each is known for _, known in classes):
                    classes.append((self.sources[file], each))
        return False

    def values(
        self, path: str, name: cst.Name, attributes: frozenset[str] | None = None
    ) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yield the expressions that a name is bound to; for a parameter, those that the program passes for it.

        `attributes`: all that is read of it, where no more than these is; None, all may be.
        """
        around = self.sources[path].inside(name, cst.Lambda)
        if around is not None and parameter_of(around, name.value) is not None:
            return  # the program's variable of that name is another
        bound = binding_of(self.sources[path], name)
        if bound is None:
            yield from ((path, value) for value in _given(self.sources[path], name, attributes))
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

    def is_passed_all(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether a node is a parameter of a function that only code which is followed calls."""
        bound = binding_of(self.sources[path], node) if isinstance(node, cst.Name) else None
        return bound is not None and bound.parameter is not None and bound.scope in self._called

    def calls(self, path: str, node: cst.CSTNode) -> Iterator[cst.Call]:
        return self.sources[path].every(cst.Call, node)


def _run_with(
    source: Source, name: cst.CSTNode, its: Source, found: Definition, decorates: bool
) -> Iterator[cst.FunctionDef]:
    """Yield the constructor of a class where a name calls it, and what a decorator puts around a function."""
    functions = list(its.every(cst.FunctionDef, found))
    call = source.parent(name)
    if isinstance(found, cst.ClassDef):
        called = isinstance(call, cst.Call) and call.func is name
        yield from (each for each in functions if called and each.name.value == "__init__")
    elif decorates:
        around = (each for each in functions if each is not found)
        yield from (each for each in around if not any(each in its.ancestors(other) for other in functions))


def _given(source: Source, name: cst.Name, attributes: frozenset[str] | None) -> Iterator[cst.BaseExpression]:
    """Yield what assignments give a variable where it is read, or anywhere in the file one of the attributes that are
    read of it: an object has another name in another function, and mostly the same."""
    around = set(source.ancestors(name))
    for each in _assignments(source).get(name.value, ()):
        if each.attribute is not None:
            if attributes is None or each.attribute in attributes:
                yield each.value
        elif each.scope is None or each.scope in around:
            yield each.value


def _assigned(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what assignments give a variable of this name, also as one of several: `train, test = split(data)`."""
    found = _assignments(source).get(name, ()) if name in _variables(source) else ()
    yield from {each.value: None for each in found}


@per_source
def _variables(source: Source) -> frozenset[str]:
    """The variables in what assignments bind; the file is not parsed for them."""
    targets = (target for each in source.outline.every(ast.Assign) for target in each.targets)
    return frozenset(each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


@dataclass(frozen=True, slots=True)
class _Assignment:
    value: cst.BaseExpression
    attribute: str | None
    """The attribute of the variable that gets the value, where it is not the variable itself."""
    scope: cst.CSTNode | None
    """The scope in which the variable is one; None where a function binds that of another."""


@per_source
def _assignments(source: Source) -> Mapping[str, Sequence[_Assignment]]:
    """Return the assignments by the variables that they bind, in the order of the text."""
    found: dict[str, dict[_Assignment, None]] = {}
    for assign in source.every(cst.Assign):
        for each in (each for target in assign.targets for each in source.every(cst.Name, target.target)):
            if is_variable(source, each) and source.inside(each, cst.SubscriptElement) is None:  # `kept[each] = value`
                made = _Assignment(assign.value, attribute_of(source, each), _scope(source, each))
                found.setdefault(each.value, {})[made] = None
    return {name: tuple(values) for name, values in found.items()}


def _scope(source: Source, name: cst.Name) -> cst.CSTNode | None:
    scope = source.inside(name, (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.Module))
    for each in source.walk(scope, cst.Global, cst.Nonlocal):
        if isinstance(each, cst.Global | cst.Nonlocal) and any(item.name.value == name.value for item in each.names):
            return None
    return scope


def _follow(task: _Task) -> None:
    """Do a task and what it yields, each before it goes on; programs are deeper than Python lets functions call."""
    pending = [task]
    while pending:
        following = next(pending[-1], None)
        if following is None:
            pending.pop()
        else:
            pending.append(following)
