"""Where a program's own text says that a value is one of torch's optimizers, and what it shows and loads of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, bound_to, passed_to
from diagnose.source.dataflow.flow import scope_of
from diagnose.source.tree.attributes import class_of, members_named, set_from_outside
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all, per_program
from diagnose.source.tree.syntax import Source

_DEEPEST = 5  # from a parameter to what callers pass for it, and from a call to what it returns
_SHOWS = frozenset({"print", "pprint", "str", "repr", "format", "dumps", "dump", "write", "log"})
_LOGS = frozenset({"debug", "info", "warning", "error"})
_OF_MODULES = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"})
"""Methods that modules have, and optimizers have not."""
_SHOWN_IN = (cst.FormattedStringExpression, cst.BinaryOperation)


class Optimizers:
    """Tells which values are optimizers, over all files of a program."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = parse_all(sources)
        self._known: dict[tuple[cst.CSTNode, int], bool | None] = {}

    def holds(self, source: Source, node: cst.CSTNode, depth: int = 0) -> bool | None:
        """Whether an expression is an optimizer of torch's; None where the text does not say."""
        if depth > _DEEPEST:
            return None
        if (node, depth) not in self._known:
            self._known[node, depth] = self._is_one(source, node, depth)
        return self._known[node, depth]

    def _is_one(self, source: Source, node: cst.CSTNode, depth: int) -> bool | None:
        if isinstance(node, cst.Call):
            return self._made(source, node, depth)
        if isinstance(node, cst.Name):
            return self._named(source, node, depth)
        if isinstance(node, cst.Attribute):
            return _any(self.holds(at, value, depth + 1) for at, value in self._values_given(source, node))
        return False if isinstance(node, cst.IfExp | cst.BaseNumber | cst.BaseString | cst.Lambda) else None

    def _values_given(self, source: Source, node: cst.Attribute) -> Iterator[tuple[Source, cst.BaseExpression]]:
        """All that an attribute is given: of the object by its class, of others by any; and of both from outside."""
        name = node.attr.value
        owner = class_of(source, node) if source.code(node.value) == "self" else None
        if owner is not None:
            yield from ((source, value) for value in members_named(source, owner, name))
        for other in (each for each in self.sources.values() if name in each.words):
            for each in other.every(cst.ClassDef) if owner is None else ():
                yield from ((other, value) for value in members_named(other, each, name))
            yield from ((other, value) for value in set_from_outside(other, name))

    def _made(self, source: Source, call: cst.Call, depth: int) -> bool | None:
        names = source.names(call.func)
        if any(name.startswith("torch.optim.") and ".lr_scheduler." not in name for name in names):
            return any(name.rpartition(".")[2][:1].isupper() for name in names)
        own = [
            (other, function) for other in self.sources.values() for function in other.functions_named(call_name(call))
        ]
        returned = [(at, each.value) for at, function in own for each in at.every(cst.Return, function) if each.value]
        return _any(self.holds(at, value, depth + 1) for at, value in returned) if own else False

    def _named(self, source: Source, name: cst.Name, depth: int) -> bool | None:
        if name.value == "None":
            return False
        bound = binding_of(source, name)
        if bound is not None and bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
            function = bound.scope
            owner = class_of(source, function)
            builds = owner.name.value if owner is not None and function.name.value == "__init__" else None
            passed = passed_to(function, bound.parameter, builds, self.sources) or []
            return _any(
                self.holds(self.sources[path], value, depth + 1) if value is not None else False
                for path, value in passed
            )
        values = bound_to(source, name)
        if bound is not None and bound.value is not None:
            values = [bound.value]
        return _any(
            self.holds(source, value, depth + 1) if isinstance(value, cst.BaseExpression) else False for value in values
        )

    @cached_property
    def loaded(self) -> str | None:
        """The first line that may load the state of an optimizer."""
        return next(self._loaded(), None)

    def _loaded(self) -> Iterator[str]:
        for path, source in self.sources.items():
            for call in source.calls_named("load_state_dict"):
                if not isinstance(call.func, cst.Attribute) or _is_module(source, call.func.value):
                    continue
                if self.holds(source, call.func.value) is not False:
                    yield f"{path}:{source.lines_of(call)[0]}"

    @cached_property
    def shown(self) -> str | None:
        """The first line that shows the options of an optimizer, or hands all of them on as a mapping."""
        return next(self._shown(), None)

    def _shown(self) -> Iterator[str]:
        for path, source in self.sources.items():
            for node in source.walk(None, cst.Name, cst.Attribute):
                whole = _whole(source, node)
                if whole is not None and self.holds(source, whole):
                    yield f"{path}:{source.lines_of(node)[0]}"


