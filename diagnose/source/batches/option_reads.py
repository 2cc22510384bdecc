"""Where a program reads an option of a loader that it built: another value would show there, or decide otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import libcst as cst

from diagnose.source.batches.loader_lifetime import names_holding
from diagnose.source.dataflow.bindings import binding_of, bound_to, passed_to, values_of
from diagnose.source.settings.other_readers import parameters_for
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import parse_all, per_program
from diagnose.source.tree.syntax import Source

_ALL = "__dict__"
_LISTS = ("vars", "getmembers")
"""Functions that return all attributes of an object."""
_HARMLESS = {"pin_memory": frozenset({"pin_memory", "non_blocking"})}
"""Keywords that may take an option: copies from pinned memory and from other memory have the same bytes."""

_ON_TENSORS = {"pin_memory": ("is_pinned",), "num_workers": ("is_shared", "resize_", "resize_as_")}
"""Methods of a tensor that tell whether a batch is pinned, or whether it lies in memory that a worker has sent."""


@per_program
def option_read(sources: Mapping[str, str], source: Source, node: cst.CSTNode, option: str) -> str | None:
    """The file and line where a program reads an option of the loader that `node` builds; None where it does not.

    The answer may name another object's option: names are followed through assignments, loops and parameters, whatever
    else they hold.
    """
    parsed = parse_all(sources)
    for path, its in parsed.items():
        for call in its.calls_named(*_ON_TENSORS.get(option, ())):
            if not _is_of_own_tensor(its, call) and not _is_harmless(its, call, option):
                return f"{path}:{its.lines_of(call)[0]}"
        told_apart = next(_iterators_told_apart(its), None) if option == "num_workers" else None
        if told_apart is not None:
            return f"{path}:{its.lines_of(told_apart)[0]}"
    given = _given(parsed, source, node, option)
    asked = [
        (path, *each) for path, its in parsed.items() for each in _reads(its, option) if its.code(each[1]) not in given
    ]
    own = names_holding(sources, source, node) if asked else set()
    all_names = _followed(sources, own) if own else own
    for path, owner, read, of_all in asked:
        certain = of_all or _is_of_another(parsed[path], read, option)
        if (own if certain else all_names) & _mentioned(parsed[path], owner):
            return f"{path}:{parsed[path].lines_of(read)[0]}"
    return None


def _reads(source: Source, option: str) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode, bool]]:
    """Yield of what the option is read, the node that reads it, and whether it reads all attributes."""
    for node in source.attributes_named(option, _ALL):
        if node.attr.value == _ALL or not _is_harmless(source, node, option):
            yield node.value, node, node.attr.value == _ALL
    for call in source.calls_named("getattr", *_LISTS):
        name = string(call.args[1].value) if len(call.args) > 1 else None
        if call.args and name in {None, option, _ALL}:
            yield call.args[0].value, call, name != option


def _iterators_told_apart(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield iterators whose class the program asks for, which is another for a loader with workers."""
    asked = [call.args[0].value for call in source.calls_named("type") if len(call.args) == 1]
    asked += [each.value for each in source.attributes_named("__class__")]
    for each in asked:
        made = (each, *values_of(source, each))
        if any(isinstance(value, cst.Call) and call_name(value) == "iter" for value in made):
            yield each


def _given(parsed: Mapping[str, Source], source: Source, node: cst.CSTNode, option: str) -> set[str]:
    """Return the code that gives the loader the option, `args.num_workers`, also to the function that builds it."""
    arg = argument(node, option) if isinstance(node, cst.Call) else None
    bound = binding_of(source, arg.value) if arg is not None and isinstance(arg.value, cst.Name) else None
    if bound is not None and bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
        passed = passed_to(bound.scope, bound.parameter, None, parsed) or []
        return {parsed[path].code(value) for path, value in passed if value is not None}
    return {source.code(arg.value)} if arg is not None else set()


def _is_of_another(source: Source, read: cst.CSTNode, option: str) -> bool:
    """Whether an object is as a rule no loader: it gets the option, or gives it to a loader that is built of it."""
    above = source.parent(read)
    keyword = above.keyword.value if isinstance(above, cst.Arg) and above.keyword is not None else None
    call = source.parent(above) if above is not None else None
    builds = keyword == option and isinstance(call, cst.Call) and call_name(call) == "DataLoader"
    return builds or isinstance(above, cst.AssignTarget)


def _is_of_own_tensor(source: Source, call: cst.Call) -> bool:
    """Whether a method is called on a tensor that the program makes: `buffer = torch.empty(8)`, `x.new()`."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else call
    if isinstance(owner, cst.Call) and isinstance(owner.func, cst.Attribute) and call_name(owner) == "new":
        return True
    values = bound_to(source, owner) if isinstance(owner, cst.Name) else []
    return bool(values) and all(isinstance(each, cst.Call) and source.is_called(each.func, "torch.") for each in values)


def _is_harmless(source: Source, node: cst.BaseExpression, option: str) -> bool:
    arg = source.parent(node)
    keyword = arg.keyword if isinstance(arg, cst.Arg) else None
    made = source.parent(arg) if arg is not None else None
    return (
        keyword is not None
        and keyword.value in _HARMLESS.get(option, ())
        and isinstance(made, cst.Call)
        and call_name(made) != "dict"
    )


def _followed(sources: Mapping[str, str], names: set[str]) -> set[str]:
    """The names, and all that are bound to something that mentions one of them."""
    bound, found = _bound(sources), set(names)
    pending = list(names)
    while pending:
        new = bound.get(pending.pop(), frozenset()) - found
        found |= new
        pending += new
    return found


@per_program
def _bound(sources: Mapping[str, str]) -> Mapping[str, Set[str]]:
    """The names that are bound to values which mention one, by that name."""
    parsed = parse_all(sources)
    found: dict[str, set[str]] = {}
    for source in parsed.values():
        for value, targets in _bindings(parsed, source):
            for name in _mentioned(source, value) if targets else ():
                found.setdefault(name, set()).update(targets)
    return found


def _bindings(parsed: Mapping[str, Source], source: Source) -> Iterator[tuple[cst.CSTNode, set[str]]]:
    for assign in source.every(cst.Assign):
        yield assign.value, {name for target in assign.targets for name in _mentioned(source, target)}
    for loop in source.walk(None, cst.For, cst.CompFor):
        if isinstance(loop, cst.For | cst.CompFor):
            yield loop.iter, _mentioned(source, loop.target)
    for call in source.every(cst.Call):
        for arg in call.args:
            yield arg.value, set(parameters_for(call, arg, parsed) or ())


def _mentioned(source: Source, node: cst.CSTNode) -> set[str]:
    return {name.value for name in source.every(cst.Name, node)} - {"self"}
