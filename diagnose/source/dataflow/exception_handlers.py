"""The handlers that may see an error of a piece of code: those around it, and around the calls that lead to it."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.tree.definitions import called_as
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

Place = tuple[str, Source, cst.CSTNode]
"""A file, its source, and a node of it."""
Catcher = Place
"""The statement that catches."""

ERRORS_OF_FILES = frozenset({"OSError", "RuntimeError", "AttributeError", "TypeError", "ValueError", "PicklingError"})
"""What `torch.save` raises."""


def ways_to(sources: Mapping[str, Source], path: str, node: cst.CSTNode) -> Iterator[Place]:
    """A node, and the places from which its function is called, or handed to others that may call it, and so on."""
    return ways_to_any(sources, [(path, sources[path], node)])


def ways_to_any(sources: Mapping[str, Source], begins: Iterable[Place]) -> Iterator[Place]:
    """Several nodes, and the places from which their functions are called or handed on; each function's once."""
    pending = [*begins]
    seen: set[cst.CSTNode] = set()
    while pending:
        at = pending.pop()
        yield at
        _, source, place = at
        functions = [above for above in source.ancestors(place) if isinstance(above, cst.FunctionDef)]
        for function in functions:
            if function not in seen:
                seen.add(function)
                pending += _mentions(sources, source, function)


def _mentions(
    sources: Mapping[str, Source], source: Source, function: cst.FunctionDef
) -> list[tuple[str, Source, cst.CSTNode]]:
    names = called_as(source, function, sources.values())
    owner = source.inside(function, cst.ClassDef)
    if function.name.value == "__init__" and owner is not None:
        names = frozenset({owner.name.value})
    found: list[tuple[str, Source, cst.CSTNode]] = []
    for path, other in sources.items():
        if not other.may_name(*names):
            continue
        known = names | {
            other.code(alias.asname.name)
            for alias in other.every(cst.ImportAlias)
            if alias.asname is not None and other.code(alias.name) in names
        }
        named = (name for each in known for name in other.named(each))
        for name in sorted(named, key=lambda each: other.extent(each)[0]):
            above = other.parent(name)
            if isinstance(above, cst.FunctionDef | cst.ImportAlias | cst.Param):
                continue
            if isinstance(above, cst.Arg) and above.keyword is name:
                continue
            foreign = isinstance(above, cst.Attribute) and any(
                each.startswith(("torch.", "numpy.")) for each in other.names(above)
            )
            if not foreign and not within(other, name, function):
                found.append((path, other, name))
    return found


def who_catches(
    sources: Mapping[str, Source], path: str, node: cst.CSTNode, errors: Collection[str] | None
) -> Catcher | None:
    """The first statement that may catch one of these errors; `errors` None: any, an interrupt too."""
    for at, source, place in ways_to(sources, path, node):
        below = place
        for above in source.ancestors(place):
            tried = isinstance(above, cst.With) or below is getattr(above, "body", None)
            if tried and may_catch(sources, source, above, errors):
                return at, source, above
            if isinstance(above, cst.Call | cst.FunctionDef) and _is_tried(sources, source, above, errors):
                return at, source, above
            below = above
    return _replaced_hook(sources)


def catching(
    sources: Mapping[str, Source], errors: Collection[str]
) -> Iterator[tuple[str, Source, cst.CSTNode, cst.CSTNode]]:
    """Every piece of code, with its file, whose errors of these kinds something may catch, and what catches them.

    The body of a `try` and of `with suppress(…)`, a function whose decorator tries it, a call of a function that tries
    what it is handed.
    """
    for path, source in sources.items():
        for each in source.walk(None, cst.Try, cst.TryStar, cst.With, cst.FunctionDef, cst.Call):
            if isinstance(each, cst.Call):
                if any(_is_function(source, arg.value) for arg in each.args) and _is_tried(
                    sources, source, each, errors
                ):
                    yield path, source, each, each
            elif isinstance(each, cst.FunctionDef):
                if _is_tried(sources, source, each, errors):
                    yield path, source, each.body, each
            elif may_catch(sources, source, each, errors):
                assert isinstance(each, cst.Try | cst.TryStar | cst.With)
                yield path, source, each.body, each


