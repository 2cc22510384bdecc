"""Says in words what keeps autocast to bfloat16 from being put around the forward pass of a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.flow import scope_of
from diagnose.source.training.forward_region import ForwardRegion
from diagnose.source.training.half_values import made_half, reach_numpy
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_OWN_FORMATS = re.compile(
    r"\.bfloat16\(\)|\.half\(\)|torch\.(?:bfloat16|float16|half)\b|set_default_dtype|model\w*\.double\(\)|MixedPrecision"
    r"|(?m:^[ \t]*[\w.]+\.double\(\)[ \t]*$)"  # a statement of its own: of a module, which it changes
)
_REFUSES = re.compile(r"\bBCELoss\(|\bbinary_cross_entropy\(")
_ONE_FORMAT = re.compile(
    r"\.(?:index_add|index_copy|index_reduce|scatter_add|scatter_reduce|masked_scatter|slogdet|logdet)_?\("
)
"""Operations that fail on two number formats, or have no bfloat16."""
_CAPTURED = re.compile(r"make_graphed_callables|CUDAGraph\(|cuda\.graph\(")


def program_refuses(text: str) -> str | None:
    """Return what in a program's text keeps autocast out of it, with the code; None where nothing does."""
    for pattern, reason in (
        (_REFUSES, "its BCELoss refuses autocast: use BCEWithLogitsLoss, without the sigmoid, first"),
        (_ONE_FORMAT, "it calls what takes no mixture of number formats, which autocast makes"),
        (_CAPTURED, "it captures CUDA graphs: autocast belongs into the capture, with cache_enabled=False"),
        (_OWN_FORMATS, "it chooses number formats of its own"),
    ):
        found = pattern.search(text)
        if found is not None:
            return f"{reason} (`{found[0].strip()}`)"
    return None


def region_refuses(sources: Mapping[str, Source], step: TrainingStep, region: ForwardRegion) -> str | None:
    """Return what of a forward pass and its loss does not compute in bfloat16; None where nothing is found."""
    half = {name for statement in region.statements for name in made_half(step.source, statement)}
    if reach_numpy(sources, step.source, step.scope, half):
        return "a value of the forward pass goes to NumPy, which has no bfloat16: .float() it there first"
    if (put := next(_put_by_mask(sources, step, region), None)) is not None:
        return f"`{put}` puts values under a mask or indices, which must have the type of what they are put into"
    if (log := next(_logs_of_rest(sources, step, region), None)) is not None:
        return f"`{log}` is infinite where the 8 bits of bfloat16 round to 1: .float() what it is taken of first"
    return None


def _logs_of_rest(sources: Mapping[str, Source], step: TrainingStep, region: ForwardRegion) -> Iterator[str]:
    """Yield logarithms of what a probability leaves to 1, `torch.log(1 - p)`, of the region and of what models do."""
    for statement in region.statements:
        yield from _logs(step.source, statement)
    for source in sources.values():
        yield from _of_models(source, _logs)


def _logs(source: Source, below: cst.CSTNode) -> Iterator[str]:
    for call in source.calls_named("log"):
        inner = source.every(cst.BinaryOperation, call) if below in source.ancestors(call) else ()
        rest = [each for each in inner if isinstance(each.operator, cst.Subtract) and _is_one(each.left)]
        if rest and not any(call_name(each) in {"float", "double"} for each in source.every(cst.Call, call)):
            yield source.code(call)


def _is_one(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer | cst.Float) and node.evaluated_value == 1


def _put_by_mask(sources: Mapping[str, Source], step: TrainingStep, region: ForwardRegion) -> Iterator[str]:
    """Yield assignments to some elements, `x[mask] = y`, of the region and of what models do in it; parts that numbers
    and slices name convert.
    """
    for statement in region.statements:
        yield from _elements_put(step.source, statement)
    for source in sources.values():
        yield from _of_models(source, _elements_put)


@per_source
def _of_models(source: Source, kind: Callable[[Source, cst.CSTNode], Iterator[str]]) -> Sequence[str]:
    """Return what `kind` finds in the forward passes of a file's modules."""
    return [each for function in source.functions_named("forward") for each in kind(source, function)]


def _elements_put(source: Source, below: cst.CSTNode) -> Iterator[str]:
    scope = below if isinstance(below, cst.FunctionDef) else scope_of(source, below)
    plain = (cst.Slice, cst.Integer, cst.UnaryOperation, cst.Ellipsis, cst.BaseString)
    counts = {
        name.value
        for loop in source.every(cst.For, scope)
        if isinstance(loop.iter, cst.Call) and call_name(loop.iter) in ("range", "enumerate")
        for name in source.every(cst.Name, loop.target)
    }
    for target in source.every(cst.AssignTarget, below):
        parts = target.target.slice if isinstance(target.target, cst.Subscript) else ()
        chosen = [part.slice.value if isinstance(part.slice, cst.Index) else part.slice for part in parts]
        assign = source.parent(target)
        made = isinstance(assign, cst.Assign) and any(source.every(cst.Call, assign.value))
        counted = [isinstance(each, plain) or (isinstance(each, cst.Name) and each.value in counts) for each in chosen]
        if made and not all(counted) and not _is_of_objects(source, target.target):
            yield source.code(target.target)


def _is_of_objects(source: Source, target: cst.BaseExpression) -> bool:
    """Whether an element is seen to be one of a list or a dictionary."""
    name = target.value if isinstance(target, cst.Subscript) else None
    values = bound_to(source, name) if isinstance(name, cst.Name) else []
    return any(
        isinstance(each, cst.BaseList | cst.BaseDict)
        or (isinstance(each, cst.Call) and call_name(each) in {"dict", "list", "OrderedDict", "defaultdict"})
        for each in values
    )
