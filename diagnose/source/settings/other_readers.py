"""Whether a program makes more of an option than the argument that it is for.

`batch_size=8 * args.workers`, a seed, a test: another value of the option would change them as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.tree.attributes import whole
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string, string_key
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_OF_WORKERS = frozenset(
    {"num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "timeout", "multiprocessing_context"}
    | {"worker_init_fn"}
)
"""Arguments of a loader that decide how samples are made, and not which."""
_POSITION = 5
"""The position of `num_workers` among a loader's arguments."""
_TELLS = frozenset({"print", "info", "debug", "warning", "log", "format", "write"})
_LOOKS_UP = ("get", "getattr", "pop", "attrgetter", "itemgetter")
"""Functions and methods that give the attribute or the entry of a name."""
_KEEPS = frozenset({"int", "str", "dict", "update", "setdefault"})
"""Functions and methods whose result is, or holds, what they take."""


def has_other_readers(sources: Mapping[str, str], source: Source, expression: cst.BaseExpression) -> bool:
    """Whether anything but the workers of loaders depends on the value of an expression, such as `args.workers`.

    Told by the last part of its name, and by those that it is kept or passed on by. To show it is another question
    (`shown_options`). The answer may be yes where nothing depends on it.
    """
    parsed = parse_all(sources)
    waiting = list(_names(source, expression))
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for each in parsed.values():
            for use in _uses(each, name):
                kept = _kept_as(each, use, parsed) if use is not expression else []
                if kept is None:
                    return True
                waiting += kept
    return False


def _names(source: Source, expression: cst.BaseExpression) -> Iterator[str]:
    """The last part of an expression's name, and of that of what it is bound to."""
    if isinstance(expression, cst.Name):
        yield expression.value
        bound = binding_of(source, expression)
        if bound is not None and bound.value is not None:
            yield from _names(source, bound.value)
    elif isinstance(expression, cst.Attribute):
        yield expression.attr.value
    elif isinstance(expression, cst.Subscript) and (key := string_key(expression)) is not None:
        yield key
    elif isinstance(expression, cst.Call):
        for arg in expression.args:
            yield from _names(source, arg.value)


def _uses(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """Yield where a variable, an attribute or an entry of that name is read."""
    if name not in source.words:
        return
    for node in source.named(name):
        read = whole(source, node)
        around = source.parent(read)
        keyword = isinstance(around, cst.Arg) and around.keyword is read
        bound = isinstance(around, cst.AssignTarget | cst.Param | cst.ImportAlias | cst.NameItem)
        bound = bound or (isinstance(around, cst.AnnAssign) and around.target is read)
        called = isinstance(around, cst.Call) and around.func is read
        owner = isinstance(around, cst.Attribute) and around.value is read
        if not keyword and not bound and not called and not owner:
            yield read
    for entry in source.every(cst.Subscript):
        if string_key(entry) == name and not isinstance(source.parent(entry), cst.AssignTarget):
            yield entry
    for call in source.calls_named(*_LOOKS_UP):
        if any(string(arg.value) == name for arg in call.args):
            yield call


def _kept_as(source: Source, use: cst.BaseExpression, sources: Mapping[str, Source]) -> list[str] | None:
    """The names by which a value that is read goes on, if any; None where something else is made of it."""
    whole = True
    for above in source.ancestors(use):
        if isinstance(above, cst.Arg):
            call = source.parent(above)
            if not isinstance(call, cst.Call):
                return None
            if call_name(call) == "DataLoader":
                return [] if _is_of_workers(call, above) else None
            if call_name(call) in _TELLS or _is_named_so(above):
                return []
            if call_name(call) not in _KEEPS:
                return parameters_for(call, above, sources) if whole else None
        elif isinstance(above, cst.FormattedStringExpression | cst.Expr):
            return []
        elif isinstance(above, cst.DictElement):
            return [] if whole or string(above.key) in _OF_WORKERS else None
        elif isinstance(above, cst.Assign | cst.AnnAssign):
            return _targets(above) if whole else None
        elif isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return None
        elif not isinstance(above, cst.Call):
            whole = False
    return None


def _is_named_so(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value.removeprefix("dataloader_") in _OF_WORKERS


def _is_of_workers(call: cst.Call, arg: cst.Arg) -> bool:
    return _is_named_so(arg) or (arg.keyword is None and call.args.index(arg) == _POSITION)


def _targets(assign: cst.Assign | cst.AnnAssign) -> list[str] | None:
    """The last parts of the names that get the value; None where one is neither a name nor an entry."""
    found: list[str] = []
    for target in [each.target for each in assign.targets] if isinstance(assign, cst.Assign) else [assign.target]:
        last = target.attr if isinstance(target, cst.Attribute) else target
        name = string_key(last) if isinstance(last, cst.Subscript) else getattr(last, "value", None)
        if not isinstance(name, str):
            return None
        found.append(name)
    return found


def parameters_for(call: cst.Call, arg: cst.Arg, sources: Mapping[str, Source]) -> list[str] | None:
    """The parameter of the program's own function or class that an argument is for; None of other functions."""
    if arg.star:
        return None
    name = call_name(call)
    defining = [each for each in sources.values() if name in each.defined_names]
    if not defining:
        return None
    if arg.keyword is not None:
        return [arg.keyword.value]
    position = call.args.index(arg)
    found: list[str] = []
    for source in defining:
        for function in (*source.functions_named(name), *_constructors(source, name)):
            listed = [each.name.value for each in function.params.params]
            listed = listed[1:] if listed[:1] in (["self"], ["cls"]) else listed
            found += listed[position : position + 1]
    return found or None


def _constructors(source: Source, name: str) -> Iterator[cst.FunctionDef]:
    """The `__init__` of each class of that name in a file."""
    for made in source.classes_named(name):
        for function in source.every(cst.FunctionDef, made):
            if function.name.value == "__init__" and source.inside(function, cst.ClassDef) is made:
                yield function
