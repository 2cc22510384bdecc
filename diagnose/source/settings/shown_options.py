"""Whether a program prints, logs or saves the whole of what holds an option: another default would show there."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

__all__ = ["shows_options"]

_LOOKS = frozenset({"getattr", "hasattr", "setattr", "isinstance", "len", "get"})
"""Functions and methods that take an object of options whole, and show nothing of it."""
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
    return isinstance(expression, cst.Name) and any(_shows_value(source, expression.value) for source in files)


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


def _shows_value(source: Source, name: str) -> bool:
    if any(call_name(call) in _ALL_NAMES and not call.args for call in source.every(cst.Call)):
        return True
    for node in source.every(cst.Name):
        parent = source.parent(node) if node.value == name else None
        if isinstance(parent, _SHOWN_IN):
            return True
        call = source.parent(parent) if isinstance(parent, cst.Arg) else None
        if isinstance(call, cst.Call) and call_name(call) in _SHOWS:
            return True
    return False
