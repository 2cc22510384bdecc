"""Dictionaries of arguments: which literals a `**options` comes from, and a new key in one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.dataflow.accelerator_tests import asks_for_accelerator
from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.dataflow.flow import within
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, string, string_key
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source, Splice

_DEEPEST = 4
_PLAIN_TEXT = re.compile(r"""^"([^"'\\]*)"$""")
"""Code of a text that reads the same in either quotes."""
_BY_KEY = ("pop", "popitem", "setdefault", "clear")
_UNGIVEN: Mapping[str, Scalar] = {
    "num_workers": 0,
    "pin_memory": False,
    "shuffle": False,
    "drop_last": False,
    "persistent_workers": False,
}
"""What a `DataLoader` takes for an argument that nobody gives."""


@dataclass(frozen=True)
class Layer:
    """`{…}` or `dict(…)` in one file."""

    path: str
    source: Source
    node: cst.Dict | cst.Call

    def value(self, key: str) -> cst.BaseExpression | None:
        """Return the value under a key."""
        if isinstance(self.node, cst.Call):
            given = argument(self.node, key)
            return given.value if given is not None else None
        for element in self.node.elements:
            if isinstance(element, cst.DictElement) and string(element.key) == key:
                return element.value
        return None


@dataclass(frozen=True)
class Known:
    """The facts that tell which dictionaries a run took."""

    sources: Mapping[str, str]
    recorded: Mapping[str, Scalar]
    """The arguments that the call had."""
    accelerated: bool = False
    """Whether there was an accelerator: a dictionary that serves the CPU alone is then not the one to change."""


def layers_of(node: cst.BaseExpression, path: str, source: Source, known: Known, depth: int = 0) -> list[Layer] | None:
    """The dictionaries that an expression is made of, those that win last; None where it is not known for certain."""
    if isinstance(node, cst.Dict):
        inner: list[Layer] = []
        for element in node.elements:
            if isinstance(element, cst.StarredDictElement):
                below = layers_of(element.value, path, source, known, depth + 1)
                if below is None and element is not node.elements[0]:
                    return None  # it may win over what is written out here
                inner += below or []
        return [*inner, Layer(path, source, node)]
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict":
        return [Layer(path, source, node)] if not any(arg.star or arg.keyword is None for arg in node.args) else None
    if isinstance(node, cst.IfExp):
        sides = [layers_of(side, path, source, known, depth + 1) for side in (node.body, node.orelse)]
        if sides[0] is None or sides[1] is None:
            return None
        asks = asks_for_accelerator(source, node.test) if known.accelerated else None
        if asks is not None:
            return sides[0] if asks else sides[1]
        better = _agreement(sides[0], known.recorded) - _agreement(sides[1], known.recorded)
        return None if better == 0 else sides[0] if better > 0 else sides[1]
    if isinstance(node, cst.Name) and depth < _DEEPEST:
        return _of_name(node, path, source, known, depth)
    return None


def _agreement(layers: list[Layer], recorded: Mapping[str, Scalar]) -> int:
    """Return how many of the recorded arguments a call would have that takes these dictionaries."""
    count = 0
    for name, value in recorded.items():
        given = [found for layer in layers if (found := layer.value(name)) is not None]
        told = literal(given[-1]) if given else None
        if given and told is None:
            continue
        if told is not None or name in _UNGIVEN:
            count += (told.value if told is not None else _UNGIVEN[name]) == value
    return count


def _of_name(node: cst.Name, path: str, source: Source, known: Known, depth: int) -> list[Layer] | None:
    bound = binding_of(source, node)
    if bound is None or bound.imported is not None:
        return None
    if bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
        parsed = parse_all(known.sources)
        calls = passed_to(bound.scope, bound.parameter, None, parsed)
        if calls is None or len(calls) != 1 or calls[0][1] is None:
            return None
        where, given = calls[0]
        assert given is not None
        return layers_of(given, where, parsed[where], known, depth + 1)
    if bound.value is None:
        return None
    found = layers_of(bound.value, path, source, known, depth + 1)
    if found is None or _is_changed_by_key(source, bound.scope, node):
        return None
    for call in source.every(cst.Call, bound.scope):
        if source.code(call.func) == f"{node.value}.update":
            if len(call.args) != 1 or call.args[0].keyword is not None or source.span(call) > source.span(node):
                return None  # what is updated further down may come later than this use
            more = layers_of(call.args[0].value, path, source, known, depth + 1)
            if more is None:
                return None
            updated = [*found, *more]
            found = found if _is_passed_by(call, node, source, found, updated, known) else updated
    return found


def _is_passed_by(
    update: cst.Call, use: cst.Name, source: Source, before: list[Layer], after: list[Layer], known: Known
) -> bool:
    """Whether the run did not come to an update under a condition."""
    if not _is_optional(update, use, source):
        return False
    choice = source.inside(update, cst.If)
    asks = asks_for_accelerator(source, choice.test) if choice is not None and known.accelerated else None
    if choice is not None and asks is not None:
        return asks is not within(source, update, choice.body)
    return _agreement(before, known.recorded) > _agreement(after, known.recorded)


def _is_changed_by_key(source: Source, scope: cst.CSTNode, use: cst.Name) -> bool:
    """Whether keys come to the dictionary, or leave it, after it is written out: always, where the use is reached."""
    name = use.value
    methods = {f"{name}.{method}" for method in _BY_KEY}
    changes: list[cst.CSTNode] = [call for call in source.every(cst.Call, scope) if source.code(call.func) in methods]
    changes += [each for each in source.every(cst.AugAssign, scope) if source.code(each.target) == name]
    for each in source.every(cst.Subscript, scope):
        above = source.parent(each) if source.code(each.value) == name else None
        changes += [above] if isinstance(above, cst.AssignTarget | cst.AugAssign | cst.Del) else []
    return any(not _is_optional(change, use, source) for change in changes)


