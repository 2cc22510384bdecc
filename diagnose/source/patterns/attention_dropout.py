"""The share of attention's weights that a program drops at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import in_module
from diagnose.source.patterns.attention import CannotFuse, WrittenAttention
from diagnose.source.patterns.formula import constant
from diagnose.source.settings.defaults import assigned, defaults_of, sets_attribute
from diagnose.source.tree.attributes import member
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source


def dropped_share(found: WrittenAttention, sources: Mapping[str, str]) -> tuple[str | None, bool]:
    """The code of the share of weights that is dropped, None where none ever is; and whether this program drops any."""
    made, source = found.dropout, found.source
    if made is None:
        return None, False
    if made.module is not None:
        assert isinstance(made.node, cst.Call)
        share = next((arg.value for arg in made.module.args if arg.keyword is None or arg.keyword.value == "p"), None)
        fixed = share is not None and constant(source, share) == 0 and not sets_attribute(sources, "p")
        module = source.code(made.node.func)
        drops = share is None or not _is_zero(source, share, sources)
        return (None if fixed else f"{module}.p if {module}.training else 0.0"), drops and not fixed
    share, training = made.given("p", 1), made.given("training", 2)
    if made.method or (share is None and training is None):
        raise CannotFuse("its weights are dropped out in a way that is not followed")
    code = source.code(share) if share is not None else "0.5"
    when = source.code(training) if training is not None else "True"
    if when == "False" or (share is not None and constant(source, share) == 0):
        return None, False
    drops = share is None or not _is_zero(source, share, sources)
    return (code if when == "True" else f"{code} if {when} else 0.0"), drops


def _is_zero(source: Source, share: cst.BaseExpression, sources: Mapping[str, str]) -> bool:
    """Whether a share of dropout is zero, or a setting that the program sets to zero wherever it sets it.

    What is handed on under the same name (`dropout=args.dropout`) is seen where that is set; anything else that is no
    number may be another share.
    """
    value = constant(source, share)
    if value is not None:
        return value == 0
    kept = member(source, share)
    if kept is not None and source.code(kept) != source.code(share):
        return _is_zero(source, kept, sources)
    name = (
        share.attr.value if isinstance(share, cst.Attribute) else share.value if isinstance(share, cst.Name) else None
    )
    if name is None:
        return False
    found: list[float | None] = []
    for _, other in files_with(sources, name):
        for each in _values_given(other, name):
            if other.code(each).rpartition(".")[2] != name:
                found.append(constant(other, each))
    return bool(found) and all(value == 0 for value in found)


def _values_given(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what a file gives a setting of that name: as a default, in a call, or as a variable of its top level."""
    yield from (default.value for default in defaults_of(source, name))
    yield from assigned(source, name)
    top = in_module(source, name)
    if top is not None and isinstance(top.value, cst.BaseExpression):
        yield top.value
    for parameter in source.every(cst.Param):
        if parameter.name.value == name and parameter.default is not None:
            yield parameter.default
    for call in source.every(cst.Call):
        yield from (arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name)
