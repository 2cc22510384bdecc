"""The effects of a second forward pass of a module: what it would do twice, or differently."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import parameter_of, values_of
from diagnose.source.dataflow.mutations import memory_of, written_in_place
from diagnose.source.dataflow.reaching_definitions import Bound, definition_of
from diagnose.source.rewrite.hooks import forward_hook
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.built_classes import Classes
from diagnose.source.tree.definitions import module_file
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with, parse_all, per_program
from diagnose.source.tree.syntax import Source

_OUTSIDE = frozenset({"builtins.print", "builtins.open", "builtins.next", "builtins.input"})
_NEW_ITERATORS = frozenset({"parameters", "buffers", "modules", "children", "named_parameters", "named_buffers"})
_ITERATED = frozenset({"values", "items"}) | _NEW_ITERATORS
"""Calls whose result `iter` makes a new iterator of; `iter(x)` of an iterator is `x` itself, which goes on."""
_DISPLAYS = (cst.List, cst.Tuple, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)
_DRAWS = ("random.", "numpy.random.")
_COLLECTS = frozenset(
    {"add", "append", "appendleft", "clear", "extend", "insert", "pop", "popleft", "setdefault", "update", "write"}
)

_OF_TENSORS = frozenset({"clone", "contiguous", "detach", "unsqueeze"})
"""Methods that tensors have and numbers have not; their result is a tensor."""


@dataclass(frozen=True)
class _Effect:
    """What a forward pass does besides computing with tensors."""

    node: cst.CSTNode
    what: str
    twice: str
    """What a second pass makes of it."""
    made_once: bool = False
    as_written: bool = False
    """Whether compiled code does it as it is written."""


def repeated_effect(sources: Mapping[str, str], callers: Collection[tuple[str, int]]) -> str | None:
    """The file, line and reason of the first: a hook, or in the `forward` of a class of modules and what it calls.

    `callers` are the files and lines that call what is computed again: the classes around them are not themselves.
    """
    hooked = forward_hook(sources)
    if hooked is not None:
        return f"{hooked} hooks modules, and a hook would run twice"
    found = next(_effects(sources, callers), None)
    if found is not None:
        return f"{found[0]} {found[1].what}{found[1].twice}"
    for path, source in files_with(sources, "spectral_norm"):
        for call in source.calls_named("spectral_norm"):
            return f"{path}:{source.lines_of(call)[0]} divides weights by a norm that each forward pass moves on, twice"
    for path, source, forward in _repeated(sources, callers):
        if (written := _written_input(source, forward)) is not None:
            line = source.lines_of(written)[0]
            return f"{path}:{line} changes its input in place, which a second pass would find changed"
    return None


def forward_effect(sources: Mapping[str, str], unused: Classes = frozenset()) -> str | None:
    """The file, line and kind of the first thing that a forward pass does and that compiled code may do otherwise.

    Values that are made once (a mask of the newest length) are none, nor are those that compiled code keeps as it is
    written, and `unused` classes do not count.
    """
    return _forward_effects(sources, unused)[0]


def makes_once(sources: Mapping[str, str], unused: Classes = frozenset()) -> bool:
    """Whether a forward pass does more than compute with tensors, values that it makes once or only keeps included."""
    return _forward_effects(sources, unused)[1]


@per_program
def _forward_effects(sources: Mapping[str, str], unused: Classes) -> tuple[str | None, bool]:
    """The first effect that compiled code may have otherwise, and whether there is an effect of any kind."""
    found = False
    for place, effect in _effects(sources, (), unused):
        found = True
        if not (effect.made_once or effect.as_written):
            return f"{place} {effect.what}", True
    return None, found


def method_effect(sources: Mapping[str, str], names: Collection[str]) -> str | None:
    """The file, line and kind of the first such thing in the methods with these names, of whatever class."""
    parsed = parse_all(sources)
    for path, source in parsed.items():
        for around in source.every(cst.ClassDef) if source.function_names & set(names) else ():
            for start in (each for each in _methods(source, around) if each.name.value in names):
                for file, other, method in _with_called(parsed, path, source, around, start):
                    found = next((each for each in _effects_in(other, method) if not each.as_written), None)
                    if found is not None:
                        return f"{file}:{other.lines_of(found.node)[0]} {found.what}"
    return None


def _effects(
    sources: Mapping[str, str], callers: Collection[tuple[str, int]], unused: Classes = frozenset()
) -> Iterator[tuple[str, _Effect]]:
    """The effects of all forward passes, each behind its file and line."""
    parsed = parse_all(sources)
    for path, source, forward in _repeated(sources, callers, unused):
        around = source.inside(forward, cst.ClassDef)
        assert around is not None  # it is a method
        for file, other, method in _with_called(parsed, path, source, around, forward):
            for found in (*_effects_in(other, method), *_written_by_called(parsed, file, other, method)):
                yield f"{file}:{other.lines_of(found.node)[0]}", found


def _repeated(
    sources: Mapping[str, str], callers: Collection[tuple[str, int]], unused: Classes = frozenset()
) -> Iterator[tuple[str, Source, cst.FunctionDef]]:
    """The forward passes of all classes but those around the callers and `unused` ones."""
    for path, source, around in _modules(parse_all(sources)):
        first, last = source.lines_of(around)
        calls = any(file == path and first <= line <= last for file, line in callers)
        if not calls and (path, around.name.value) not in unused:
            yield path, source, next(each for each in _methods(source, around) if each.name.value == "forward")


def _written_input(source: Source, forward: cst.FunctionDef) -> cst.CSTNode | None:
    """Return where a forward pass writes into a tensor that it is given, as long as the parameter still names that."""
    for written in written_in_place(source, forward.body):
        if isinstance(written, cst.Name) and parameter_of(forward, written.value) is not None:
            found = definition_of(source, written)
            if found.bound is Bound.PARAMETER:
                return written
    return None


def _modules(parsed: Mapping[str, Source]) -> Iterator[tuple[str, Source, cst.ClassDef]]:
    """The classes of a program that have a forward pass."""
    for path, source in parsed.items():
        for around in source.every(cst.ClassDef) if "def forward" in source.text else ():
            if any(each.name.value == "forward" for each in _methods(source, around)):
                yield path, source, around


def _methods(source: Source, around: cst.ClassDef) -> Iterator[cst.FunctionDef]:
    return (each for each in source.every(cst.FunctionDef, around) if source.inside(each, cst.ClassDef) is around)


def _with_called(
    parsed: Mapping[str, Source], path: str, source: Source, around: cst.ClassDef, start: cst.FunctionDef
) -> Iterator[tuple[str, Source, cst.FunctionDef]]:
    """A method of a class, and the methods and functions of the program that it calls, by their names; of objects that
    outlive the call, the methods of whatever class.
    """
    methods = {each.name.value: each for each in _methods(source, around)}
    pending, done = [(path, source, start)], {start}
    while pending:
        at, other, function = pending.pop(0)
        yield at, other, function
        for call in other.every(cst.Call, function.body):
            of_self = isinstance(call.func, cst.Attribute) and other.code(call.func.value) == "self"
            called: list[tuple[str, Source, cst.FunctionDef]] = []
            if of_self and other is source and call_name(call) in methods:
                called = [(path, source, methods[call_name(call)])]
            elif of_self or (isinstance(call.func, cst.Attribute) and _outlives(parsed, at, other, call.func)):
                called = list(_methods_named(parsed, call_name(call)))
            else:
                called = list(_functions_called(parsed, at, other, call))
            pending += [one for one in called if one[2] not in done]
            done |= {one[2] for one in called}


def _functions_called(
    parsed: Mapping[str, Source], path: str, source: Source, call: cst.Call
) -> Iterator[tuple[str, Source, cst.FunctionDef]]:
    """The functions of the program that a call by a name, or by `module.name`, may call."""
    if isinstance(call.func, cst.Name):
        own = [(path, source, one) for one in source.functions_named(call_name(call)) if _is_of_file(source, one)]
        yield from own or _functions(parsed, call_name(call))
    elif isinstance(call.func, cst.Attribute) and _is_of_program(parsed, path, source, call.func):
        yield from _functions(parsed, call_name(call))


def _is_of_program(parsed: Mapping[str, Source], path: str, source: Source, callee: cst.BaseExpression) -> bool:
    """Whether what is called is imported from a file of the program's."""
    modules = {name.rpartition(".")[0] for name in source.imported(callee)}
    return any(each and module_file(each, path, parsed) is not None for each in modules)


