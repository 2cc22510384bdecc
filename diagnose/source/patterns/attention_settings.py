"""Finds what a program puts in the place of the scale or of the dropout that attention's class gives itself."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.patterns.attention import CannotFuse, WrittenAttention
from diagnose.source.patterns.formula import constant
from diagnose.source.tree.attributes import set_from_outside
from diagnose.source.tree.memo import parse_all


def check_kept_as_built(found: WrittenAttention, sources: Mapping[str, str]) -> None:
    """Raise CannotFuse for a scale, or a module for dropout, that the program sets from outside of the class."""
    source = found.source
    made = found.dropout
    module = (
        made.node.func if made is not None and made.module is not None and isinstance(made.node, cst.Call) else None
    )
    scales = [each for _, node in found.factors for each in source.every(cst.Attribute, node)]
    for each in (*scales, *([module] if isinstance(module, cst.Attribute) else [])):
        for other in parse_all(sources).values():
            given = list(set_from_outside(other, each.attr.value))
            if each is module:  # a number of that name is a setting
                given = [value for value in given if constant(other, value) is None]
            if given:
                raise CannotFuse(f"{source.code(each)} is set from outside of its class")
