"""Whether a program prints, logs or saves an option, or the whole of what holds it: another default would show there.

All questions are one walk over the uses of a name, outwards from each use to the end of its statement. What counts as
shown on the way differs (`_Kind`): an object of options that goes anywhere whole, a mapping whose entries are read or
that fills another, a single value that goes into a text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.tree.attributes import class_of, is_label, is_of_self, members_named, whole
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string, string_key
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_LOOKS = frozenset({"getattr", "hasattr", "setattr", "isinstance", "len", "get"})
"""Functions and methods that take an object of options whole, and show nothing of it."""
_FILLS = frozenset({"update", "setdefault"})
"""Methods of a mapping: what they take is shown where that mapping is."""
_PARSES = frozenset({"add_argument", "parse_args", "parse_known_args"})
_SHOWS = frozenset({"print", "info", "debug", "warning", "log", "write", "format", "dict", "dump", "dumps", "save"})
"""Functions and methods that show a single value, or put it where it is shown."""
_CONVERTS = frozenset({"str", "repr", "int", "float", "bool", "round", "min", "max", "join"})
"""Functions and methods whose result tells the value that they take."""
_ENTRIES = frozenset({"items", "values", "keys", "copy"})
_SHOWN_IN = (cst.FormattedStringExpression, cst.DictElement, cst.StarredDictElement, cst.BinaryOperation)
_ALL_NAMES = frozenset({"globals", "locals", "vars"})


@dataclass(frozen=True)
class _Kind:
    """Policy of a walk: what shows a thing of one kind; None from a call, whose result still tells the thing."""

    part: Callable[[str, bool], bool]
    """Whether to read an attribute of it does, or to call that method."""
    call: Callable[[Source, cst.Call], bool | None]
    """Whether a call does that takes it as it is."""
    entry: Callable[[Source, cst.CSTNode], bool] = lambda _source, _node: True
    """Whether a text, a mapping or an operation does that it goes into."""
    computed: bool = True
    """Whether arithmetic counts as an operation that shows it."""


def shows_options(sources: Mapping[str, str], expression: cst.BaseExpression) -> bool:
    """Whether the value of an expression such as `args.workers`, or what holds it as a whole, may be shown.

    A holder is taken to be shown where it goes, whole, to a function that is not the program's own, into a text or
    into another mapping. The answer may be yes where nothing is shown.
    """
    program = _Program(parse_all(sources))
    holders = _holders(expression)
    if holders:
        holders = holders.union(*map(_parsed, program.files))
        parts = {name for _, name in _chain(expression)} - {""}
        return program.shows(holders, program.whole, of_self=True) or program.shows_parts(holders, parts)
    if not isinstance(expression, cst.Name):
        return False
    told = any(call_name(call) in _ALL_NAMES and not call.args for call in program.calls(_ALL_NAMES))
    return told or program.shows({expression.value}, program.value)


def shows_mapping(sources: Mapping[str, str], name: str) -> bool:
    """Whether a dictionary of that name may be shown as a whole.

    To be passed on as keywords, to be filled from another, or to fill one that is shown nowhere shows nothing. The
    answer may be yes where nothing is shown.
    """
    return _Program(parse_all(sources)).shows_mapping(name, frozenset())


def shows_number(sources: Mapping[str, str], name: str) -> str | None:
    """The file and line where a variable or an attribute of that name goes into a text or a mapping as it is.

    What is computed from it may stay the same where it is another. None where nothing shows it.
    """
    program = _Program(parse_all(sources))
    for path, source in parse_all(sources).items():
        for use in source.named(name) if name in source.words else ():
            parent = source.parent(use)
            keyword = isinstance(parent, cst.Arg) and parent.keyword is use
            if not keyword and _is_shown(source, whole(source, use), program.number):
                return f"{path}:{source.lines_of(use)[0]}"
    return None


def _is_shown(source: Source, use: cst.BaseExpression, kind: _Kind) -> bool:
    """Whether the statement around a use of a thing shows it."""
    below: cst.CSTNode = use
    for above in source.ancestors(use):
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        if isinstance(above, cst.Arg):
            if above.star == "**":
                return False  # its entries become arguments
        elif isinstance(above, cst.Subscript) and above.value is below:
            return False  # one entry, which is another thing
        elif isinstance(above, cst.Attribute):
            called = source.parent(above)
            return kind.part(above.attr.value, isinstance(called, cst.Call) and called.func is above)
        elif isinstance(above, cst.Call) and above.func is not below:
            shown = kind.call(source, above)
            if shown is not None:
                return shown
        elif isinstance(above, _SHOWN_IN) and (
            kind.computed or not isinstance(above, cst.BinaryOperation) or _formats(source, above)
        ):
            return kind.entry(source, above)
        below = above
    return False


def _formats(source: Source, operation: cst.BinaryOperation) -> bool:
    """Whether an operation is `"… %d" % value`, not a remainder."""
    texts = source.walk(operation.left, cst.SimpleString, cst.ConcatenatedString)
    return isinstance(operation.operator, cst.Modulo) and any(texts)


class _Program:
    """The files of a program, and what shows things in them."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.files = tuple(sources.values())
        self._modules = frozenset(
            part.removesuffix(".py") for path in sources for part in path.replace("\\", "/").split("/")
        )
        self.whole = _Kind(
            lambda name, called: name == "__dict__" or (called and name not in _LOOKS | _PARSES), self._takes
        )
        self.value = _Kind(lambda _name, _called: False, self._takes_value, self._is_shown_entry)
        self.number = _Kind(lambda _name, _called: False, self._takes_number, self._is_shown_entry, computed=False)

    @cached_property
    def _own(self) -> frozenset[str]:
        return frozenset().union(*(source.defined_names for source in self.files))

    def calls(self, names: Iterable[str]) -> Iterator[cst.Call]:
        """All calls of these names."""
        return (call for source in self.files for name in names for call in source.calls_named(name))

    def shows(self, names: Iterable[str], kind: _Kind, *, of_self: bool = False) -> bool:
        """Whether any use of a variable of these names shows it; `of_self`: also of attributes of the object."""
        return any(_is_shown(source, use, kind) for source in self.files for use in _uses(source, names, of_self))

    def shows_parts(self, holders: Collection[str], names: Collection[str]) -> bool:
        """Whether any use of an attribute or an entry of these names shows it, where one of the holders has it."""
        return any(
            _is_shown(source, use, self.number)
            for source in self.files
            for use in source.walk(None, cst.Attribute, cst.Subscript, cst.Call)
            if isinstance(use, cst.BaseExpression) and (part := _part(use)) is not None
            if part[1] in names and _last(part[0]) in holders
        )

    def shows_mapping(self, name: str, seen: frozenset[str]) -> bool:
        """Whether a mapping is shown, or one that it fills; `seen` are those that it came through."""
        if name in seen:
            return False

        def takes(source: Source, call: cst.Call) -> bool:
            filled = call.func.value if isinstance(call.func, cst.Attribute) and call_name(call) in _FILLS else None
            if filled is None:
                return self._takes(source, call)
            return not _is_dictionary(source, filled) or self.shows_mapping(_last(filled), seen | {name})

        kind = _Kind(lambda attribute, _called: attribute in _ENTRIES, takes, _is_shown_in_mapping)
        return self.shows({name}, kind, of_self=True)

    def _takes(self, source: Source, call: cst.Call) -> bool:
        """Whether a call takes a thing out of sight: neither the program's own function nor one that only looks."""
        name = call_name(call)
        if name == "getattr" and len(call.args) > 1 and string(call.args[1].value) is None:
            return True  # one part after the other
        foreign = name in _FILLS or any(
            each[:1] != "." and each.partition(".")[0] not in self._modules for each in source.imported(call.func)
        )
        return name not in _LOOKS and (foreign or name not in self._own)

    def _takes_value(self, source: Source, call: cst.Call) -> bool | None:
        name = call_name(call)
        if name in _SHOWS:
            return name != "dict" or not self._is_hidden(source, call)
        return None if name in _CONVERTS else False

    def _takes_number(self, source: Source, call: cst.Call) -> bool | None:
        return call_name(call) in {"str", "repr"} or self._takes_value(source, call)

    def _is_shown_entry(self, source: Source, entry: cst.CSTNode) -> bool:
        made = source.parent(entry) if isinstance(entry, cst.DictElement) else None
        return made is None or not self._is_hidden(source, made)

    def _is_hidden(self, source: Source, made: cst.CSTNode) -> bool:
        """Whether a dictionary has a name and is shown nowhere, such as the options of a loader."""
        assign = source.parent(made)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        return isinstance(target, cst.Name) and not self.shows_mapping(target.value, frozenset())


