"""In-place writes of a program: tensors whose contents change while their name stays."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import values_of
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
"""The modules of functions that write to their first argument if they are told `inplace=True`."""
_FLAG_BY_PLACE = frozenset(
    {"ReLU", "ReLU6", "LeakyReLU", "RReLU", "ELU", "CELU", "SELU", "SiLU", "Mish", "Hardtanh", "Hardswish"}
    | {"Hardsigmoid", "Threshold", "AlphaDropout", "FeatureAlphaDropout", "Dropout", "Dropout1d", "Dropout2d"}
    | {"Dropout3d"}
)
"""Modules of torch that take one flag, `inplace`, which may come without its name: `nn.ReLU(True)`."""
_WRITE_TO_THE_FIRST = (
    *("numpy.copyto", "numpy.fill_diagonal", "numpy.place", "numpy.put", "numpy.putmask", "PIL.ImageDraw.Draw"),
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
        yield from (memory_of(each) for each in _elements(node.target) if isinstance(each, cst.Subscript))


def _by_call(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "out":
            yield from _elements(arg.value)
        elif arg.keyword is not None and arg.keyword.value == "inplace" and _is_true(arg.value):
            yield from _told_in_place(source, call)
    function = call.func
    if "True" in source.words and call.args and not call.args[0].star and _is_module_in_place(source, function):
        yield call.args[0].value
    if call.args and source.is_called(function, *_WRITE_TO_THE_FIRST):
        yield call.args[0].value
    method = function.attr.value if isinstance(function, cst.Attribute) else ""
    if not method.endswith("_") or method.endswith("__"):
        return
    assert isinstance(function, cst.Attribute)  # or it had no such name
    if not source.is_called(function, "torch."):
        yield from () if method in _WRITE_TO_GRADIENTS else (function.value,)
    elif call.args and not call.args[0].star:
        yield call.args[0].value


def _told_in_place(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what a call with `inplace=True` writes to: what the function is given first, or the method's object."""
    function = call.func
    if source.is_called(function, *_FUNCTIONS):
        yield from (arg.value for arg in call.args[:1] if not arg.star)
    elif isinstance(function, cst.Attribute) and not source.imported(function):
        yield function.value


def _is_module_in_place(source: Source, function: cst.BaseExpression) -> bool:
    """Whether what is called is a module of torch's that writes to its input, or a sequence that begins with one."""
    return any(_writes_to_input(source, each) for each in values_of(source, function))


def _writes_to_input(source: Source, module: cst.BaseExpression) -> bool:
    if not isinstance(module, cst.Call) or not source.is_called(module.func, "torch.nn."):
        return False
    first = module.args[0].value if module.args and not module.args[0].star else None
    if first is not None and call_name(module) == "Sequential":
        return _writes_to_input(source, first)
    if call_name(module) in _FLAG_BY_PLACE and any(arg.keyword is None and _is_true(arg.value) for arg in module.args):
        return True
    named = (arg for arg in module.args if arg.keyword is not None and arg.keyword.value == "inplace")
    return any(_is_true(arg.value) for arg in named)


def _is_true(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def _elements(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _elements(element.value)
    else:
        yield target


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
