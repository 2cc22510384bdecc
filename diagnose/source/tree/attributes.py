"""The values of attributes: all that a program binds to a name, and that of `self.name` in the class around code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import libcst as cst

from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source


def is_label(source: Source, name: cst.Name) -> bool:
    """Whether a name is that of an attribute or of a keyword argument, and no variable."""
    parent = source.parent(name)
    return is_attribute_name(source, name) or (isinstance(parent, cst.Arg) and parent.keyword is name)


def is_attribute_name(source: Source, name: cst.CSTNode) -> bool:
    """Whether a name is what comes behind the dot of an attribute."""
    parent = source.parent(name)
    return isinstance(parent, cst.Attribute) and parent.attr is name


def whole(source: Source, name: cst.Name) -> cst.Name | cst.Attribute:
    """The attribute that a name is the last part of; else the name itself."""
    parent = source.parent(name)
    return parent if isinstance(parent, cst.Attribute) and parent.attr is name else name


def is_of_self(node: cst.CSTNode) -> bool:
    """Whether a node is an attribute of `self`."""
    return isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self"


def class_of(source: Source, node: cst.CSTNode) -> cst.ClassDef | None:
    """The class whose method a node lies in."""
    return source.inside(node, cst.ClassDef)


def member(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression that `self.name` was given, where the class gives it one only, and not one that is made of it."""
    name = _name_in_self(node)
    around = class_of(source, node) if name is not None else None
    if name is None or around is None:
        return None
    found = members_named(source, around, name)
    return found[0] if len(found) == 1 and not _is_made_of(source, around, name) else None


@per_source
def _is_made_of(source: Source, around: cst.ClassDef, name: str) -> bool:
    """Whether a member is made of itself, `self.mask = self.mask[:n]`: what it was before is given elsewhere."""
    following = list(members_named(source, around, name))
    read: set[str] = set()
    for value in following:  # and what they are made of
        update = source.parent(value)
        made = source.walk(update if isinstance(update, cst.AugAssign) else value, cst.Attribute)
        names = {each for node in made if (each := _name_in_self(node)) is not None}
        following += [each for new in names - read for each in members_named(source, around, new)]
        read |= names
    return name in read


