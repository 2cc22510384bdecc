"""Random numbers that a program draws for the weights of a model that it has built: `model.apply(init_weights)`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.exception_handlers import Place
from diagnose.source.dataflow.reachable_code import runs_after
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_IN_PLACE = frozenset({"bernoulli_", "exponential_", "normal_", "random_", "uniform_"})
_OF_MODULES = frozenset({"init_weights", "reset_parameters"})
_FIXED = frozenset({"constant_", "dirac_", "eye_", "ones_", "zeros_"})
"""Functions of torch.nn.init that draw nothing."""
_NOT_FOLLOWED = frozenset({"__init__", "forward"})
"""What builds and runs other models."""


def weight_draw(sources: Mapping[str, str], path: str, after: cst.CSTNode) -> str | None:
    """Return the first code that may draw weights once a statement has run; None where there is none."""
    parsed = parse_all(sources)
    calls = _calls(parsed, runs_after(parsed, path, after))
    return next((source.code(call) for source, call in calls if _draws(source, call)), None)


def fills_weights(source: Source, statement: cst.CSTNode) -> bool:
    """Whether a statement, or a function of its file that it runs, draws weights and does not train them."""
    if not source.mentions("init", *_IN_PLACE, *_OF_MODULES):
        return False
    calls = [*_calls({"": source}, [("", source, statement)])]
    return any(_draws(of, call) for of, call in calls) and not any(_trains(call) for _, call in calls)


def trains(source: Source, statement: cst.CSTNode) -> bool:
    """Whether a statement, or a function of its file that it runs, computes gradients."""
    return any(_trains(call) for _, call in _calls({"": source}, [("", source, statement)]))


def _trains(call: cst.Call) -> bool:
    return call_name(call) == "backward"


def _draws(source: Source, call: cst.Call) -> bool:
    name = call_name(call)
    if any(each.startswith("torch.nn.init.") for each in source.imported(call.func)):
        return name not in _FIXED
    if not isinstance(call.func, cst.Attribute):
        return False
    of = source.code(call.func.value).rpartition(".")[2]
    return name in _OF_MODULES or (name in _IN_PLACE and of in {"bias", "data", "weight"})


def _calls(parsed: Mapping[str, Source], begins: Iterable[Place]) -> Iterator[tuple[Source, cst.Call]]:
    """The calls of some code, and of the functions that it mentions by their names."""
    seen: set[cst.CSTNode] = set()
    pending = [(source, node) for _, source, node in begins]
    while pending:
        source, piece = pending.pop()
        if piece in seen:
            continue
        seen.add(piece)
        yield from ((source, call) for call in source.every(cst.Call, piece))
        names = {each.value for each in source.every(cst.Name, piece)} - _NOT_FOLLOWED
        for other in parsed.values():
            pending += [(other, function) for function in other.functions_named(*(names & other.function_names))]
