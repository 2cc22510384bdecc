"""Whether an embedding of a program may give sparse gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

_CLASSES = frozenset({"Embedding", "EmbeddingBag"})
_SPARSE_POSITION = {**dict.fromkeys(_CLASSES, 6), "embedding": 6, "embedding_bag": 7}
"""The place of `sparse` among the parameters of torch's classes and functions of embeddings."""


def has_sparse_gradients(sources: Mapping[str, str]) -> bool:
    """Whether an embedding may give sparse gradients: where it is told so, or by what comes from elsewhere.

    Where no file names an embedding, the program's own classes and functions have none.
    """
    parsed = [source for text in sources.values() if (source := parse(text)) is not None]
    own = frozenset[str]()
    if not any(source.mentions("Embedding", "embedding") for source in parsed):
        own = frozenset().union(*(source.defined_names for source in parsed))
    of_embeddings = [source for source in parsed if source.mentions("sparse", "Embedding", "embedding")]
    return any(
        _may_be_sparse(parsed, source, call) and not _is_one_of(source, call, own)
        for source in of_embeddings
        for call in source.every(cst.Call)
    ) or any(map(_is_made_sparse, of_embeddings))


def _is_made_sparse(source: Source) -> bool:
    """Whether a statement makes an embedding sparse that was not built so: `table.sparse = epoch > 2`."""
    return any(
        isinstance(each.target, cst.Attribute)
        and source.code(each.target).endswith(".sparse")
        and not source.code(each.target).startswith("self.")
        and source.code(assign.value) != "False"
        for assign in (source.every(cst.Assign) if source.mentions("Embedding") else ())
        for each in assign.targets
    )


def _is_one_of(source: Source, call: cst.Call, names: frozenset[str]) -> bool:
    """Whether a call is of a class or function with one of these names, or of the constructor of one it is made of."""
    if call_name(call) != "__init__":
        return call_name(call) in names
    owner = source.inside(call, cst.ClassDef)
    bases = owner.bases if owner is not None else ()
    return bool(bases) and all(source.code(base.value).rpartition(".")[2] in names for base in bases)


def _may_be_sparse(parsed: Sequence[Source], source: Source, call: cst.Call) -> bool:
    """Whether a call is told, or may be told, to give sparse gradients."""
    given = argument(call, "sparse", _SPARSE_POSITION.get(call_name(call)))
    if given is not None:
        return not _is_false(parsed, source, given.value)
    return call_name(call) in _CLASSES and has_star(call)


def _is_false(parsed: Sequence[Source], source: Source, value: cst.BaseExpression) -> bool:
    """Whether it is False, or a parameter that is False by default and that no call gives another value."""
    bound = binding_of(source, value) if isinstance(value, cst.Name) else None
    parameter = bound.parameter if bound is not None else None
    function = source.inside(parameter, cst.FunctionDef) if parameter is not None else None
    if parameter is None or parameter.default is None or function is None:
        return source.code(value) == "False"
    within = source.inside(function, cst.ClassDef)
    own = within.name.value if within is not None else function.name.value
    params = list(function.params.params)
    position = params.index(parameter) - (within is not None) if parameter in params else None
    told = (
        has_star(call)
        or ((given := argument(call, parameter.name.value, position)) and other.code(given.value) != "False")
        for other in parsed
        for call in other.calls_named("super", function.name.value, own, *other.imported_as(own))
    )
    return source.code(parameter.default) == "False" and not any(told)