@per_program
def optimizers_of(sources: Mapping[str, str]) -> Optimizers:
    """The one of a program, for all who ask: what it finds is kept."""
    return Optimizers(sources)


def _any(answers: Iterable[bool | None]) -> bool | None:
    """True where one is; None where there is none, or one is not known."""
    found = list(answers)
    return True if True in found else None if None in found or not found else False


def _is_module(source: Source, node: cst.BaseExpression) -> bool:
    """Whether the function, or for `self.model` the class, asks what stands there for what only modules have.

    The variable of a loop does not count: it may be a module in one turn, and an optimizer in the next.
    """
    code = source.code(node)
    loops = (above for above in source.ancestors(node) if isinstance(above, cst.For))
    if any(each.value == code for loop in loops for each in source.every(cst.Name, loop.target)):
        return False
    around = class_of if code.startswith("self.") else scope_of
    asked = (call.func for call in source.calls_named(*_OF_MODULES) if around(source, call) is around(source, node))
    return any(isinstance(func, cst.Attribute) and source.code(func.value) == code for func in asked)


def _whole(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return what a node shows all options of, should that be an optimizer: by itself, its defaults or its groups."""
    if isinstance(node, cst.Attribute) and node.attr.value in {"param_groups", "defaults"}:
        groups = [node] if node.attr.value == "defaults" else list(_groups(source, node))
        return node.value if any(_is_shown(source, each) for each in groups) else None
    if isinstance(node, cst.Attribute) and node.attr.value == "state_dict":
        part = source.parent(node)
        above = source.parent(part) if part is not None else None
        if isinstance(above, cst.Subscript) and "param_groups" in source.code(above.slice[0]):
            return node.value if any(_is_shown(source, each) for each in _groups(source, above)) else None
        while isinstance(above := source.parent(part) if part is not None else None, cst.Subscript):
            part = above
        return node.value if part is not None and _is_told(source, part) else None
    return node if _is_told(source, node) else None


def _groups(source: Source, groups: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """The list of groups, and each that a loop or an assignment takes of it."""
    parent = source.parent(groups)
    whole = parent if isinstance(parent, cst.Subscript) and parent.value is groups else groups
    yield whole
    above = source.parent(whole)
    target = above.target if isinstance(above, cst.For | cst.CompFor) else None
    if isinstance(above, cst.Assign):
        target = above.targets[0].target
    if isinstance(target, cst.Name):
        within = source.inside(above, cst.BaseComp) if isinstance(above, cst.CompFor) else scope_of(source, groups)
        yield from (each for each in source.named(target.value, within) if each is not target)


def _is_shown(source: Source, group: cst.CSTNode) -> bool:
    """Whether all options of a group may be looked at, not one by its name."""
    parent = source.parent(group)
    if isinstance(parent, cst.Attribute) and parent.value is group:
        return parent.attr.value in {"items", "values", "copy", "keys"}
    passed = isinstance(parent, cst.Arg) and call_name(source.parent(parent)) not in {"len", "enumerate"}  # type: ignore[arg-type]
    return passed or isinstance(parent, (*_SHOWN_IN, cst.StarredDictElement))


def _is_told(source: Source, node: cst.CSTNode) -> bool:
    parent = source.parent(node)
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        return isinstance(call, cst.Call) and call_name(call) in _SHOWS | _LOGS
    return isinstance(parent, _SHOWN_IN)
