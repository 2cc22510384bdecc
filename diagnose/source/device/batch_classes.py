"""Classes of the program's own whose objects are moved as a tensor is: a batch with a `to` of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from diagnose.source.tree.syntax import Source


@dataclass(frozen=True)
class OwnMove:
    """`def to(self, device)` in a class that is no module."""

    source: Source
    method: cst.FunctionDef
    name: str
    """The class."""
    need_not_wait: bool
    """The loader can pin its objects (`pin_memory`), and `to` can be told not to wait (`non_blocking`)."""


def own_moves(sources: Mapping[str, Source]) -> tuple[OwnMove, ...]:
    """All such classes of a program."""
    found: list[OwnMove] = []
    for source in sources.values():
        for owner in source.every(cst.ClassDef) if "def to(" in source.text else ():
            methods = {
                each.name.value: each
                for each in source.every(cst.FunctionDef, owner)
                if source.inside(each, cst.ClassDef) is owner
            }
            if "to" in methods and "forward" not in methods:
                able = "pin_memory" in methods and _takes(methods["to"].params, "non_blocking")
                found.append(OwnMove(source, methods["to"], owner.name.value, able))
    return tuple(found)


def _takes(parameters: cst.Parameters, keyword: str) -> bool:
    named = (*parameters.params, *parameters.kwonly_params)
    return parameters.star_kwarg is not None or any(each.name.value == keyword for each in named)