def _is_dictionary(source: Source, node: cst.BaseExpression) -> bool:
    """Whether all that a variable, or an attribute of the object, is given are plain dictionaries."""
    around = class_of(source, node)
    given: list[cst.CSTNode] = []
    if isinstance(node, cst.Name):
        given = [*bound_to(source, node)]
    elif around is not None and isinstance(node, cst.Attribute) and source.code(node.value) == "self":
        given = [*members_named(source, around, node.attr.value)]
    sides = [side for each in given for side in ((each.body, each.orelse) if isinstance(each, cst.IfExp) else (each,))]
    return bool(sides) and all(
        isinstance(each, cst.Dict) or (isinstance(each, cst.Call) and call_name(each) == "dict") for each in sides
    )


def _is_shown_in_mapping(source: Source, entry: cst.CSTNode) -> bool:
    """Whether what a mapping goes into is no dictionary that is passed on as keywords: `**{**kwargs, "a": 1}`."""
    made = source.parent(entry)
    outer = source.parent(made) if made is not None else None
    return not (isinstance(entry, cst.StarredDictElement) and isinstance(outer, cst.Arg) and outer.star == "**")


def _uses(source: Source, names: Iterable[str], of_self: bool) -> Iterator[cst.BaseExpression]:
    """Yield where variables of these names are, and attributes of the object."""
    for name in names:
        for node in source.named(name) if name in source.words else ():
            if not is_label(source, node):
                yield node
            elif of_self and is_of_self(each := whole(source, node)):
                yield each