def _outlives(parsed: Mapping[str, Source], path: str, source: Source, callee: cst.Attribute) -> bool:
    """Whether a method is one of an object that the module or the program keeps: no library's function, and nothing
    that is passed, which is a tensor as a rule.
    """
    if isinstance(callee.value, cst.Name) and definition_of(source, callee.value).bound is Bound.PARAMETER:
        return False
    modules = {name.partition(".")[0] for name in source.imported(callee)}
    of_library = bool(modules) and all(each and module_file(each, path, parsed) is None for each in modules)
    return not of_library and _is_kept(source, callee.value)


def _methods_named(parsed: Mapping[str, Source], name: str) -> Iterator[tuple[str, Source, cst.FunctionDef]]:
    """The methods of a program's own classes with that name; `forward` is looked at for itself."""
    for path, source in parsed.items() if name != "forward" else ():
        for each in source.functions_named(name) if name in source.function_names else ():
            if isinstance(source.parent(source.parent(each) or each), cst.ClassDef):
                yield path, source, each


def _is_of_file(source: Source, function: cst.FunctionDef) -> bool:
    """Whether a function is neither a method nor within another."""
    return source.inside(function, (cst.FunctionDef, cst.ClassDef)) is None


def _functions(parsed: Mapping[str, Source], name: str) -> Iterator[tuple[str, Source, cst.FunctionDef]]:
    """The functions of a program of that name that are no methods."""
    for path, source in parsed.items():
        for each in source.every(cst.FunctionDef) if f"def {name}(" in source.text else ():
            if each.name.value == name and source.inside(each, cst.ClassDef) is None:
                yield path, source, each


