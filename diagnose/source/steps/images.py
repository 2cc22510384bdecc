"""Models of images: what they are built of, and where a program moves their input to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.edit import call_name
from diagnose.source.flow import within
from diagnose.source.members import members_named
from diagnose.source.steps.training import TrainingStep
from diagnose.source.syntax import Source, parse

__all__ = ["conv_classes", "convolves_first", "moved_inputs", "uses_convolutions"]

_LIBRARIES = ("torchvision.models", "timm", "torchvision import models", "segmentation_models_pytorch")


def uses_convolutions(sources: Mapping[str, str]) -> bool:
    """Whether the program, or a library of image models that it uses, has convolutions of images."""
    return any("Conv2d" in text or any(name in text for name in _LIBRARIES) for text in sources.values())


def conv_classes(source: Source) -> Iterator[tuple[cst.ClassDef, cst.FunctionDef]]:
    """Classes that build convolutions, with their `forward`."""
    for around in source.every(cst.ClassDef):
        if "Conv2d" not in source.code(around):
            continue
        for method in source.every(cst.FunctionDef, around):
            if method.name.value == "forward" and source.inside(method, cst.ClassDef) is around:
                yield around, method


def convolves_first(sources: Mapping[str, str]) -> bool:
    """Whether every image that goes into the model is surely one of four axes: no input is reshaped on the way.

    True where a class of the program hands the first argument of its `forward` right to a convolution or to a sequence
    that begins with one, and where the model is a library's.
    """
    library = False
    for text in sources.values():
        library = library or any(name in text for name in _LIBRARIES)
        source = parse(text) if "Conv2d" in text else None
        for around, method in conv_classes(source) if source is not None else ():
            assert source is not None
            first = method.params.params[1].name.value if len(method.params.params) > 1 else None
            for call in source.every(cst.Call, method.body):
                direct = len(call.args) == 1 and source.code(call.args[0].value) == first
                if direct and isinstance(call.func, cst.Attribute) and source.code(call.func.value) == "self":
                    built = members_named(source, around, call.func.attr.value)
                    if len(built) == 1 and _is_convolution(source, built[0]):
                        return True
    return library


def _is_convolution(source: Source, node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.Call):
        return False
    if call_name(node) == "Sequential" and node.args:
        return _is_convolution(source, node.args[0].value)
    return call_name(node) == "Conv2d"


def moved_inputs(step: TrainingStep) -> Iterator[cst.Call]:
    """The calls `images = images.to(device)`, by which the model's first argument comes to the device in a step."""
    source = step.source
    for forward in step.forward:
        if source.code(forward.func) != step.model:
            continue  # a function with the model in it: which of its arguments are images is its own affair
        if not forward.args or not isinstance(forward.args[0].value, cst.Name):
            continue
        name = forward.args[0].value.value
        for call in source.every(cst.Call, step.turn):
            function = call.func
            if not isinstance(function, cst.Attribute) or function.attr.value not in {"to", "cuda"}:
                continue
            before = not within(source, call, forward) and source.span(call)[0] < source.span(forward)[0]
            if before and source.code(function.value) == name and _gives(source, call, name):
                yield call


def _gives(source: Source, call: cst.Call, name: str) -> bool:
    """Whether a call's value is given to the name, alone or as one of a tuple."""
    parent = source.parent(call)
    if isinstance(parent, cst.Assign):
        target = parent.targets[0].target
        return len(parent.targets) == 1 and isinstance(target, cst.Name) and target.value == name
    if isinstance(parent, cst.Element):
        values = source.parent(parent)
        assign = source.parent(values) if values is not None else None
        if isinstance(values, cst.Tuple) and isinstance(assign, cst.Assign):
            target = assign.targets[0].target
            if isinstance(target, cst.Tuple) and len(target.elements) == len(values.elements):
                at = [element is parent for element in values.elements].index(True)
                return source.code(target.elements[at].value) == name
    return False
