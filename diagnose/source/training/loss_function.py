"""The function of the program's own that a training step takes its loss by, whatever it is called by.

    loss_of = torch.compile(token_loss) if device.type == "cuda" else token_loss
    loss = loss_of(model(x), y)          # leads to `def token_loss(logits, targets)`

It is followed through other names for it, `torch.compile`, `a if … else b`, imports, members of `self`, parameters, and
instances of a module of the program's own, as long as all ways lead to one function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, bound_to, passed_to
from diagnose.source.dataflow.reaching_definitions import Bound, definition_of, names_in, reaching, statement_of
from diagnose.source.patterns.cross_entropy import CrossEntropy, Step, Unlaid, flattened
from diagnose.source.tree.attributes import class_of, members_named
from diagnose.source.tree.definitions import module_file
from diagnose.source.tree.syntax import Source, only_statement, parse

COMPUTES_AS_WRITTEN = re.compile(r"\b(?:autocast|custom_fwd|compile|disable|typechecked|jaxtyped|override)\b")
"""Decorators that hand any parameter on, and the outcome as it is."""
_BOUND = frozenset({"self", "cls"})
_MOVES = frozenset({"to", "cuda"})
_ONLY_MAKE = ("torch.", "functools.partial")
"""Names of functions that do nothing beside."""
_DEEPEST = 8


@dataclass(frozen=True)
class LossFunction:
    """A function or a lambda, in its file."""

    source: Source
    node: cst.FunctionDef | cst.Lambda

    @property
    def parameters(self) -> list[str]:
        """The parameters that a call can pass by position, in order, without `self`."""
        names = [each.name.value for each in (*self.node.params.posonly_params, *self.node.params.params)]
        return names[1:] if self._is_bound else names

    @property
    def _is_bound(self) -> bool:
        method = isinstance(self.node, cst.FunctionDef) and class_of(self.source, self.node) is not None
        return method and bool(self.node.params.params) and self.node.params.params[0].name.value in _BOUND

    def returns(self, loss: CrossEntropy, laid: Unlaid) -> bool:
        """Whether the function returns the loss and does nothing beside."""
        if isinstance(self.node, cst.Lambda):
            return self.node.body is loss.root
        source, rows = self.source, list[Step]()
        flattened(source, loss.targets, rows)
        known = {id(statement) for statement, _ in (*laid.steps, *rows, *loss.steps)}
        body = self.node.body.body
        returned = only_statement(body[-1]) if body else None
        value = returned.value if isinstance(returned, cst.Return) else None
        if isinstance(value, cst.Name):
            seen = definition_of(source, value)
            known.add(id(seen.statement))
            value = seen.value if isinstance(seen.value, cst.BaseExpression) else None
        return value is loss.root and all(
            id(one) in known or _is_text(one) or _is_shape(source, one, laid) for one in body[:-1]
        )

    def given(self, call: cst.Call, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the expression that a call passes for the parameter that `node` is."""
        names = self.parameters
        if not isinstance(node, cst.Name) or node.value not in names:
            return None
        seen = definition_of(self.source, node).bound
        if isinstance(self.node, cst.FunctionDef) and seen not in {Bound.PARAMETER, Bound.ASSIGNED}:
            return None
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value == node.value:
                return arg.value
        positional = [arg.value for arg in call.args if arg.keyword is None]
        at = names.index(node.value)
        return positional[at] if at < len(positional) else None


def _is_text(statement: cst.CSTNode) -> bool:
    small = only_statement(statement)
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def _is_shape(source: Source, statement: cst.CSTNode, laid: Unlaid) -> bool:
    small = only_statement(statement)
    value = source.code(small.value) if isinstance(small, cst.Assign) else ""
    base = source.code(laid.base)
    return value == f"{base}.shape" or value.startswith(f"{base}.size(")


def loss_function(
    sources: Mapping[str, str], path: str, source: Source, callee: cst.BaseExpression
) -> LossFunction | None:
    """The one function that `callee`, an expression of the file `path`, always is; None where that is not seen."""
    return _only(_Search(sources).of(path, source, callee, ()))


def method_of(sources: Mapping[str, str], source: Source, owner: cst.ClassDef, name: str) -> LossFunction | None:
    """The loss function that is a method of a class of the file; None where the class has none, or another class
    overrides it.
    """
    return _only([_method(sources, source, owner, name)])


def _only(ways: Iterable[LossFunction | None]) -> LossFunction | None:
    """The function that all ways lead to."""
    found = list(ways)
    first = found[0] if found else None
    if first is None or any(each is None or each.node is not first.node for each in found):
        return None
    return first if _computes_as_written(first) else None


