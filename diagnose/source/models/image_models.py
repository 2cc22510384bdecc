"""Models of images: what they are built of, and where a program moves their input to the device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.mutations import is_written, memory_of
from diagnose.source.dataflow.reaching_definitions import definition_of
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with, parse_all, per_program
from diagnose.source.tree.syntax import Source

_LAYOUT_METHODS = frozenset(
    {"as_strided", "as_strided_", "data_ptr", "is_contiguous", "resize_", "set_", "storage", "storage_offset"}
    | {"stride", "untyped_storage"}
)
_CONTIGUOUS = frozenset({"arange", "linspace", "zeros", "ones", "full", "rand", "randn"})
"""Calls whose results lie row by row, whatever the format of images is; `torch.tensor(images)` keeps theirs."""
_FLATTENING = frozenset(
    {"torch.nn.utils.parameters_to_vector", "torch.nn.utils.prune.", "torch.as_strided", "torch.optim.LBFGS"}
)
"""Torch's own functions and modules that take a parameter as one row of numbers by `view`."""
_FLATTENS = ("reshape", "flatten", "ravel")
"""Calls whose result is a view of what lies row by row, and a copy of what lies otherwise."""
_FORMATS = ("torch.", "numpy.", "builtins.int", "builtins.float", "builtins.bool")
_FOREIGN = ("torch.ops.", "torch.utils.cpp_extension.", "torch.utils.dlpack.", "ctypes.", "cupy.", "triton.")
_LIBRARIES = ("torchvision.models", "timm", "torchvision import models", "segmentation_models_pytorch")


def uses_convolutions(sources: Mapping[str, str]) -> bool:
    """Whether the program, or a library of image models that it uses, has convolutions of images."""
    return any("Conv2d" in text or any(name in text for name in _LIBRARIES) for text in sources.values())


@per_program
def layout_use(sources: Mapping[str, str]) -> str | None:
    """The first place where a program asks how a tensor lies in memory, or hands it to code that assumes it."""
    for path, source in parse_all(sources).items():
        own = source.functions_named("view")
        if own:
            return f"{path}:{source.lines_of(own[0])[0]}: `view` is a function of the program's own"
        for node in source.walk(None, cst.ClassDef, cst.Call):
            reason = _asks_layout(source, node)
            if reason:
                return f"{path}:{source.lines_of(node)[0]}: {reason}"
        for view in sized_views(source):
            if _is_written_through(source, view) or (_fills(source, view) and not _initialises(source, view)):
                return f"{path}:{source.lines_of(view)[0]}: a view is written to"
        for flat in source.calls_named(*_FLATTENS):
            filled = _fills(source, flat) and not _initialises(source, flat)
            if filled or (not _takes_place(source, flat) and _is_written_through(source, flat)):
                return f"{path}:{source.lines_of(flat)[0]}: what is flattened there is written to, in place"
    return None


def _takes_place(source: Source, flat: cst.Call) -> bool:
    """Whether a flattened tensor takes the place of a new one, which nobody sees any more: `x = x.flatten(1)`."""
    return any(isinstance(target, cst.Name) and _is_new(source, target, flat) for target in _targets(source, flat))


def _is_new(source: Source, target: cst.Name, flat: cst.Call) -> bool:
    """Whether what is flattened is what the variable `target` was just given by a call that computes it."""
    first = flat.args[0].value if flat.args else flat
    method = isinstance(flat.func, cst.Attribute) and not source.imported(flat.func)
    of = memory_of(flat.func.value if method and isinstance(flat.func, cst.Attribute) else first)
    value = definition_of(source, of).assigned if isinstance(of, cst.Name) and of.value == target.value else None
    return value is not None and isinstance(memory_of(value), cst.Call)


def _targets(source: Source, value: cst.Call) -> list[cst.BaseExpression]:
    """Return what a statement binds to a value, or to one part of it after the other."""
    holder = source.parent(value)
    if isinstance(holder, cst.Assign):
        return [each.target for each in holder.targets]
    if isinstance(holder, cst.For):
        return [holder.target] if holder.iter is value else []
    return [holder.target] if isinstance(holder, cst.AnnAssign | cst.NamedExpr) else []


def _asks_layout(source: Source, node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.ClassDef):
        own = any(source.is_called(base.value, "torch.autograd.Function") for base in node.bases)
        return f"`{node.name.value}` is an operator of the program's own" if own else None
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _LAYOUT_METHODS:
        return f"`{node.func.attr.value}` hangs on how a tensor lies in memory"
    if source.is_called(node.func, *_FLATTENING, *_FOREIGN):
        return f"`{source.code(node.func)}` takes tensors as they lie in memory"
    return None


def sized_views(source: Source) -> Iterator[cst.Call]:
    """The calls `x.view(…)` with sizes, and not with a format of numbers."""
    for call in source.calls_named("view"):
        if isinstance(call.func, cst.Attribute) and call.args:
            first = call.args[0]
            formats = any(name.startswith(_FORMATS) for name in source.names(first.value))
            formats = formats or string(first.value) is not None
            if first.keyword is None and (not formats or isinstance(first.value, cst.Call)):
                yield call


