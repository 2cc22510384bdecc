"""In-place writes of a program: tensors whose contents change while their name stays."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import values_of
from diagnose.source.tree.attributes import leaves
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_WRITING = (cst.Call, cst.AugAssign, cst.AssignTarget, cst.For)
MEMORY_ATTRIBUTES = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
"""Attributes of a tensor that lie in its memory."""
VIEW_METHODS = frozenset(
    {"detach", "diagonal", "expand", "expand_as", "flatten", "movedim", "narrow", "numpy", "permute", "ravel"}
    | {"reshape", "select", "squeeze", "swapaxes", "t", "transpose", "unfold", "unsqueeze", "view", "view_as"}
)
"""Methods whose results lie in the same memory, or may: `reshape` copies only what it has to."""

_FUNCTIONS = ("torch.nn.functional.", "torchvision.transforms.functional.", "torchvision.transforms.v2.functional.")
"""The modules of the functions that are meant by `_TAKE_A_FLAG`."""
_TAKE_A_FLAG = frozenset(
    {"relu", "relu6", "elu", "celu", "selu", "silu", "mish", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"}
    | {"threshold", "normalize"}
)
"""Functions of which one argument alone is a flag, `inplace`, which may come without its name: `relu(x, True)`."""
_FLAG_BY_PLACE = frozenset(
    {"ReLU", "ReLU6", "LeakyReLU", "RReLU", "ELU", "CELU", "SELU", "SiLU", "Mish", "Hardtanh", "Hardswish"}
    | {"Hardsigmoid", "Threshold", "AlphaDropout", "FeatureAlphaDropout", "Dropout", "Dropout1d", "Dropout2d"}
    | {"Dropout3d", "Normalize", "RandomErasing"}
)
"""Modules and transforms that take one flag, `inplace`, which may come without its name: `nn.ReLU(True)`."""
_LAYERS = "torch.nn."
_HAND_ON = frozenset({"Identity", "Flatten", "Unflatten"})
"""Layers whose output lies in the memory of their input, as that of `Dropout` may."""
_MAKE_NEW = frozenset({"ToTensor", "PILToTensor"})
"""Transforms whose result is no part of the image that they are given."""
_DESTINATIONS = {"out": ("",), "dst": ("cv2.",), "output": ("scipy.ndimage.",)}
"""Arguments that functions of these modules write to; the empty name stands for every one."""
_TOLD_NOT_TO_COPY = ("numpy.nan_to_num", "sklearn.preprocessing.")
"""Functions that write to their first argument if they are told `copy=False`."""
_WRITE_TO_THE_FIRST = (
    *("numpy.copyto", "numpy.fill_diagonal", "numpy.place", "numpy.put", "numpy.put_along_axis", "numpy.putmask"),
    "PIL.ImageDraw.Draw",
    *(f"cv2.{name}" for name in ("circle", "drawContours", "ellipse", "fillPoly", "line", "polylines", "putText")),
    "cv2.rectangle",
)
_WRITE_TO_GRADIENTS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
"""Methods of accelerators and wrapped models, which write to the gradients of parameters alone."""


def is_written(source: Source, code: str, below: cst.CSTNode | None = None) -> bool:
    """Whether anything below a node (the module) writes to what some code names: `mask`, `self.mask`."""
    first, end = source.extent(below if below is not None else source.module)
    return any(first <= at < end for at in _writes(source).get(code, ()))


@per_source
def _writes(source: Source) -> dict[str, list[int]]:
    """Return where among a file's nodes something is written to, by the code that names it."""
    found: dict[str, list[int]] = {}
    for node in source.walk(None, *_WRITING):
        for memory in _written_by(source, node):
            found.setdefault(source.code(memory), []).append(source.extent(node)[0])
    return found


def written_in_place(source: Source, below: cst.CSTNode | None = None) -> Iterator[cst.BaseExpression]:
    """Yield the expression that each in-place write below a node changes.

    `x` of `x.add_(1)`, `x[0] = 1`, `x += 1`, `x.data[0].zero_()`, `torch.add(a, b, out=x)`, `nn.init.zeros_(x)`, and of
    `self.act(x)` where that is a module which is built with `inplace=True`, or has one as its first layer.
    """
    for node in source.walk(below, *_WRITING):
        yield from _written_by(source, node)


def _written_by(source: Source, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Call):
        yield from map(memory_of, _by_call(source, node))
    elif isinstance(node, cst.AugAssign):
        yield memory_of(node.target)
    elif isinstance(node, cst.AssignTarget | cst.For):
        yield from (memory_of(each) for each in leaves(node.target) if isinstance(each, cst.Subscript))