def _effects_in(source: Source, method: cst.FunctionDef) -> Iterator[_Effect]:
    for node in source.walk(method.body):
        if isinstance(node, cst.Global | cst.Nonlocal):
            yield _Effect(node, "changes a variable of the program", ", twice")
        elif isinstance(node, cst.AssignTarget | cst.AugAssign) and _is_kept(source, node.target):
            twice = ", which the second pass replaces"
            made_once, as_written = _is_made_once(source, node), _is_compiled_as_written(source, method, node)
            yield _Effect(node, "keeps a value of the forward pass", twice, made_once, as_written)
        elif isinstance(node, cst.Call):
            names = source.names(node.func)
            collects = isinstance(node.func, cst.Attribute) and node.func.attr.value in _COLLECTS
            # A set's `add` has no result; `x.add(y)` and `torch.add(x, y)` have one, and change nothing.
            collects = collects and (call_name(node) != "add" or isinstance(source.parent(node), cst.Expr))
            if names & _OUTSIDE and not _is_first_of(source, node):
                yield _Effect(node, f"calls `{source.code(node.func)}`", ", which would happen twice")
            elif any(name.startswith(_DRAWS) for name in names):
                yield _Effect(node, "draws random numbers that are not torch's", ", and would draw others")
            elif _draws_from_kept(source, node):
                yield _Effect(node, "draws from a generator of the program's own", ", and would draw others")
            elif collects and isinstance(node.func, cst.Attribute) and _is_kept(source, node.func.value):
                yield _Effect(node, "collects values", ", twice")
    for written in written_in_place(source, method.body):
        if any(_is_kept_tensor(source, each) for each in (written, *values_of(source, written))):
            yield _Effect(written, "changes a tensor that the module keeps", ", twice")


def _written_by_called(
    parsed: Mapping[str, Source], path: str, source: Source, method: cst.FunctionDef
) -> Iterator[_Effect]:
    """The calls in a method that have a function of the program write into a tensor that is kept."""
    for call in source.every(cst.Call, method.body):
        if not any(_is_kept_tensor(source, arg.value) for arg in call.args):
            continue
        for _, other, function in _functions_called(parsed, path, source, call):
            for number, param in enumerate(function.params.params):
                given = argument(call, param.name.value, number)
                if given is not None and _is_kept_tensor(source, given.value) and _writes_to(other, function, param):
                    yield _Effect(call, "changes a tensor that the module keeps", ", twice")


def _writes_to(source: Source, function: cst.FunctionDef, param: cst.Param) -> bool:
    """Whether a function writes into what it is given, as long as the parameter still names that."""
    return any(
        isinstance(written, cst.Name)
        and written.value == param.name.value
        and definition_of(source, written).bound is Bound.PARAMETER
        for written in written_in_place(source, function.body)
    )