def members_named(source: Source, around: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """All that a class binds to `self.name`, or registers as its buffer, and the default in the class's body."""
    return list(_members(source, around).get(name, ()))


def names_set_later(sources: Iterable[Source]) -> frozenset[str]:
    """The names of the attributes that a statement sets which is not in a constructor, of whatever object."""
    return frozenset(name for source in sources for name in _set_later(source))


def building_methods(sources: Iterable[Source]) -> frozenset[str]:
    """The names of methods that only constructors call, or other such methods: `_make_layer`, which builds layers.

    What a constructor keeps or hands on, `self.act = self._gelu`, is called by others.
    """
    used: dict[str, set[str]] = {}
    for source in sources:
        for name, functions in _callers_of_attributes(source).items():
            used.setdefault(name, set()).update(functions)
    found: set[str] = set()
    while new := {name for name, functions in used.items() if functions <= {"__init__"} | found} - found:
        found |= new
    return frozenset(found)


@per_source
def _callers_of_attributes(source: Source) -> Mapping[str, Set[str]]:
    """Return the names of the functions that call each attribute, by its name; an empty one for any other use of it."""
    found: dict[str, set[str]] = {}
    called: set[ast.AST] = set()
    pending: list[tuple[ast.AST, str]] = [(source.outline.tree, "")]
    while pending:
        node, function = pending.pop()
        if isinstance(node, ast.Call):
            called.add(node.func)
        if isinstance(node, ast.Attribute):
            found.setdefault(node.attr, set()).add(function if node in called else "")
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        inner = "" if isinstance(node, ast.Lambda) else inner
        pending += [(each, inner) for each in ast.iter_child_nodes(node)]
    return found


@per_source
def _set_later(source: Source) -> frozenset[str]:
    found = {node.attr.value for node in source.every(cst.Attribute) if _is_set(source, node)}
    for call in source.calls_named("setattr"):
        given = call.args[1].value if len(call.args) > 1 else None
        if isinstance(given, cst.SimpleString) and isinstance(given.evaluated_value, str):
            found.add(given.evaluated_value)
    return frozenset(found)


def _is_set(source: Source, node: cst.Attribute) -> bool:
    """Whether a statement binds an attribute, alone or as one of several, that is not in a constructor."""
    function = source.inside(node, cst.FunctionDef)
    if function is not None and function.name.value in {"__init__", "__post_init__"}:
        return False
    parent = source.parent(node)
    if isinstance(parent, cst.Element):
        group = source.parent(parent)
        return isinstance(group, cst.Tuple | cst.List) and isinstance(source.parent(group), cst.AssignTarget)
    stored = isinstance(parent, cst.AnnAssign | cst.AugAssign) and parent.target is node
    return stored or isinstance(parent, cst.AssignTarget)


@per_source
def _members(source: Source, around: cst.ClassDef) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """Return the members by name, in the order of the text."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in source.walk(around.body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Call):
        if isinstance(node, cst.Assign):
            for target, value, _ in pairs(node):
                if (own := _name_in_self(target)) is not None:
                    found.setdefault(own, []).append(value)
        elif isinstance(node, cst.AnnAssign | cst.AugAssign):
            if (own := _name_in_self(node.target)) is not None and node.value is not None:
                found.setdefault(own, []).append(node.value)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            registers = node.func.attr.value in {"register_buffer", "register_parameter"}
            first = node.args[0].value if registers and len(node.args) > 1 else None
            if isinstance(first, cst.SimpleString) and isinstance(first.evaluated_value, str):
                found.setdefault(first.evaluated_value, []).append(node.args[1].value)
    return found


def set_from_outside(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what code gives that attribute of others than `self`: by `block.name = x`, `setattr(block, …)`."""
    if name in source.words:
        yield from _set_from_outside(source).get(name, ())
    for call in source.calls_named("setattr"):
        if len(call.args) == 3 and string(call.args[1].value) == name and source.code(call.args[0].value) != "self":
            yield call.args[2].value


@per_source
def _set_from_outside(source: Source) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """Return what statements give attributes of others than `self`, by name, in the order of the text."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in source.walk(None, cst.Assign, cst.AugAssign, cst.AnnAssign):
        if isinstance(node, cst.Assign):
            given = [(target, value) for target, value, _ in pairs(node)]
        elif isinstance(node, cst.AugAssign | cst.AnnAssign) and node.value is not None:
            given = [(node.target, node.value)]
        else:
            continue
        for target, value in given:
            if isinstance(target, cst.Attribute) and _name_in_self(target) is None:
                found.setdefault(target.attr.value, []).append(value)
    return found


def _name_in_self(target: cst.CSTNode) -> str | None:
    """`name` of `self.name`."""
    return target.attr.value if isinstance(target, cst.Attribute) and is_of_self(target) else None


def attribute_values(sources: Mapping[str, Source], node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what the program binds to attributes of the name that an expression such as `self.data` ends with."""
    if not isinstance(node, cst.Attribute):
        return
    for path, source in sources.items():
        if node.attr.value in source.words:
            yield from ((path, value) for value in _bound_to_attributes(source).get(node.attr.value, ()))


@per_source
def _bound_to_attributes(source: Source) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """Return the values that a file assigns to attributes, by attribute name, in the order of the text."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for assign in source.every(cst.Assign):
        for target, value, _ in pairs(assign):
            if isinstance(target, cst.Attribute):
                found.setdefault(target.attr.value, []).append(value)
    return found


def pairs(assign: cst.Assign) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, int | None]]:
    """Yield what a statement binds, each with its own value where that is written out, `a, b = x, y`; where it is not,
    with the value of all and its place in that."""
    pending: list[tuple[cst.BaseExpression, cst.BaseExpression, int | None]]
    pending = [(each.target, assign.value, None) for each in assign.targets]
    while pending:
        target, whole, place = pending.pop(0)
        parts = elements(target)
        if not parts:
            yield target, whole, place
            continue
        written = elements(whole)
        alike = len(written) == len(parts)
        starred = isinstance(target, cst.Tuple | cst.List) and any(
            isinstance(one, cst.StarredElement) for one in target.elements
        )
        for at, part in enumerate(parts):
            of = None if alike or starred or place is not None else at
            pending.append((part, written[at] if alike else whole, of))


def elements(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the items of a written tuple or list; an empty list for any other expression."""
    return [each.value for each in node.elements] if isinstance(node, cst.Tuple | cst.List) else []


def leaves(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a target binds, the parts of tuples and lists within one another one by one."""
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from leaves(element.value)
    else:
        yield target


def binds_whole(assign: cst.Assign, name: str) -> bool:
    """Whether an assignment gives a variable its whole value, and not a part of it."""
    return any(isinstance(each.target, cst.Name) and each.target.value == name for each in assign.targets)