def _by_call(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    function, first = call.func, call.args[0].value if call.args and not call.args[0].star else None
    for arg in call.args:
        word = arg.keyword.value if arg.keyword is not None else ""
        if word in _DESTINATIONS and any(not of or source.is_called(function, of) for of in _DESTINATIONS[word]):
            yield from leaves(arg.value)
        elif word == "inplace" and _is_true(arg.value):
            yield from _told_in_place(source, call)
    method = function.attr.value if isinstance(function, cst.Attribute) else ""
    if first is not None and _writes_to_the_first(source, call, first):
        yield from leaves(first)
    if not method.endswith("_") or method.endswith("__"):
        return
    assert isinstance(function, cst.Attribute)  # or it had no such name
    if not source.is_called(function, "torch."):
        yield from () if method in _WRITE_TO_GRADIENTS else (function.value,)
    elif first is not None:
        yield from leaves(first)


def _writes_to_the_first(source: Source, call: cst.Call, first: cst.BaseExpression) -> bool:
    """Whether a call writes to its first argument, by what is called or by what it is told besides."""
    function = call.func
    if "True" in source.words and _is_module_in_place(source, function):
        return True
    if source.is_called(function, *_WRITE_TO_THE_FIRST):
        return True
    if "True" in source.words and call_name(call) in _TAKE_A_FLAG and source.is_called(function, *_FUNCTIONS):
        return any(arg.keyword is None and _is_true(arg.value) for arg in call.args)
    if source.is_called(function, "numpy."):
        if isinstance(function, cst.Attribute) and function.attr.value == "at":  # `np.add.at(x, index, 1)`
            return True
        again = call.args[2:]  # `np.multiply(x, 2, x)`; `np.dot(x, x)` has another meaning
    else:
        again = call.args[1:] if source.is_called(function, "cv2.") else ()
    if any(arg.keyword is None and source.code(arg.value) == source.code(first) for arg in again):
        return True
    told = any(arg.keyword is not None and arg.keyword.value == "copy" and _is(arg.value, "False") for arg in call.args)
    return told and source.is_called(function, *_TOLD_NOT_TO_COPY)


def _told_in_place(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what a call with `inplace=True` writes to: what a function is given first, or the method's object."""
    function = call.func
    if not source.imported(function):
        yield from (function.value,) if isinstance(function, cst.Attribute) else ()
    elif not call_name(call)[:1].isupper():  # a class makes what writes later
        yield from (arg.value for arg in call.args[:1] if not arg.star)


def _is_module_in_place(source: Source, function: cst.BaseExpression) -> bool:
    """Whether what is called is a library's object that writes to its input."""
    return any(writes_to_input(source, each) for each in values_of(source, function))


def writes_to_input(source: Source, made: cst.BaseExpression, seen: frozenset[str] = frozenset()) -> bool:
    """Whether what an expression makes is a layer or a transform of a library that writes to its input, or a sequence
    of which one does before another has made something new: `Compose([CenterCrop(8), Normalize(m, s, inplace=True)])`.

    `seen`: variables that are being followed, of which `rows = numpy.array([rows])` makes one of itself.
    """
    if isinstance(made, cst.Name):
        values = () if made.value in seen else values_of(source, made)
        known = seen | {made.value}
        return any(writes_to_input(source, each, known) for each in values if not isinstance(each, cst.Name))
    if isinstance(made, cst.List | cst.Tuple):
        steps = [each.value for each in made.elements]
    elif isinstance(made, cst.Call) and source.imported(made.func):
        if any(arg.keyword is not None and arg.keyword.value == "inplace" and _is_true(arg.value) for arg in made.args):
            return True
        if call_name(made) in _FLAG_BY_PLACE and any(arg.keyword is None and _is_true(arg.value) for arg in made.args):
            return True
        steps = [arg.value for arg in made.args]
    else:
        return False
    for step in steps:
        if writes_to_input(source, step, seen):
            return True
        if isinstance(step, cst.Call) and _makes_new(source, step):
            return False
    return False


def _makes_new(source: Source, made: cst.Call) -> bool:
    name = call_name(made)
    if source.is_called(made.func, _LAYERS):
        return name not in _HAND_ON and "Dropout" not in name
    return name in _MAKE_NEW


def _is_true(node: cst.BaseExpression) -> bool:
    return _is(node, "True")


def _is(node: cst.BaseExpression, constant: str) -> bool:
    return isinstance(node, cst.Name) and node.value == constant


def memory_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what holds the memory that a view or a part shows."""
    while True:
        if isinstance(node, cst.Subscript) or (
            isinstance(node, cst.Attribute) and node.attr.value in MEMORY_ATTRIBUTES
        ):
            node = node.value
        elif (
            isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in VIEW_METHODS
        ):
            node = node.func.value
        else:
            return node
