"""Where a program asks a compiled model for what `torch.compile(model)` changes.

The object that `torch.compile(model)` gives back puts `_orig_mod.` before the names of parameters, is of another class,
prints otherwise and is pickled whole. `model.compile()` leaves all that as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.models.compilation import Compiled
from diagnose.source.tree.definitions import Definitions
from diagnose.source.tree.edits import call_name
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
    definitions = Definitions(parsed)
    known: set[str] = set()
    new = set(names)
    while new:
        known |= new
        holding = [source for source in parsed.values() if not source.words.isdisjoint(new)]
        handed = [_handed_on(source).get(name, ()) for source in holding for name in new]
        new = {alias for each in handed for to in each for alias in _aliases(definitions, to)} - known
    for path, source in parsed.items():
        for node, held in () if source.words.isdisjoint(known) else _asked(source):
            if not known.isdisjoint(held):
                return f"{path}:{source.lines_of(node)[0]}"
    return None


def _leaf(source: Source, node: cst.BaseExpression) -> str:
    return source.code(node).rpartition(".")[2] if isinstance(node, cst.Name | cst.Attribute) else ""


@per_source
def _handed_on(source: Source) -> Mapping[str, Collection[str | tuple[str, int]]]:
    """By each name, other names that what it stands for gets, or what takes it as which argument.

    `raw_model = model.module if ddp else model`, `model = DDP(model)`, `train(model)`.
    """
    found: dict[str, dict[str | tuple[str, int], None]] = {}
    for assign in source.every(cst.Assign):
        value = assign.value
        sides = [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]
        sides += [arg.value for arg in value.args] if isinstance(value, cst.Call) else []
        holds = [
            side.value if isinstance(side, cst.Attribute) and side.attr.value == "module" else side for side in sides
        ]
        targets = [leaf for each in assign.targets if (leaf := _leaf(source, each.target))]
        for each in holds:
            found.setdefault(_leaf(source, each), {}).update(dict.fromkeys(targets))
    for call in source.every(cst.Call):
        for at, arg in enumerate(call.args):
            to = arg.keyword.value if arg.keyword is not None else (call_name(call), at)
            found.setdefault(_leaf(source, arg.value), {})[to] = None
    found.pop("", None)
    return found


def _aliases(definitions: Definitions, to: str | tuple[str, int]) -> Iterator[str]:
    """The names that something gets: that itself, or those of the parameters that take an argument."""
    if isinstance(to, str):
        yield to
        return
    name, at = to
    for function in definitions.called(name):
        given = [each.name.value for each in function.params.params if each.name.value != "self"]
        yield from given[at : at + 1]


@per_source
def _asked(source: Source) -> Sequence[tuple[cst.CSTNode, frozenset[str]]]:
    """What would be another of a wrapper, with the names of what is asked, in the order of the text."""
    found: list[tuple[cst.CSTNode, frozenset[str]]] = []
    for node in source.walk(None, cst.Attribute, cst.Call, cst.FormattedStringExpression):
        held: list[cst.BaseExpression] = []
        if isinstance(node, cst.Attribute) and node.attr.value in _NAMED:
            inner = node.value
            of_module = isinstance(inner, cst.Attribute) and inner.attr.value == "module"
            held = [inner.value if isinstance(inner, cst.Attribute) and of_module else inner]
        elif isinstance(node, cst.Call) and call_name(node) in _TAKES_WHOLE:
            held = [arg.value for arg in node.args]
        elif isinstance(node, cst.FormattedStringExpression):
            held = [node.expression]
        names = frozenset(filter(None, (_leaf(source, each) for each in held)))
        if names:
            found.append((node, names))
    return found
