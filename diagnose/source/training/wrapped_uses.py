"""Where a program asks a compiled model for what `torch.compile(model)` changes.

The object that `torch.compile(model)` gives back puts `_orig_mod.` before the names of parameters, is of another class,
prints otherwise and is pickled whole. `model.compile()` leaves all that as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.training.compilation import Compiled
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

__all__ = ["use_of_wrapper"]

_NAMED = frozenset(
    {"state_dict", "load_state_dict", "named_parameters", "named_modules", "named_children", "named_buffers"}
    | {"modules", "children", "get_submodule", "get_parameter", "__class__", "__dict__"}
)
_TAKES_WHOLE = frozenset({"isinstance", "type", "print", "str", "repr", "deepcopy", "save", "dump", "dumps", "summary"})


def use_of_wrapper(sources: Mapping[str, str], compiled: Compiled) -> str | None:
    """The file and line of the first such use, under any of the names that the model goes by; None without one."""
    if not isinstance(compiled.node, cst.Call) or "torch.compile" not in compiled.source.names(compiled.node.func):
        return None
    parsed = {path: source for path, text in sources.items() if (source := parse(text)) is not None}
    assign = compiled.source.parent(compiled.node)
    names = {compiled.target.rpartition(".")[2]}
    if isinstance(assign, cst.Assign):
        names |= {compiled.source.code(each.target).rpartition(".")[2] for each in assign.targets}
    known: set[str] = set()
    while names - known:
        known = set(names)
        names |= {
            alias for source in parsed.values() if source.mentions(*known) for alias in _aliases(parsed, source, known)
        }
    for path, source in parsed.items():
        for node in source.walk() if source.mentions(*names) else ():
            if _asks(source, node, names):
                return f"{path}:{source.lines_of(node)[0]}"
    return None


def _leaf(source: Source, node: cst.BaseExpression) -> str:
    return source.code(node).rpartition(".")[2] if isinstance(node, cst.Name | cst.Attribute) else ""


def _aliases(parsed: Mapping[str, Source], source: Source, names: set[str]) -> Iterator[str]:
    """Other names of it: `raw_model = model.module if ddp else model`, `model = DDP(model)`, parameters."""
    for assign in source.every(cst.Assign):
        value = assign.value
        sides = [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]
        sides += [arg.value for arg in value.args] if isinstance(value, cst.Call) else []
        holds = [
            side.value if isinstance(side, cst.Attribute) and side.attr.value == "module" else side for side in sides
        ]
        if any(_leaf(source, each) in names for each in holds):
            yield from (_leaf(source, each.target) for each in assign.targets if _leaf(source, each.target))
    for call in source.every(cst.Call):
        for at, arg in enumerate(call.args):
            if _leaf(source, arg.value) not in names:
                continue
            if arg.keyword is not None:
                yield arg.keyword.value
                continue
            for other in parsed.values():
                for function in other.every(cst.FunctionDef) if other.mentions(call_name(call)) else ():
                    given = [each.name.value for each in function.params.params if each.name.value != "self"]
                    made = other.inside(function, cst.ClassDef) if function.name.value == "__init__" else None
                    name = made.name.value if made is not None else function.name.value
                    if name == call_name(call) and at < len(given):
                        yield given[at]


def _asks(source: Source, node: cst.CSTNode, names: set[str]) -> bool:
    if isinstance(node, cst.Attribute) and node.attr.value in _NAMED:
        held = node.value
        held = held.value if isinstance(held, cst.Attribute) and held.attr.value == "module" else held
        return _leaf(source, held) in names
    if isinstance(node, cst.Call) and call_name(node) in _TAKES_WHOLE:
        return any(_leaf(source, arg.value) in names for arg in node.args)
    return isinstance(node, cst.FormattedStringExpression) and _leaf(source, node.expression) in names
