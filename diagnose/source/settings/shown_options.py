"""Whether a program prints, logs or saves the whole of what holds an option: another default would show there."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

_LOOKS = frozenset({"getattr", "hasattr", "setattr", "isinstance", "len", "get"})
"""Functions and methods that take an object of options whole, and show nothing of it."""
_FILLS = frozenset({"update", "setdefault"})
_PARSES = frozenset({"add_argument", "parse_args", "parse_known_args"})
_SHOWS = frozenset({"print", "info", "debug", "warning", "log", "write", "format", "dict", "dump", "dumps", "save"})
"""Functions and methods that show a single value, or put it where it is shown."""
_SHOWN_IN = (cst.FormattedStringExpression, cst.DictElement, cst.StarredDictElement, cst.BinaryOperation)
_ALL_NAMES = frozenset({"globals", "locals", "vars"})


def shows_options(sources: Mapping[str, str], expression: cst.BaseExpression) -> bool:
    """Whether what holds the value of an expression, such as `args` of `args.workers`, may be shown as a whole.

    A holder is taken to be shown where it goes, whole, to a function that is not the program's own, into a text or
    into another mapping. The answer may be yes where nothing is shown.
    """
    holders = _holders(expression)
    own: set[str] = set()
    files = []
    for text in sources.values():
        if not (source := parse(text)):
            continue
        files.append(source)
        own |= {node.name.value for node in source.every(cst.FunctionDef)}
        own |= {node.name.value for node in source.every(cst.ClassDef)}
        holders |= _parsed(source) if holders else set()
    if holders:
        return any(_shows_whole(source, holders, own) for source in files)
    return isinstance(expression, cst.Name) and any(_shows_value(source, expression.value, own) for source in files)


def shows_mapping(sources: Mapping[str, str], name: str) -> bool:
    """Whether a dictionary of that name may be shown as a whole.

    To be passed on as keywords, to fill another or to be filled from one shows nothing. The answer may be yes where
    nothing is shown.
    """
    files = [source for text in sources.values() if name in text and (source := parse(text)) is not None]
    own = {node.name.value for source in files for node in source.every(cst.FunctionDef)} | _FILLS
    return any(
        _is_shown(source, node, own) for source in files for node in source.every(cst.Name) if node.value == name
    )


def shows_attribute(sources: Mapping[str, str], owner: str, attribute: str) -> bool:
    """Whether a program shows an attribute, or all, of what it calls `owner`, as a variable or as an attribute."""
    files = [source for text in sources.values() if owner in text and (source := parse(text)) is not None]
    return any(
        _last(node.value) == owner and node.attr.value in {attribute, "__dict__"} and _is_told(source, node)
        for source in files
        for node in source.every(cst.Attribute)
    ) or any(
        call_name(call) == "vars" and bool(call.args) and _last(call.args[0].value) == owner
        for source in files
        for call in source.every(cst.Call)
    )


def _last(node: cst.BaseExpression) -> str:
    last = node.attr if isinstance(node, cst.Attribute) else node
    return last.value if isinstance(last, cst.Name) else ""


def _is_told(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a value goes into a text or a mapping, or to what prints or writes it."""
    for above in source.ancestors(node):
        computes = isinstance(above, cst.BinaryOperation) and not isinstance(above.operator, cst.Modulo)
        if isinstance(above, _SHOWN_IN) and not computes:
            return True
        if isinstance(above, cst.Call) and call_name(above) in _SHOWS:
            return True
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return False
    return False


def _is_shown(source: Source, node: cst.Name, own: set[str] | frozenset[str]) -> bool:
    parent = source.parent(node)
    above = source.parent(parent) if parent is not None else None
    if isinstance(parent, cst.Arg):
        return parent.star != "**" and isinstance(above, cst.Call) and call_name(above) not in own | _LOOKS
    if isinstance(parent, cst.StarredDictElement):
        outer = source.parent(above) if above is not None else None
        return not (isinstance(outer, cst.Arg) and outer.star == "**")
    if isinstance(parent, cst.Attribute) and parent.value is node:
        return parent.attr.value in {"items", "values", "keys", "copy"}
    return isinstance(parent, _SHOWN_IN)


def _holders(expression: cst.BaseExpression) -> set[str]:
    """The names before the last one of each chain: `args` of `int(args.workers)`, `cfg` of `self.cfg["workers"]`."""
    found: set[str] = set()
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.Call):
            waiting += [arg.value for arg in node.args]
        elif isinstance(node, cst.Attribute | cst.Subscript):
            holder = node.value
            name = holder.attr if isinstance(holder, cst.Attribute) else holder
            found |= {name.value} - {"self"} if isinstance(name, cst.Name) else set()
            waiting.append(holder)
    return found


def _parsed(source: Source) -> set[str]:
    """The names that what was read from the command line goes by."""
    return {
        target.target.value
        for node in source.every(cst.Assign)
        if isinstance(node.value, cst.Call) and call_name(node.value) in _PARSES
        for target in node.targets
        if isinstance(target.target, cst.Name)
    }


def _shows_whole(source: Source, holders: set[str], own: set[str]) -> bool:
    for node in source.every(cst.Name):
        parent = source.parent(node) if node.value in holders else None
        whole: cst.CSTNode = node
        if isinstance(parent, cst.Attribute) and parent.attr is node and source.code(parent.value) == "self":
            whole, parent = parent, source.parent(parent)
        if isinstance(parent, cst.Attribute) and parent.value is whole:
            call = source.parent(parent)
            method = parent.attr.value if isinstance(call, cst.Call) and call.func is parent else None
            if parent.attr.value == "__dict__" or not (method is None or method in _LOOKS | _PARSES):
                return True
        elif isinstance(parent, cst.Arg) and parent.star != "**":
            call = source.parent(parent)
            if isinstance(call, cst.Call) and call_name(call) not in own | _LOOKS:
                return True
        elif isinstance(parent, _SHOWN_IN):
            return True
    return False


def _shows_value(source: Source, name: str, own: set[str]) -> bool:
    if any(call_name(call) in _ALL_NAMES and not call.args for call in source.every(cst.Call)):
        return True
    for node in source.every(cst.Name):
        parent = source.parent(node) if node.value == name else None
        call = source.parent(parent) if isinstance(parent, cst.Arg) else None
        shown = isinstance(parent, _SHOWN_IN) or (isinstance(call, cst.Call) and call_name(call) in _SHOWS)
        if shown and not _is_in_options_of_call(source, parent, call, own):
            return True
    return False


def _is_in_options_of_call(
    source: Source, element: cst.CSTNode | None, call: cst.CSTNode | None, own: set[str]
) -> bool:
    """Whether a value goes into a dictionary that has a name and is shown nowhere, such as the options of a loader."""
    made = source.parent(element) if isinstance(element, cst.DictElement) else call
    assign = source.parent(made) if made is not None else None
    if (isinstance(made, cst.Call) and call_name(made) != "dict") or not isinstance(assign, cst.Assign):
        return False
    target = assign.targets[0].target
    return isinstance(target, cst.Name) and not any(
        _is_shown(source, each, own | _FILLS) for each in source.every(cst.Name) if each.value == target.value
    )