def _is_function(source: Source, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Lambda) or source.code(value).rpartition(".")[2] in source.function_names


def may_catch(
    sources: Mapping[str, Source], source: Source, around: cst.CSTNode, errors: Collection[str] | None
) -> bool:
    """Whether a `try` or a `with` statement may catch one of these errors of its body; `errors` None: any."""
    if isinstance(around, cst.Try | cst.TryStar):
        return _handles(source, around, errors)
    return isinstance(around, cst.With) and any(_suppresses(sources, source, each, errors) for each in around.items)


def _is_tried(
    sources: Mapping[str, Source], source: Source, node: cst.Call | cst.FunctionDef, errors: Collection[str] | None
) -> bool:
    taker = _own_taker(sources, source, node)
    return taker is not None and _tries_within(*taker, errors)


def _handles(source: Source, block: cst.Try | cst.TryStar, errors: Collection[str] | None) -> bool:
    return any(_catches(source, handler.type, errors) for handler in block.handlers)


def _catches(source: Source, kind: cst.BaseExpression | None, errors: Collection[str] | None) -> bool:
    if kind is None or errors is None:
        return True
    if isinstance(kind, cst.Tuple):
        return any(_catches(source, each.value, errors) for each in kind.elements)
    name = source.code(kind).rpartition(".")[2]
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        raised = [error for each in errors if isinstance(error := getattr(builtins, each, None), type)]
        return any(issubclass(error, known) or issubclass(known, error) for error in raised) or name in errors
    own_or_library = any(each.name.value == name for each in source.every(cst.ClassDef)) or isinstance(
        kind, cst.Attribute
    )
    imported = any(
        source.code(alias.asname.name if alias.asname is not None else alias.name) == name
        for alias in source.every(cst.ImportAlias)
    )
    return name in errors or not (own_or_library or imported)


def _suppresses(
    sources: Mapping[str, Source], source: Source, item: cst.WithItem, errors: Collection[str] | None
) -> bool:
    call = item.item
    name = call_name(call) if isinstance(call, cst.Call) else source.code(call).rpartition(".")[2]
    if name in {"suppress", "raises", "assertRaises"} and isinstance(call, cst.Call):
        return any(_catches(source, arg.value, errors) for arg in call.args)
    for other in sources.values():
        if any(_swallows(other, written) for written in other.classes_named(name)):
            return True
        for function in other.functions_named(name):
            if any(other.every(cst.Yield, function)):
                return _tries_within(other, function, errors)
    return False


def _swallows(source: Source, written: cst.ClassDef) -> bool:
    """Whether a context manager may say that an error is dealt with."""
    for function in source.every(cst.FunctionDef, written):
        if function.name.value == "__exit__":
            values = [each.value for each in source.every(cst.Return, function)]
            return any(value is not None and source.code(value) not in {"None", "False"} for value in values)
    return False


def _own_taker(
    sources: Mapping[str, Source], source: Source, node: cst.Call | cst.FunctionDef
) -> tuple[Source, cst.FunctionDef] | None:
    """The program's own function that a piece of code is handed to, as an argument or by a decorator."""
    names = [call_name(node)] if isinstance(node, cst.Call) else []
    for each in node.decorators if isinstance(node, cst.FunctionDef) else ():
        first = each.decorator
        names.append(call_name(first) if isinstance(first, cst.Call) else source.code(first).rpartition(".")[2])
    for other in sources.values() if any(names) else ():
        for function in other.functions_named(*names)[:1]:
            return other, function
    return None


def _tries_within(source: Source, function: cst.FunctionDef, errors: Collection[str] | None) -> bool:
    return any(_handles(source, each, errors) for each in source.every(cst.Try, function))


def _replaced_hook(sources: Mapping[str, Source]) -> Catcher | None:
    for path, source in sources.items():
        for assign in source.every(cst.Assign) if source.mentions("sys.excepthook") else ():
            if any(source.code(each.target) == "sys.excepthook" for each in assign.targets):
                return path, source, assign
    return None