def _computes_as_written(function: LossFunction) -> bool:
    """Whether what is called is the function itself, given what the call says."""
    source, node = function.source, function.node
    if isinstance(node.params.star_arg, cst.Param) or node.params.star_kwarg is not None:
        return False
    if isinstance(node, cst.Lambda):
        # What follows names takes a lambda's parameters for variables of the same names around it.
        around = statement_of(source, node)
        return all(reaching(source, around, name).bound is Bound.OUTER for name in function.parameters)
    decorators = [source.code(each.decorator) for each in node.decorators]
    kept = all(code == "staticmethod" or COMPUTES_AS_WRITTEN.search(code) for code in decorators)
    return kept and node.asynchronous is None


@dataclass(frozen=True)
class _Search:
    sources: Mapping[str, str]

    def of(
        self, path: str, source: Source, node: cst.CSTNode, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        """All that an expression may be; None for what is not followed. What only stands for itself is left out."""
        if any(node is each for each in seen):
            return
        seen = (*seen, node)
        if len(seen) > _DEEPEST:
            yield None
        elif isinstance(node, cst.FunctionDef | cst.Lambda):
            yield LossFunction(source, node)
        elif isinstance(node, cst.IfExp):
            for each in (node.body, node.orelse):
                yield from self.of(path, source, each, seen)
        elif isinstance(node, cst.Call):
            yield from self._called(path, source, node, seen)
        elif isinstance(node, cst.Name):
            yield from self._named(path, source, node, seen)
        elif isinstance(node, cst.Attribute):
            yield from self._member(path, source, node, seen)
        else:
            yield None

    def _named(
        self, path: str, source: Source, node: cst.Name, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        values = bound_to(source, node)
        bound = binding_of(source, node) if not values else None
        if bound is not None and bound.imported is not None:
            yield from self._imported(path, *bound.imported, seen)
        elif bound is not None and bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
            yield from self._passed(source, bound.scope, bound.parameter, seen)
        elif not values:
            yield None
        for value in values:
            # `loss_of = torch.compile(loss_of)` says nothing of what it was before.
            yield from self.of(path, source, value, seen) if not isinstance(value, cst.ClassDef) else (None,)

    def _passed(
        self, source: Source, function: cst.FunctionDef, given: cst.Param, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        """Yield what the callers of a function pass it for a parameter."""
        owner = class_of(source, function)
        builds = owner.name.value if owner is not None and function.name.value == "__init__" else None
        read = {file: parse(text) for file, text in self.sources.items()}
        sources = {file: one for file, one in read.items() if one is not None}
        below = builds is not None and _has_subclass(self.sources, builds)  # which passes it to `super().__init__`
        if below or any(_is_handed_on(one, builds or function.name.value) for one in sources.values()):
            yield None
            return
        passed = passed_to(function, given, builds, sources) or []
        # Without a default, a call that passes nothing is of another function: `model.train()`.
        values = [(file, value) for file, value in passed if value is not None or given.default is not None]
        if not values:
            yield None
        for file, value in values:
            yield from self.of(file, sources[file], value, seen) if value is not None else (None,)

    def _imported(
        self, path: str, module: str, name: str, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        file = module_file(module, path, self.sources.keys())
        source = parse(self.sources[file]) if file is not None else None
        functions = source.module.body if source is not None else ()
        there = [one for one in functions if isinstance(one, cst.FunctionDef) and one.name.value == name]
        if file is None or source is None or len(there) != 1:
            yield None
            return
        for value in bound_to(source, there[0].name):
            yield from self.of(file, source, value, seen)

    def _called(
        self, path: str, source: Source, node: cst.Call, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        """`torch.compile(function)`, or an instance of a module of the program's own."""
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _MOVES:
            yield from self.of(path, source, node.func.value, seen)
            return
        if "torch.compile" in source.names(node.func):
            given = [arg.value for arg in node.args if arg.keyword is None or arg.keyword.value == "model"]
            yield from self.of(path, source, given[0], seen) if len(given) == 1 else (None,)
            return
        built = bound_to(source, node.func) if isinstance(node.func, cst.Name) else []
        owner = built[0] if len(built) == 1 else None
        module = isinstance(owner, cst.ClassDef) and _is_plain_module(source, owner)
        yield _method(self.sources, source, owner, "forward") if isinstance(owner, cst.ClassDef) and module else None

    def _member(
        self, path: str, source: Source, node: cst.Attribute, seen: tuple[cst.CSTNode, ...]
    ) -> Iterator[LossFunction | None]:
        """`self.loss_of`: a method of the class around, or what that keeps under the name; `Losses.token_loss`."""
        holders = bound_to(source, node.value) if isinstance(node.value, cst.Name) else []
        holder = holders[0] if len(holders) == 1 else None
        owner = class_of(source, node) if source.code(node.value) == "self" else holder
        if not isinstance(owner, cst.ClassDef):
            known = (name.rpartition(".") for name in source.names(node) if not holders)
            found = [one for module, _, name in known for one in self._imported(path, module, name, seen) if module]
            yield from found or (None,)
            return
        name = node.attr.value
        method, kept = _method(self.sources, source, owner, name), members_named(source, owner, name)
        if method is not None or not kept or _has_others(self.sources, owner, name):
            yield method
        for value in kept:
            if not _compiles_again(source, value, name):
                yield from self.of(path, source, value, seen)


def _method(sources: Mapping[str, str], source: Source, owner: cst.ClassDef, name: str) -> LossFunction | None:
    methods = [one for one in owner.body.body if isinstance(one, cst.FunctionDef) and one.name.value == name]
    if len(methods) != 1 or _has_others(sources, owner, name):
        return None
    return LossFunction(source, methods[0])


def _has_others(sources: Mapping[str, str], owner: cst.ClassDef, name: str) -> bool:
    """Whether a class below may have another one, or an instance: `trainer.token_loss = …`."""
    set_on = re.compile(rf"(?<!self)\.{name}\s*=(?!=)|\bsetattr\([^)]*[\"']{name}[\"']")
    return _has_subclass(sources, owner.name.value) or any(set_on.search(text) for text in sources.values())


def _has_subclass(sources: Mapping[str, str], owner: str) -> bool:
    below = re.compile(rf"class\s+\w+\([^)]*\b{owner}\b")
    return any(below.search(text) for text in sources.values())


def _is_plain_module(source: Source, owner: cst.ClassDef) -> bool:
    """Whether to call an instance is to call `forward`: no class above it but torch's, and no `__call__`."""
    above = [name for base in owner.bases for name in source.names(base.value)]
    own = {one.name.value for one in owner.body.body if isinstance(one, cst.FunctionDef)}
    return len(owner.bases) == 1 and "torch.nn.Module" in above and "__call__" not in own


def _is_handed_on(source: Source, name: str) -> bool:
    """Whether a function or class is a value there, which others may call: `partial(train, model)`."""
    if name not in source.text:
        return False
    holders = (cst.Arg, cst.Assign, cst.Element, cst.DictElement, cst.Return)
    return any(
        isinstance(above := source.parent(one), holders) and above.value is one
        for one in source.every(cst.Name)
        if one.value == name
    )


def _compiles_again(source: Source, value: cst.BaseExpression, name: str) -> bool:
    """Whether an assignment only compiles a method or member: `self.loss_of = torch.compile(self.loss_of)`."""
    if not isinstance(value, cst.Call) or "torch.compile" not in source.names(value.func):
        return False
    return any(source.code(arg.value) == f"self.{name}" for arg in value.args)


def unused_after(sources: Mapping[str, str], source: Source, root: cst.Call) -> Iterator[cst.CSTNode]:
    """The statements of its file that bind what `root` calls, where nothing but `root` and they mention it."""
    gone: list[cst.CSTNode] = [root]
    pending = list(_chosen(root.func))
    while pending:
        name = pending.pop()
        values = bound_to(source, name)
        statement = _binding(source, values[0]) if len(values) == 1 else None
        if statement is None or not _may_go(source, statement, name.value):
            continue
        if not _is_mentioned(sources, source, name.value, [*gone, statement]):
            gone.append(statement)
            yield statement
            pending += _chosen(values[0])


def _chosen(node: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that an expression may hand on: not those that a condition asks."""
    if isinstance(node, cst.Name):
        yield node
    elif isinstance(node, cst.IfExp):
        yield from (*_chosen(node.body), *_chosen(node.orelse))
    elif isinstance(node, cst.Call):
        for arg in node.args:
            yield from _chosen(arg.value)


def _binding(source: Source, value: cst.CSTNode) -> cst.CSTNode | None:
    return value if isinstance(value, cst.FunctionDef) else source.statement(value)


def _may_go(source: Source, statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement does nothing but give the name a value: a function, a lambda, or another name for one."""
    if isinstance(statement, cst.FunctionDef):
        block = source.parent(statement)
        return isinstance(block, cst.Module) or (isinstance(block, cst.IndentedBlock) and len(block.body) > 1)
    small = only_statement(statement)
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    calls = (call for call in source.every(cst.Call, statement) if source.inside(call, cst.Lambda) is None)
    asks = all(any(known.startswith(_ONLY_MAKE) for known in source.names(call.func)) for call in calls)
    return isinstance(target, cst.Name) and target.value == name and asks


def _is_mentioned(sources: Mapping[str, str], source: Source, name: str, without: Sequence[cst.CSTNode]) -> bool:
    """Whether anything but these nodes has the name, in this file or in another."""
    left_out = {id(each) for each in without}
    for read in names_in(source, source.module):
        if read.value == name and not any(id(above) in left_out for above in source.ancestors(read)):
            return True
    own = re.compile(rf"[\"']{name}[\"']")
    others = (text for text in sources.values() if text != source.text)
    return own.search(source.text) is not None or any(re.search(rf"\b{name}\b", text) for text in others)
