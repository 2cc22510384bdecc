"""Gated units: `silu(gate) * up` and `gelu(gate) * up`, the two from projections of one width or halves of one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of, unchanged_until
from diagnose.source.patterns.cross_entropy import Step, behind
from diagnose.source.patterns.formula import Operation, certain, operation, source_kind
from diagnose.source.rewrite.leftovers import nothing_else_reads
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.syntax import Source

__all__ = ["GatedUnit", "gated_units"]

_MODULES = {"SiLU": "silu", "GELU": "gelu"}
_HALVES = frozenset({"chunk", "split", "tensor_split", "unbind"})


@dataclass(frozen=True)
class GatedUnit:
    """`root` is `activation(gate) * up`."""

    root: cst.BaseExpression
    activation: str
    """`silu`, or GELU by its error function, `gelu`, or by tanh, `gelu_tanh`."""
    gate: cst.BaseExpression
    up: cst.BaseExpression
    steps: tuple[Step, ...]
    """Statements that nobody needs any more."""


def gated_units(source: Source, others: Collection[str] = ()) -> Iterator[GatedUnit]:
    """Those of a file, in the order of the text; `others` are the texts of the program's other files."""
    for node in source.walk(None, cst.BinaryOperation, cst.Call):
        if not isinstance(node, cst.BinaryOperation | cst.Call):
            continue
        made = operation(source, node)
        if made is None or made.name != "mul" or len(made.operands) != 2 or made.keywords:
            continue
        for act, up in (made.operands, made.operands[::-1]):
            found = _unit(source, node, act, up, others)
            if found is not None:
                yield found
                break


def _unit(
    source: Source,
    root: cst.BaseExpression,
    act: cst.BaseExpression,
    up: cst.BaseExpression,
    others: Collection[str],
) -> GatedUnit | None:
    made = certain(source, act)
    kind = _kind(source, made) if made is not None else None
    if made is None or kind is None or not made.operands:
        return None
    gate, at = made.operands[0], statement_of(source, root)
    gone = [statement for statement, _ in made.through]
    if not unchanged_until(source, gate, at, gone) or not nothing_else_reads(source, root, made.through):
        return None
    return GatedUnit(root, kind, gate, up, made.through) if _of_one_shape(source, gate, up, others) else None


def _kind(source: Source, made: Operation) -> str | None:
    if made.module is not None:
        name, given = _MODULES.get(source_kind(source, made.module)), argument(made.module, "approximate", 0)
        way = source.code(given.value).strip("\"'") if given is not None and name == "gelu" else "none"
    else:
        name = made.name if made.name in {"silu", "gelu"} and not made.method else None
        asked = made.keywords.get("approximate")
        way = source.code(asked).strip("\"'") if asked is not None else "none"
        if len(made.operands) > 1 or made.keywords.keys() - {"approximate"}:
            return None
    if name != "gelu":
        return name
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(way)


def _of_one_shape(
    source: Source, gate: cst.BaseExpression, up: cst.BaseExpression, others: Collection[str] = ()
) -> bool:
    """Whether two tensors are seen to have one shape: a product that broadcasts is another thing."""
    given = _given(source, gate, up, others)
    if given is not None:
        return bool(given) and all(_of_one_shape(source, *pair) for pair in given)
    one, other = (_origin(source, node) for node in (gate, up))
    return one is not None and one == other


def _given(
    source: Source, gate: cst.BaseExpression, up: cst.BaseExpression, others: Collection[str]
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]] | None:
    """What every call of a function gives two of its parameters, none where a use is not followed; None for others."""
    if not isinstance(gate, cst.Name) or not isinstance(up, cst.Name):
        return None
    bound = [reaching(source, statement_of(source, name), name.value) for name in (gate, up)]
    function = bound[0].statement
    if any(one.bound is not Bound.PARAMETER or one.statement is not function for one in bound):
        return None
    if not isinstance(function, cst.FunctionDef) or function.decorators or source.parent(function) is not source.module:
        return []
    name = function.name.value
    if any(re.search(rf"\b{name}\b", text) for text in others):
        return []
    places = {parameter.name.value: at for at, parameter in enumerate(function.params.params)}
    pairs = []
    for use in source.every(cst.Name):
        call = source.parent(use)
        if use.value != name or call is function:
            continue
        if not isinstance(call, cst.Call) or call.func is not use:
            return []
        first, second = (argument(call, each.value, places.get(each.value)) for each in (gate, up))
        if first is None or second is None:
            return []
        pairs.append((first.value, second.value))
    return pairs


def _origin(source: Source, node: cst.BaseExpression) -> tuple[object, ...] | None:
    """What two tensors of one shape have in common; None where nothing tells of a shape."""
    if isinstance(node, cst.Name):
        found = reaching(source, statement_of(source, node), node.value)
        if found.bound is Bound.UNPACKED and isinstance(found.value, cst.Call):
            made = operation(source, found.value)
            return ("part", id(found.value)) if made is not None and _cuts_evenly(source, made) else None
    node = behind(source, node, [])
    if isinstance(node, cst.Call):
        made = operation(source, node)
        if made is not None and made.module is not None and len(made.operands) == 1:
            out = argument(made.module, "out_features", 1)
            built = source.code(out.value) if out is not None else source.code(made.module)
            return "layer", source.code(made.module.func), built, source.code(made.operands[0])
    return None


def _cuts_evenly(source: Source, made: Operation) -> bool:
    """Whether the parts are of one size: only a list of sizes says otherwise."""
    sizes = made.given("split_size_or_sections", 1) if made.name == "split" else None
    if not isinstance(sizes, cst.List | cst.Tuple):
        return made.name in _HALVES
    return len({source.code(element.value) for element in sizes.elements}) == 1
