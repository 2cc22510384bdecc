"""The output layer over a vocabulary: a linear layer as wide as an embedding of the same model is long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.patterns.formula import constant
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.syntax import Source


@dataclass(frozen=True)
class OutputLayer:
    """`self.name = nn.Linear(width, vocabulary)` and where the class calls it."""

    name: str
    built: cst.Call
    calls: tuple[cst.Call, ...]
    bias: bool | None
    """None: only the running program knows."""
    size: int | None
    """The vocabulary, where it is a number in this file."""


def output_layers(source: Source) -> Iterator[OutputLayer]:
    """Find the output layers of every class of a file."""
    sized = "vocab" in source.text.lower() or source.may_call_below("torch.nn.Embedding")
    if not sized or not source.may_call_below("torch.nn.Linear"):
        return
    embedded = {
        source.code(given.value)
        for call in source.every(cst.Call)
        if _is(source, call, "torch.nn.Embedding") and (given := argument(call, "num_embeddings", 0)) is not None
    }
    for around in source.every(cst.ClassDef):
        for assign in source.every(cst.Assign, around):
            target, call = assign.targets[0].target, assign.value
            if not isinstance(target, cst.Attribute) or source.code(target.value) != "self":
                continue
            out = argument(call, "out_features", 1) if isinstance(call, cst.Call) else None
            wide = out is not None and (source.code(out.value) in embedded or "vocab" in source.code(out.value).lower())
            if not isinstance(call, cst.Call) or out is None or not wide or not _is(source, call, "torch.nn.Linear"):
                continue
            if len(members_named(source, around, target.attr.value)) != 1:
                continue
            size = constant(source, out.value)
            whole = int(size) if size is not None else None
            name = target.attr.value
            yield OutputLayer(name, call, _calls(source, around, name), _bias(source, call), whole)


def _is(source: Source, call: cst.Call, name: str) -> bool:
    return source.is_called(call.func, name)


def _calls(source: Source, around: cst.ClassDef, name: str) -> tuple[cst.Call, ...]:
    return tuple(
        call
        for call in source.every(cst.Call, around)
        if source.code(call.func) == f"self.{name}" and len(call.args) == 1 and not call.args[0].star
    )


def _bias(source: Source, call: cst.Call) -> bool | None:
    given = argument(call, "bias", 2)
    if given is None:
        return True
    return {"True": True, "False": False}.get(source.code(given.value))
