"""What the samples of a loader share with the program: names they read, and objects that they may be made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, parameter_of, values_stored
from diagnose.source.dataflow.flow import within
from diagnose.source.samples.object_identity import (
    SAME_MEMORY,
    changes_object,
    is_own,
    local_names,
    root_of,
)
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_names import is_namespace, is_of_model, is_read, owner_of_namespace
from diagnose.source.samples.temporary_objects import is_made_within
from diagnose.source.tree.attributes import attribute_values
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_MODULES = frozenset({"torch", "np", "numpy"})
_OF_LAYERS = frozenset({"weight", "bias", "grad"})
"""Attributes under which layers keep parameters, and those their gradients."""
_OF_ARRAYS = frozenset({"real", "imag", "flat"})
"""Attributes by which the memory of a tensor or an array is read and written."""
_COUNTS = frozenset({"size", "numel", "dim", "item"})
"""Methods that return numbers."""
_NUMBERS = ("builtins.len", "builtins.int", "builtins.float", "builtins.bool", "builtins.str", "builtins.round")
_SCOPES = (cst.FunctionDef, cst.Lambda, cst.ClassDef)


@dataclass(frozen=True)
class SharedObjects:
    """What the code that makes samples reads."""

    code: SampleCode
    datasets: frozenset[str]
    """Code of the expressions that the loader is given, where they are no calls."""

    @cached_property
    def read(self) -> tuple[set[str], set[str], set[str]]:
        """Names of attributes, of globals and of items that samples read."""
        attributes: set[str] = set()
        variables: set[str] = set()
        items: set[str] = set()
        for node, path in self.code.sampling.items():
            source = self.code.sources[path]
            own = local_names(source, node)
            for each in source.walk(node, cst.Attribute, cst.Name, cst.Subscript, cst.Call):
                if isinstance(each, cst.Attribute):
                    attributes.add(each.attr.value)
                elif isinstance(each, cst.Name) and is_read(source, each) and each.value not in own:
                    variables.add(each.value)
                elif isinstance(each, cst.Subscript | cst.Call):
                    keys = (one for one in source.every(cst.SimpleString, each) if not _is_key_of_own(source, one))
                    items |= {text for one in keys if (text := string(one)) is not None}
        return attributes, variables, items

    @cached_property
    def whole(self) -> set[str]:
        """Names of globals that samples call, or hand on: all that lies in them counts."""
        found: set[str] = set()
        for node, path in self.code.sampling.items():
            source = self.code.sources[path]
            for each in source.every(cst.Name, node):
                parent = source.parent(each)
                part = isinstance(parent, cst.Attribute) and parent.value is each
                above = source.parent(parent) if part and parent is not None else None
                called = isinstance(above, cst.Call) and above.func is parent
                if each.value in self.read[1] and is_read(source, each) and (called or not part):
                    found.add(each.value)
        return found

    @cached_property
    def given(self) -> set[str]:
        """Code of the variables and attributes that the dataset and what it takes are made from."""
        found: set[str] = set()
        for node, path in self.code.building.items():
            if isinstance(node, cst.FunctionDef):
                continue
            source = self.code.sources[path]
            for each in source.walk(node, cst.Attribute, cst.Name):
                root = each.value if isinstance(each, cst.Attribute) else each
                if isinstance(root, cst.Name) and _lambdas_of(source, root):
                    continue
                loops = _comprehensions_of(source, each) if isinstance(each, cst.Name) else []
                found |= {
                    source.code(one)
                    for loop in loops
                    for one in source.walk(loop.iter, cst.Name, cst.Attribute)
                    if (isinstance(one, cst.Attribute) or (isinstance(one, cst.Name) and is_read(source, one)))
                    and not _is_called(source, one)
                }
                variable = isinstance(each, cst.Name) and is_read(source, each) and not loops
                if variable or (isinstance(each, cst.Attribute) and isinstance(each.value, cst.Name)):
                    found.add(source.code(each))
        return found - {"self", "torch", "np", "nn"}

    def is_shared(self, path: str, target: cst.BaseExpression) -> bool:
        """Whether a target that some statement changes is, or may be, a part of what samples read."""
        source = self.code.sources[path]
        attributes, variables, items = self.read
        node, keys = target, set()
        while isinstance(node, cst.Subscript):
            inner = node.slice[0].slice
            keys |= {string(inner.value)} if isinstance(inner, cst.Index) else set()
            node = node.value
        if isinstance(node, cst.Attribute) and node.attr.value in _OF_ARRAYS:
            node = node.value
        if is_namespace(source, node):
            named = not keys or None in keys or not keys.isdisjoint(attributes | variables)
            of = owner_of_namespace(node)
            return named and (of is None or self.may_be_shared(path, of))
        changed = (node is not target or changes_object(source, target)) and not _takes_text(source, target)
        if source.code(node) in self.given and changed:
            return not is_of_model(source, node) and self._may_be_given(path, node)
        root = root_of(node)
        if root is not node and isinstance(root, cst.Name) and root.value in self.whole:
            replaced = isinstance(node, cst.Attribute) and node.value is root and node.attr.value in self._methods
            return (replaced or self._is_bound_again(path, root)) and not is_of_model(source, root)
        if root is not node and isinstance(root, cst.Name) and root.value in self.given and self._is_layer(path, root):
            return True  # whoever calls it computes with all that lies in it
        if isinstance(node, cst.Attribute):
            name = node.attr.value
            of_dataset = isinstance(node.value, cst.Attribute) and node.value.attr.value == "dataset"
            of_dataset = of_dataset or source.code(node.value) in self.datasets
            known = of_dataset or name in attributes | variables | self._methods
            return self.may_be_shared(path, node.value) if known else changed and self._is_another_name(path, node)
        if isinstance(node, cst.Name):
            names = (each for loop in _gone_through(source, node) for each in source.every(cst.Name, loop))
            through = [each for each in names if not _is_called(source, each)]
            if changed and any(
                each.value in self.given and is_read(source, each) and self._may_be_given(path, each)
                for each in through
            ):
                return not is_of_model(source, node)
            bound = binding_of(source, node) if changed else None
            if bound is not None and bound.parameter is not None and not is_own(source, node):
                given = self.code.values(path, node)
                if any(self.code.sources[file].code(value) in self.given for file, value in given):
                    return True
            if changed and self._is_another_name(path, node):
                return True
            if keys & items:
                return self.may_be_shared(path, node)
            if node.value in variables:
                return self._is_bound_again(path, node)
        return False

    def _may_be_given(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether a variable that has the name of what the dataset is made from may be that, or its object.

        A local variable of another function is neither where it is evidently a number: no two share one.
        """
        if not self._is_local_elsewhere(path, node):
            return True
        assert isinstance(node, cst.Name)
        return not self._is_number(path, node, frozenset())

    def _is_number(self, path: str, node: cst.BaseExpression, seen: frozenset[str]) -> bool:
        """Whether an expression is evidently a number, text or a shape, which nothing changes in place."""
        source = self.code.sources[path]
        if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
            return self._is_number(path, node.left, seen) and self._is_number(path, node.right, seen)
        if isinstance(node, cst.UnaryOperation):
            return self._is_number(path, node.expression, seen)
        if isinstance(node, cst.IfExp):
            return self._is_number(path, node.body, seen) and self._is_number(path, node.orelse, seen)
        if isinstance(node, cst.Subscript):
            return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
        if isinstance(node, cst.Call):
            counts = isinstance(node.func, cst.Attribute) and node.func.attr.value in _COUNTS
            return counts or source.is_called(node.func, *_NUMBERS)
        if not isinstance(node, cst.Name):
            return isinstance(node, cst.BaseNumber | cst.SimpleString | cst.FormattedString)
        if node.value in {"True", "False", "None"}:
            return True
        if node.value in seen:
            return False
        made = self._bound_locally(path, node)
        return bool(made) and all(self._is_number(file, value, seen | {node.value}) for file, value in made)

    def _bound_locally(self, path: str, name: cst.Name) -> list[tuple[str, cst.BaseExpression]]:
        """All that a variable of a function is bound to or given, with its file; empty where some of that is unknown.

        `n *= 2` makes a number of a number, and is no other binding.
        """
        source = self.code.sources[path]
        function = source.inside(name, cst.FunctionDef)
        if function is None or any(item.name.value == name.value for item in source.every(cst.NameItem, function)):
            return []
        parameter = parameter_of(function, name.value)
        uses = [each for each in source.named(name.value, function) if source.inside(each, _SCOPES) is function]
        made = values_stored(source, [each for each in uses if not isinstance(source.parent(each), cst.AugAssign)])
        if parameter is None or made is None:
            return [(path, value) for value in made or ()]
        given = list(self.code.values(path, parameter.name))
        if not given:
            return []
        default = [(path, parameter.default)] if parameter.default is not None else []
        return [*given, *default, *((path, value) for value in made)]

    def _is_local_elsewhere(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether a name is a local variable, no parameter, of a function that makes nothing of the dataset with it."""
        source = self.code.sources[path]
        function = source.inside(node, cst.FunctionDef)
        if not isinstance(node, cst.Name) or function is None or node.value not in local_names(source, function):
            return False
        bound = binding_of(source, node)
        if bound is not None and bound.parameter is not None:
            return False
        return not any(
            made_at == path and (made is function or within(source, made, function) or within(source, function, made))
            for made, made_at in self._makes_with.get(node.value, ())
        )

    @cached_property
    def _makes_with(self) -> Mapping[str, Sequence[tuple[cst.CSTNode, str]]]:
        """Return, by the name of a variable, the functions that make something of the dataset with it, with their
        files."""
        found: dict[str, list[tuple[cst.CSTNode, str]]] = {}
        for node, path in self.code.building.items():
            source = self.code.sources[path]
            for each in () if isinstance(node, cst.FunctionDef) else source.every(cst.Name, node):
                function = source.inside(each, cst.FunctionDef)
                if function is not None:
                    found.setdefault(each.value, []).append((function, path))
        return found

    def _is_layer(self, path: str, name: cst.Name) -> bool:
        """Whether a variable is bound to a layer of torch's."""
        made = ((file, value) for file, value in self.code.values(path, name) if isinstance(value, cst.Call))
        return any(
            called.startswith("torch.nn.")
            for file, value in made
            if isinstance(value, cst.Call)
            for called in self.code.sources[file].names(value.func)
        )

    @cached_property
    def _methods(self) -> set[str]:
        """Functions that make samples, as a program may replace one: `Images.__getitem__ = other`."""
        return {node.name.value for node in self.code.sampling if isinstance(node, cst.FunctionDef)}

    def _is_another_name(self, path: str, node: cst.Name | cst.Attribute) -> bool:
        """Whether a variable or an attribute may be bound to memory of what samples read."""
        bound = (
            self.code.values(path, node) if isinstance(node, cst.Name) else attribute_values(self.code.sources, node)
        )
        return any(self._is_part(file, value) for file, value in bound)

    def _is_part(self, path: str, value: cst.BaseExpression, depth: int = 3) -> bool:
        """Whether an expression may be memory of what samples read: `data.targets`, or a call that returns it."""
        while not isinstance(value, cst.Attribute):
            if isinstance(value, cst.Subscript):
                value = value.value
            elif isinstance(value, cst.Name):
                made = list(self.code.values(path, value))
                if value.value in self.read[1] and self._is_bound_again(path, value):
                    return not made or not all(self._is_number(file, each, frozenset()) for file, each in made)
                return depth > 0 and any(self._is_part(file, each, depth - 1) for file, each in made)
            elif (
                isinstance(value, cst.Call)
                and isinstance(value.func, cst.Attribute)
                and value.func.attr.value in SAME_MEMORY
            ):
                inner = value.func.value
                of_module = value.args and isinstance(inner, cst.Name) and inner.value in _MODULES
                value = value.args[0].value if of_module else inner
            else:
                called = self.code.defined.named(call_name(value)) if isinstance(value, cst.Call) and depth else ()
                returned = (
                    (file, each) for file, found in called for each in self.code.sources[file].every(cst.Return, found)
                )
                return any(each.value and self._is_part(file, each.value, depth - 1) for file, each in returned)
        return value.attr.value in self.read[0] and self.may_be_shared(path, value.value)

    def _is_bound_again(self, path: str, name: cst.Name) -> bool:
        """Whether a variable that samples read as a free one gets another value, or its object another state."""
        source = self.code.sources[path]
        if path not in self.code.sampling.values():
            return False
        function = source.inside(name, cst.FunctionDef)
        if function is None or name.value not in local_names(source, function):
            return True  # a global
        return any(  # a closure
            name.value not in local_names(source, each) and next(source.named(name.value, each), None) is not None
            for each in self._sampling_within.get(function, ())
        )

    @cached_property
    def _sampling_within(self) -> Mapping[cst.CSTNode, Sequence[cst.CSTNode]]:
        """The code that makes samples, by the functions that it is defined in."""
        found: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        for each, path in self.code.sampling.items():
            for above in self.code.sources[path].ancestors(each):
                if isinstance(above, cst.FunctionDef):
                    found.setdefault(above, []).append(each)
        return found

    def may_be_shared(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether an object may be one that samples read from, as far as what makes it shows."""
        source = self.code.sources[path]
        if is_own(source, node):
            owner = source.inside(node, cst.ClassDef)
            return owner is None or owner in self.code.lasting
        root = root_of(node)
        if is_of_model(source, root) or (isinstance(node, cst.Attribute) and self._is_of_layer(source, node)):
            return False
        if isinstance(node, cst.Name):
            made = list(self.code.values(path, node))
        elif isinstance(node, cst.Attribute):
            made = list(attribute_values(self.code.sources, node))
        else:
            return True
        calls = [(file, value) for file, value in made if isinstance(value, cst.Call)]
        if not made or len(calls) < len(made):
            return True
        return any(self._makes_shared(file, value) for file, value in calls if isinstance(value, cst.Call))

    def _is_of_layer(self, source: Source, node: cst.Attribute) -> bool:
        """Whether a target is a part of a layer's parameter, as `x.weight.data`, and no column of a table."""
        part, name = source.parent(node), node.attr.value
        changed = isinstance(part, cst.Attribute) and part.attr.value in {"data", "grad"}
        return changed and name in _OF_LAYERS and name not in self.read[0] | self.read[2]

    def _makes_shared(self, path: str, call: cst.Call) -> bool:
        defined = [each for _, each in self.code.defined.named(call_name(call)) if isinstance(each, cst.ClassDef)]
        if defined:
            return any(each in self.code.lasting for each in defined)
        names = self.code.sources[path].names(call.func)
        return not any(name.startswith(("torch.nn", "torch.optim", "torchvision.models")) for name in names)


def _is_key_of_own(source: Source, key: cst.SimpleString) -> bool:
    """Whether a text is a key of a dictionary that the code makes: `{"x": x}`, and `sample["x"]` where nobody else has
    it."""
    index = source.parent(key)
    part = source.parent(source.parent(index) or key) if isinstance(index, cst.Index) else None
    own = isinstance(part, cst.Subscript) and isinstance(part.value, cst.Name) and is_made_within(source, part.value)
    return own or (isinstance(index, cst.DictElement) and index.key is key)


def _takes_text(source: Source, target: cst.BaseExpression) -> bool:
    """Whether a text is added to a variable, which then stands for another one: `tags += "_" + tag`."""
    added = source.parent(target)
    return isinstance(target, cst.Name) and isinstance(added, cst.AugAssign) and _is_text(added.value)


def _is_text(node: cst.BaseExpression) -> bool:
    """Whether an expression is evidently a text."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Modulo):
        return _is_text(node.left) or (isinstance(node.operator, cst.Add) and _is_text(node.right))
    return isinstance(node, cst.SimpleString | cst.ConcatenatedString | cst.FormattedString)


def _comprehensions_of(source: Source, name: cst.Name) -> list[cst.CompFor]:
    """The loops of a comprehension around whose variable a name is, which nobody else sees."""
    around = (above for above in source.ancestors(name) if isinstance(above, cst.BaseComp))
    return [
        loop
        for above in around
        for loop in source.every(cst.CompFor, above)
        if any(each.value == name.value for each in source.every(cst.Name, loop.target))
    ]


def _lambdas_of(source: Source, name: cst.Name) -> list[cst.Lambda]:
    """The lambdas around of which a name is a parameter, and no variable of the program's."""
    around = (above for above in source.ancestors(name) if isinstance(above, cst.Lambda))
    return [each for each in around if parameter_of(each, name.value) is not None and within(source, name, each.body)]


def _is_called(source: Source, node: cst.CSTNode) -> bool:
    """Whether a name is what a call calls, as `enumerate` is in `enumerate(paths)`."""
    parent = source.parent(node)
    return isinstance(parent, cst.Call) and parent.func is node


def _gone_through(source: Source, name: cst.Name) -> list[cst.BaseExpression]:
    """Return what the loops around go through that a name is the variable of, and `map` with a lambda."""
    around = (above for above in source.ancestors(name) if isinstance(above, cst.For))
    loops = [each for each in around if any(one.value == name.value for one in source.every(cst.Name, each.target))]
    calls = [(each, source.inside(each, cst.Call)) for each in _lambdas_of(source, name)]
    beside = [arg.value for each, call in calls if call is not None for arg in call.args if arg.value is not each]
    return [*(each.iter for each in loops), *(each.iter for each in _comprehensions_of(source, name)), *beside]