def _is_kept_tensor(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is memory that outlives the call, and no argument of it."""
    node = memory_of(node)
    if isinstance(node, cst.Name):
        return _is_kept(source, node) and definition_of(source, node).bound is Bound.OUTER
    return isinstance(node, cst.Attribute) and _is_kept(source, node)


def _draws_from_kept(source: Source, call: cst.Call) -> bool:
    """Whether a call draws from a generator that outlives it, whose state a second pass does not go back to."""
    given = argument(call, "generator")
    if given is not None and source.code(given.value) != "None" and _is_kept(source, given.value):
        return True
    made = values_of(source, call.func.value) if isinstance(call.func, cst.Attribute) else ()
    kept = isinstance(call.func, cst.Attribute) and _is_kept(source, call.func.value)
    return kept and any(
        isinstance(each, cst.Call) and any(name.startswith(_DRAWS) for name in source.names(each.func)) for each in made
    )


def _is_first_of(source: Source, call: cst.Call) -> bool:
    """Whether a call is `next(…)` of an iterator that nobody else has: `next(self.parameters())`, `next(iter([x]))`."""
    given = call.args[0].value if source.code(call.func) == "next" and len(call.args) == 1 else None
    if not isinstance(given, cst.Call) or source.code(given.func) != "iter" or len(given.args) != 1:
        return isinstance(given, cst.Call) and call_name(given) in _NEW_ITERATORS
    of = given.args[0].value
    return isinstance(of, _DISPLAYS) or (
        isinstance(of, cst.Call) and isinstance(of.func, cst.Attribute) and call_name(of) in _ITERATED
    )


def _is_made_once(source: Source, node: cst.AssignTarget | cst.AugAssign) -> bool:
    """Whether an attribute is set where a test of it says that it has to be, and not by what it was; or set to None."""
    assign = source.parent(node)
    if isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Name) and assign.value.value == "None":
        return True
    target = source.code(node.target)
    if not isinstance(node, cst.AssignTarget) or not isinstance(node.target, cst.Attribute):
        return False
    if isinstance(assign, cst.Assign) and any(
        source.code(x) == target for x in source.every(cst.Attribute, assign.value)
    ):
        return False
    tests = (above.test for above in source.ancestors(node) if isinstance(above, cst.If))
    return any(source.code(read) == target for test in tests for read in source.every(cst.Attribute, test))


def _is_compiled_as_written(source: Source, method: cst.FunctionDef, node: cst.AssignTarget | cst.AugAssign) -> bool:
    """Whether compiled code keeps what a statement keeps: tensors, and what no class reads.

    Where `forward` computes with a number that goes on by itself, `self.scale = self.scale * 0.99`, torch 2.13 compiles
    code that stays at an early one.
    """
    target = node.target
    if isinstance(target, cst.Subscript):  # only tensors and arrays take a slice among several indices
        several = len(target.slice) > 1
        return several and isinstance(target.value, cst.Name) and any(_is_slice(each) for each in target.slice)
    if not isinstance(node, cst.AssignTarget) or not isinstance(target, cst.Attribute):
        return False
    assign = source.parent(node)
    value = assign.value if isinstance(assign, cst.Assign) else None
    is_tensor = isinstance(value, cst.Call) and call_name(value) in _OF_TENSORS
    return (
        is_of_self(target)
        and source.inside(method, cst.ClassDef) is not None
        and (is_tensor or not _is_read(source, target))
    )


def _is_read(source: Source, kept: cst.Attribute) -> bool:
    """Whether a class of the file reads an attribute with this name, of whatever object."""
    return any(
        each.attr.value == kept.attr.value and not isinstance(source.parent(each), cst.AssignTarget)
        for around in source.every(cst.ClassDef)
        for each in source.every(cst.Attribute, around)
    )


def _is_slice(element: cst.SubscriptElement) -> bool:
    return isinstance(element.slice, cst.Slice)


def _is_kept(source: Source, node: cst.BaseExpression) -> bool:
    """Whether what an expression names outlives the call: an attribute, or a variable from outside the function."""
    while isinstance(node, cst.Subscript):
        node = node.value
    if isinstance(node, cst.Attribute):
        while isinstance(node, cst.Attribute | cst.Subscript):
            node = node.value
        if not isinstance(node, cst.Name):
            return False
        return node.value == "self" or definition_of(source, node).bound is Bound.OUTER
    if not isinstance(node, cst.Name) or isinstance(source.parent(node), cst.AssignTarget | cst.AugAssign):
        return False
    return definition_of(source, node).bound in {Bound.OUTER, Bound.PARAMETER}
