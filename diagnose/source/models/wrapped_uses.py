"""Where a program asks a compiled model for what `torch.compile(model)` changes.

The object that `torch.compile(model)` gives back puts `_orig_mod.` before the names of parameters, is of another class,
prints otherwise and is pickled whole. `model.compile()` leaves all that as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.models.compilation import Compiled
from diagnose.source.tree.memo import parse_all, per_program, per_source
from diagnose.source.tree.syntax import Source

_NAMED = frozenset(
    {"state_dict", "load_state_dict", "named_parameters", "named_modules", "named_children", "named_buffers"}
    | {"modules", "children", "get_submodule", "get_parameter", "__class__", "__dict__"}
)
_TAKES_WHOLE = frozenset({"isinstance", "type", "print", "str", "repr", "deepcopy", "save", "dump", "dumps", "summary"})


def use_of_wrapper(sources: Mapping[str, str], compiled: Compiled) -> str | None:
    """The file and line of the first such use, under any of the names that the model goes by; None without one."""
    if not isinstance(compiled.node, cst.Call) or "torch.compile" not in compiled.source.names(compiled.node.func):
        return None
    assign = compiled.source.parent(compiled.node)
    names = {compiled.target.rpartition(".")[2]}
    if isinstance(assign, cst.Assign):
        names |= {compiled.source.code(each.target).rpartition(".")[2] for each in assign.targets}
    return _first_use(sources, frozenset(names))


@per_program
def _first_use(sources: Mapping[str, str], names: frozenset[str]) -> str | None:
    parsed = parse_all(sources)
    known: set[str] = set()
    new = set(names)
    while new:
        known |= new
        holding = [_handed_on(source) for source in parsed.values() if not source.words.isdisjoint(new)]
        handed = {to for given in holding for name in given.keys() & new for to in given[name]}
        new = {alias for to in handed for alias in _aliases(parsed, to)} - known
    for path, source in parsed.items():
        asked = () if source.words.isdisjoint(known) else _questions(source)
        lines = [line for line, held in asked if not known.isdisjoint(held)]
        if lines:
            return f"{path}:{min(lines)}"
    return None


def _leaf(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _called(call: ast.Call) -> str:
    return _leaf(call.func.value if isinstance(call.func, ast.Subscript) else call.func)


def _arguments(call: ast.Call) -> list[tuple[str | None, ast.expr]]:
    """The arguments of a call in the order of the text, each with its keyword."""
    given: list[ast.expr | ast.keyword] = sorted(
        (*call.args, *call.keywords), key=lambda each: (each.lineno, each.col_offset)
    )
    return [
        (each.arg if isinstance(each, ast.keyword) else None, each.value)
        if isinstance(each, ast.keyword | ast.Starred)
        else (None, each)
        for each in given
    ]


@per_source
def _handed_on(source: Source) -> Mapping[str, Collection[str | tuple[str, int]]]:
    """By each name, other names that what it stands for gets, or what takes it as which argument.

    `raw_model = model.module if ddp else model`, `model = DDP(model)`, `train(model)`.
    """
    found: dict[str, set[str | tuple[str, int]]] = {}
    for node in source.outline.every(ast.Assign):
        value = node.value
        sides = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        sides += [given for _, given in _arguments(value)] if isinstance(value, ast.Call) else []
        targets = [leaf for each in node.targets if (leaf := _leaf(each))]
        for side in sides:
            of_module = isinstance(side, ast.Attribute) and side.attr == "module"
            each = side.value if isinstance(side, ast.Attribute) and of_module else side
            found.setdefault(_leaf(each), set()).update(targets)
    for call in source.outline.every(ast.Call):
        for at, (keyword, given) in enumerate(_arguments(call)):
            found.setdefault(_leaf(given), set()).add(keyword if keyword is not None else (_called(call), at))
    found.pop("", None)
    return found


def _aliases(parsed: Mapping[str, Source], to: str | tuple[str, int]) -> Iterator[str]:
    """The names that something gets: that itself, or those of the parameters that take an argument."""
    if isinstance(to, str):
        yield to
        return
    name, at = to
    for source in parsed.values():
        for given in _parameters(source).get(name, ()) if name in source.defined_names else ():
            yield from given[at : at + 1]


@per_source
def _parameters(source: Source) -> Mapping[str, Sequence[Sequence[str]]]:
    """The parameters of a file's functions, by the name by which they are called: their own, or that of their class."""
    found: dict[str, list[list[str]]] = {}
    pending: list[tuple[ast.AST, str | None]] = [(source.outline.tree, None)]
    while pending:
        node, owner = pending.pop()
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [each.arg for each in node.args.args if each.arg != "self"]
            is_init = node.name == "__init__" and owner is not None
            found.setdefault(owner if is_init and owner is not None else node.name, []).append(given)
        pending += [(each, owner) for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
    return found


@per_source
def _questions(source: Source) -> Sequence[tuple[int, frozenset[str]]]:
    """The lines of what would be another of a wrapper, with the names of what is asked."""
    found: list[tuple[int, frozenset[str]]] = []
    outline = source.outline
    for node in (*outline.every(ast.Attribute), *outline.every(ast.Call), *outline.every(ast.FormattedValue)):
        held: list[ast.expr] = []
        if isinstance(node, ast.Attribute) and node.attr in _NAMED:
            inner = node.value
            held = [inner.value if isinstance(inner, ast.Attribute) and inner.attr == "module" else inner]
        elif isinstance(node, ast.Call) and _called(node) in _TAKES_WHOLE:
            held = [given for _, given in _arguments(node)]
        elif isinstance(node, ast.FormattedValue):
            held = [node.value]
        names = frozenset(filter(None, map(_leaf, held)))
        if names:
            found.append(((held[0] if isinstance(node, ast.FormattedValue) else node).lineno, names))
    return found
