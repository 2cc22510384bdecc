"""Where the value of an argument is set: in the call, or by a constant, an argparse default or a dataclass default.

A knob is best turned where its author keeps it. But an edit there reaches every use, and a value from the command line
wins over any default, so a place counts only when it holds the very value that the run had, and nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from diagnose.program.arguments import argument
from diagnose.program.edit import call_name
from diagnose.program.syntax import Source, Splice, parse

__all__ = ["Setting", "number", "setting_of"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A number in the source that decides a value."""

    path: str
    line: int
    splice_to: tuple[int, int]
    value: int
    fixed: bool
    """Nobody can override it from outside: it is no default."""

    def to(self, value: int) -> Splice:
        """The edit that sets it."""
        return Splice(*self.splice_to, str(value))


def number(node: cst.BaseExpression) -> int | None:
    """The value of an integer literal."""
    return int(node.value, 0) if isinstance(node, cst.Integer) and node.value.isdecimal() else None


def setting_of(
    value: cst.BaseExpression, path: str, source: Source, sources: Mapping[str, str], recorded: int | None
) -> Setting | None:
    """The one place that sets the expression `value` to the recorded number; None where there is none to be edited."""
    if number(value) is not None:
        return _checked(path, source, value, recorded, fixed=True)
    if isinstance(value, cst.Name):
        return _constant(value, path, source, recorded)
    if isinstance(value, cst.Attribute) and isinstance(value.value, cst.Name | cst.Attribute):
        return _default(value.attr.value, sources, recorded)
    return None


def _checked(path: str, source: Source, node: cst.BaseExpression, recorded: int | None, fixed: bool) -> Setting | None:
    value = number(node)
    if value is None or (not fixed and recorded not in (None, value)):
        return None  # the run had another number: one from outside, which wins over this default again
    return Setting(path, source.lines_of(node)[0], source.wide_span(node), value, fixed)


def _constant(name: cst.Name, path: str, source: Source, recorded: int | None) -> Setting | None:
    """A name that is bound once in the file, to a number, and read only to say how many workers there are."""
    bindings: list[cst.BaseExpression] = []
    for node in source.every(cst.Name):
        if node.value != name.value:
            continue
        parent = source.parent(node)
        if isinstance(parent, cst.AssignTarget):
            assign = source.parent(parent)
            if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
                return None
            bindings.append(assign.value)
        elif isinstance(parent, cst.AnnAssign) and parent.target is node and parent.value is not None:
            bindings.append(parent.value)
        elif isinstance(parent, cst.Arg) and parent.keyword is node:
            continue
        elif isinstance(parent, cst.Arg):
            call = source.parent(parent)
            if not isinstance(call, cst.Call) or call_name(call) not in {"DataLoader", "print", "str"}:
                return None
        elif not isinstance(parent, cst.FormattedStringExpression):
            return None  # rebound, computed with, or passed on: an edit would reach further than the loader
    return _checked(path, source, bindings[0], recorded, fixed=True) if len(bindings) == 1 else None


def _default(attribute: str, sources: Mapping[str, str], recorded: int | None) -> Setting | None:
    found: list[Setting | None] = []
    for path, text in sources.items():
        if attribute not in text and attribute.replace("_", "-") not in text:
            continue
        source = parse(text)
        if source is not None:
            values = [*_argparse_defaults(source, attribute), *_field_defaults(source, attribute)]
            found += [_checked(path, source, value, recorded, fixed=False) for value in values]
    return found[0] if len(found) == 1 else None


def _argparse_defaults(source: Source, attribute: str) -> list[cst.BaseExpression]:
    defaults = []
    for call in source.every(cst.Call):
        if call_name(call) == "add_argument" and _destination(call) == attribute:
            default = argument(call, "default")
            if default is not None:
                defaults.append(default.value)
    return defaults


def _destination(call: cst.Call) -> str | None:
    """The attribute that `add_argument` fills: `dest`, else the first long option, else the first one."""
    given = argument(call, "dest")
    if given is not None:
        value = given.value
        return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else None
    options = [
        str(arg.value.evaluated_value)
        for arg in call.args
        if arg.keyword is None and isinstance(arg.value, cst.SimpleString)
    ]
    longest = next((option for option in options if option.startswith("--")), options[0] if options else None)
    return longest.lstrip("-").replace("-", "_") if longest else None


def _field_defaults(source: Source, attribute: str) -> list[cst.BaseExpression]:
    """Defaults of annotated class attributes, as dataclasses and settings classes have them."""
    return [
        node.value
        for node in source.every(cst.AnnAssign)
        if isinstance(node.target, cst.Name)
        and node.target.value == attribute
        and node.value is not None
        and isinstance(source.inside(node, cst.ClassDef), cst.ClassDef)
        and source.inside(node, cst.FunctionDef) is None
    ]