def _is_optional(change: cst.CSTNode, use: cst.Name, source: Source) -> bool:
    """Whether the change is made under a condition, or after an error, under which the use does not stand."""
    around = list(source.ancestors(use))
    choices = (above for above in source.ancestors(change) if isinstance(above, cst.If | cst.ExceptHandler))
    return any(above not in around for above in choices)


def clashes(layer: Layer, call: cst.Call, keys: Collection[str]) -> bool:
    """Whether another call takes the same dictionary that has one of these keys itself, or that makes no loader."""
    name = name_of(layer)
    for other in layer.source.every(cst.Call) if name is not None else ():
        if any(arg.star == "**" and layer.source.code(arg.value) == name for arg in other.args):
            own = {arg.keyword.value for arg in other.args if arg.keyword is not None}
            if own & set(keys) or call_name(other) not in {call_name(call), "DataLoader", "dict"}:
                return True
    return False


def is_overridden(sources: Mapping[str, str], layer: Layer, key: str) -> bool:
    """Whether the program may put another value over a dictionary's own, for this call or for another one.

    `{**options, key: 0}`, `dict(options, key=0)`, `options | {key: 0}`, `options[key] = 0`, `options.update(key=0)`:
    of whatever dictionary, since one goes by many names.
    """
    return any(
        node is not layer.node and _says_over(source, node, key)
        for source in parse_all(sources).values()
        if key in source.words
        for node in source.walk(None, cst.Call, cst.Dict, cst.Subscript)
    )


def _says_over(source: Source, node: cst.CSTNode, key: str) -> bool:
    above = source.parent(node)
    if isinstance(node, cst.Subscript):
        return string_key(node) == key and isinstance(above, cst.AssignTarget | cst.AugAssign | cst.Del)
    if isinstance(node, cst.Call):
        named = any(arg.keyword is not None and arg.keyword.value == key for arg in node.args)
        over = any(arg.keyword is None for arg in node.args) or _is_put_over(source, node)
        return named and (call_name(node) == "update" or (call_name(node) == "dict" and over))
    if not isinstance(node, cst.Dict):
        return False
    has = any(isinstance(each, cst.DictElement) and string(each.key) == key for each in node.elements)
    stars = any(isinstance(each, cst.StarredDictElement) for each in node.elements)
    return has and (stars or _is_put_over(source, node))


def _is_put_over(source: Source, node: cst.CSTNode) -> bool:
    """Whether a dictionary that is written out is joined with another one: `options | {…}`, `options |= {…}`."""
    above = source.parent(node)
    call = source.parent(above) if isinstance(above, cst.Arg) else None
    updates = isinstance(call, cst.Call) and call_name(call) == "update"
    return updates or isinstance(above, cst.BinaryOperation | cst.AugAssign)


def name_of(layer: Layer) -> str | None:
    """The variable that the dictionary becomes, or a part of."""
    for above in layer.source.ancestors(layer.node):
        if isinstance(above, cst.Assign):
            return layer.source.code(above.targets[0].target)
        if isinstance(above, cst.Call) and isinstance(above.func, cst.Attribute) and above.func.attr.value == "update":
            return layer.source.code(above.func.value)
        if isinstance(above, cst.BaseStatement):
            break
    return None


def set_keys(layer: Layer, codes: Mapping[str, str]) -> list[Splice]:
    """Put keys that are not there yet at the end of a dictionary, in its own quotes and layout."""
    source, node = layer.source, layer.node
    if isinstance(node, cst.Call):
        return set_keywords(source, node, codes)
    elements = [each for each in node.elements if isinstance(each, cst.DictElement)]
    like = source.code(elements[0].key) if elements else source.text  # an empty one is written as the rest of the file
    quote = "'" if like.count("'") > like.count('"') else '"'
    quoted = rf"{quote}\1{quote}"
    new = [f"{quote}{key}{quote}: {_PLAIN_TEXT.sub(quoted, code)}" for key, code in codes.items()]
    start, end = source.span(node)
    if not node.elements:
        return [Splice(end - 1, end - 1, ", ".join(new))]
    last = node.elements[-1]
    at, begin = source.wide_span(last.value)[1], source.wide_span(last)[0]
    comma = source.span(last.comma)[1] if isinstance(last.comma, cst.Comma) else None
    lead = source.newline + source.text[source.line_start(begin) : begin]
    if not lead.strip():
        line_end = source.line_end(comma or at)
        beyond = line_end if line_end < end - 1 else (comma or at)
        block = "".join(f"{lead}{text}," for text in new)
        return [Splice(beyond, beyond, block)] if comma is not None else _joined(at, beyond, block[:-1])
    row = "".join(f" {text}," for text in new)
    first, final = source.lines_of(node)
    if first == final and len(source.line_text(final)) + len(row) > source.line_limit:
        column = source.wide_span(node.elements[0])[0] - source.line_start(start)
        row = "".join(f"{source.newline}{' ' * column}{text}," for text in new)
    return [Splice(comma, comma, row)] if comma is not None else [Splice(at, at, "," + row[:-1])]


def _joined(at: int, beyond: int, added: str) -> list[Splice]:
    """A comma after the last element, and what is new behind the comment of its line."""
    if at == beyond:
        return [Splice(at, at, "," + added)]
    return [Splice(at, at, ","), Splice(beyond, beyond, added)]