def _last(node: cst.BaseExpression) -> str:
    last = node.attr if isinstance(node, cst.Attribute) else node
    return last.value if isinstance(last, cst.Name) else ""


def _part(node: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
    """The owner of an attribute or an entry, and its name: `args` and `workers` of `args.get("workers")`."""
    if isinstance(node, cst.Attribute):
        return node.value, node.attr.value
    if isinstance(node, cst.Subscript):
        return node.value, string_key(node) or ""
    if not isinstance(node, cst.Call) or not node.args:
        return None
    if isinstance(node.func, cst.Attribute) and call_name(node) == "get":
        return node.func.value, string(node.args[0].value) or ""
    if call_name(node) == "getattr" and len(node.args) > 1:
        return node.args[0].value, string(node.args[1].value) or ""
    return None


def _chain(expression: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, str]]:
    """The parts of an expression: of `self.cfg.workers` `self.cfg` with `workers`, then `self` with `cfg`."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        part = _part(node)
        if part is not None:
            yield part
            waiting.append(part[0])
        elif isinstance(node, cst.Call):
            waiting += [arg.value for arg in node.args]


def _holders(expression: cst.BaseExpression) -> set[str]:
    """The names before the last one of each chain: `args` of `int(args.workers)`, `cfg` of `self.cfg["workers"]`."""
    return {_last(holder) for holder, _ in _chain(expression)} - {"self", ""}


def _parsed(source: Source) -> set[str]:
    """The names that what was read from the command line goes by."""
    return {
        target.target.value
        for node in source.every(cst.Assign)
        if isinstance(node.value, cst.Call) and call_name(node.value) in _PARSES
        for target in node.targets
        if isinstance(target.target, cst.Name)
    }