def _is_contiguous(source: Source, view: cst.Call) -> bool:
    """Whether a view is of what was laid out row by row before, also by name: `x.contiguous().view(…)`."""
    of = view.func.value if isinstance(view.func, cst.Attribute) else None
    if isinstance(of, cst.Name):
        of = definition_of(source, of).assigned
    if not isinstance(of, cst.Call):
        return False
    return call_name(of) in _CONTIGUOUS or (call_name(of) == "contiguous" and not of.args)


def views_of_images(sources: Mapping[str, str], starts: Iterable[str]) -> Iterator[tuple[str, Source, cst.Call]]:
    """The sized views that what the files `starts` name may run: a folder of models holds others too.

    A name stands for the function or class of that name in its own file, else for those of all others. Where no
    convolution is reached so, the model is found by other means than its name, and every view counts.
    """
    parsed = parse_all(sources)
    defined: dict[str, dict[str, list[cst.CSTNode]]] = {}
    for path, source in parsed.items():
        for each in source.walk(None, cst.FunctionDef, cst.ClassDef):
            if not isinstance(each, cst.FunctionDef | cst.ClassDef):
                continue
            if not isinstance(source.parent(source.parent(each) or each), cst.ClassDef):
                defined.setdefault(each.name.value, {}).setdefault(path, []).append(each)
    pending: list[tuple[str, cst.CSTNode]] = [(path, parsed[path].module) for path in starts if path in parsed]
    reached: dict[cst.CSTNode, str] = {}
    named: set[tuple[str, str]] = set()
    while pending:
        path, node = pending.pop()
        if node in reached:
            continue
        reached[node] = path
        for name in {each.value for each in parsed[path].every(cst.Name, node)} & defined.keys():
            if (path, name) not in named:
                named.add((path, name))
                own = {path: defined[name][path]} if path in defined[name] else defined[name]
                pending += [(file, each) for file, nodes in own.items() for each in nodes]
    everywhere = not any("Conv2d" in parsed[path].code(node) for node, path in reached.items())
    for path, source in parsed.items():
        for view in sized_views(source):
            if _fills(source, view) or _is_contiguous(source, view):
                continue
            if everywhere or not reached.keys().isdisjoint(source.ancestors(view)):
                yield path, source, view


def _fills(source: Source, view: cst.Call) -> bool:
    """Whether a view is handed to a function that writes to it: `xavier_uniform_(w.view(8, -1))`, no copy would do."""
    taker = _taker(source, view)
    if taker is None or not call_name(taker).endswith("_"):
        return False
    method = isinstance(taker.func, cst.Attribute) and not source.imported(taker.func)
    return not method and taker.args[0].value is view  # a method writes to its object, and reads the rest


def _initialises(source: Source, view: cst.Call) -> bool:
    """Whether the function that is handed a view fills weights, as programs do before their first step."""
    taker = _taker(source, view)
    return taker is not None and any(name.startswith("torch.nn.init.") for name in source.names(taker.func))


def _taker(source: Source, view: cst.Call) -> cst.Call | None:
    arg = source.parent(view)
    call = source.parent(arg) if isinstance(arg, cst.Arg) else None
    return call if isinstance(call, cst.Call) else None


def _is_written_through(source: Source, view: cst.Call) -> bool:
    """Whether the program changes through a view what the tensor itself holds."""
    if _is_written_to(source, view):
        return True
    scope = source.inside(view, cst.FunctionDef)
    return any(
        is_written(source, source.code(target), source.module if isinstance(target, cst.Attribute) else scope)
        for target in _targets(source, view)
    )


def _is_written_to(source: Source, view: cst.Call) -> bool:
    """Whether a view is changed in place where it is made: `x.view(-1)[0] = 1`, `x.view(-1).zero_()`."""
    below: cst.CSTNode = view
    for above in source.ancestors(view):
        if isinstance(above, cst.Attribute) and above.value is below:
            called = source.parent(above)
            if isinstance(called, cst.Call) and above.attr.value.endswith("_"):
                return True
        elif isinstance(above, cst.AssignTarget | cst.AugAssign):
            return above.target is below
        elif not isinstance(above, cst.Subscript):
            break
        below = above
    return False


def _conv_classes(source: Source) -> Iterator[tuple[cst.ClassDef, cst.FunctionDef]]:
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
    for _, source in files_with(sources, "Conv2d"):
        for around, method in _conv_classes(source):
            first = method.params.params[1].name.value if len(method.params.params) > 1 else None
            for call in source.every(cst.Call, method.body):
                direct = len(call.args) == 1 and source.code(call.args[0].value) == first
                if direct and isinstance(call.func, cst.Attribute) and source.code(call.func.value) == "self":
                    built = members_named(source, around, call.func.attr.value)
                    if len(built) == 1 and _is_convolution(source, built[0]):
                        return True
    return any(name in text for text in sources.values() for name in _LIBRARIES)


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
        others = [source.code(arg.value) for arg in forward.args[1:]]
        if re.sub(r"\d", "", name) in [re.sub(r"\d", "", other) for other in others]:
            continue  # `x1` of the pair `x1, x2`, which are to lie in memory alike
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
