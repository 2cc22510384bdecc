"""Copies of tensors to the device that a step makes, and where each tensor comes from."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.accelerator_tests import asks_for_accelerator
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import loops_around, within
from diagnose.source.dataflow.iteration import numbered
from diagnose.source.dataflow.reaching_definitions import Bound, Definition, definition_of, reaching, statement_of
from diagnose.source.device.value_kinds import Kind, number_kind
from diagnose.source.training.every_step import EveryStep, Stretch
from diagnose.source.training.model_calls import is_model
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_DEVICE = re.compile(r"(^|[._])(\w*device|dev|gpu|cuda|local_rank|rank)(_id|_ids)?$", re.IGNORECASE)
_MAKES = frozenset(
    {"rand", "randn", "randint", "randperm", "zeros", "ones", "empty", "full", "tensor", "as_tensor", "from_numpy"}
    | {"stack", "cat", "concat", "arange", "linspace", "FloatTensor", "LongTensor", "load", "eye", "normal", "Tensor"}
)
_KEEPS_KIND = frozenset({"float", "long", "half", "bfloat16", "view", "reshape", "contiguous", "clone", "unsqueeze"})
_OF_MODELS = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "modules"})
"""Calls of which a loop gets what a model holds: it may lie on the device, and go to the host."""
_VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze"})
"""Methods whose results lie in the memory of a tensor as it comes from a loader."""
_READS_ONLY = frozenset({"size", "shape", "dim", "dtype", "to", "cuda", "numel", "is_pinned", "ndim"})


class Origin(enum.Enum):
    """Where a tensor that is copied comes from."""

    LOADER = "a loop over batches, or a function that is given one"
    KEPT = "a tensor in host memory that was made before the loop and is only read in it"
    MADE = "a tensor that is made in host memory in each step"
    UNKNOWN = "elsewhere"


@dataclass(frozen=True)
class Transfer:
    """`x.to(device)` or `x.cuda()`."""

    path: str
    source: Source
    call: cst.Call
    moved: cst.BaseExpression
    device: cst.BaseExpression | None
    """None: `.cuda()` names none."""
    origin: Origin
    made_by: cst.BaseExpression | None = None
    """The expression that makes the tensor, of KEPT and MADE."""

    @property
    def waits(self) -> bool | None:
        """Whether the host waits for it; None where a value that is not written out decides."""
        given = argument(self.call, "non_blocking", 1 if self.device is None else None)
        code = self.source.code(given.value) if given is not None else "False"
        return {"True": False, "False": True}.get(code)


def transfers(code: EveryStep) -> Iterator[Transfer]:
    """Every copy to the device that is made in each step."""
    for stretch, call in code.calls(here=[".to", ".cuda"], is_one=_may_be):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in {"to", "cuda"}:
            continue
        if isinstance(stretch.source.parent(call), cst.Expr):  # `model.to(device)`: a tensor's copy would be lost
            continue
        device = _device(stretch.source, call)
        if (call.func.attr.value == "to" and device is None) or _is_for_cpu(stretch.source, call):
            continue
        moved = call.func.value
        if _is_module(stretch.source, moved):
            continue
        origin, made_by = _origin(stretch, moved)
        yield Transfer(stretch.path, stretch.source, call, moved, device, origin, made_by)


def _may_be(call: ast.Call) -> bool:
    """Whether a call moves something to the device, as far as Python's own parser tells."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in {"to", "cuda"}:
        return False
    given = [each.value for each in call.keywords if each.arg == "device"] + call.args[:1]
    return call.func.attr == "cuda" or any(_may_be_device(each) for each in given)


def _may_be_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.startswith("cuda")
    if isinstance(node, ast.Attribute | ast.Name):
        return _DEVICE.search(node.attr if isinstance(node, ast.Attribute) else node.id) is not None
    return True


def _is_module(source: Source, moved: cst.BaseExpression) -> bool:
    """Whether a name is a module, which moves as a whole: by what is asked of it, its annotation, or a bare `.to()`."""
    code = source.code(moved)
    bound = binding_of(source, moved) if isinstance(moved, cst.Name) else None
    annotation = bound.parameter.annotation if bound is not None and bound.parameter is not None else None
    return (
        is_model(source, code)
        or (annotation is not None and "Module" in source.code(annotation))
        or any(
            isinstance(source.parent(call), cst.Expr) and source.code(call.func) == f"{code}.{name}"
            for name in ("to", "cuda")
            for call in source.calls_named(name)
        )
    )


def _device(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """The device that a call names; None where it names none, or one that is no accelerator."""
    given = argument(call, "device", 0)
    if given is None:
        return None
    text = string(given.value)
    if text is not None:
        return given.value if text.startswith("cuda") else None
    if isinstance(given.value, cst.FormattedString):
        return given.value if "cuda" in source.code(given.value) else None
    return given.value if _DEVICE.search(source.code(given.value)) else None


def _is_for_cpu(source: Source, call: cst.Call) -> bool:
    """Whether a copy stands in a branch that runs only without an accelerator."""
    below: cst.CSTNode = call
    for above in source.ancestors(call):
        if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
            accelerated = asks_for_accelerator(source, above.test)
            if accelerated is not None and accelerated is not (below is above.body):
                return True
        below = above
    return False


def _origin(stretch: Stretch, moved: cst.BaseExpression) -> tuple[Origin, cst.BaseExpression | None]:
    source = stretch.source
    made = made_on_host(source, moved)
    if made is not None:
        return Origin.MADE, made
    root = _root(moved)
    if isinstance(root, cst.Call) and call_name(root) == "next":
        return Origin.LOADER, None
    if not isinstance(root, cst.Name):
        return Origin.UNKNOWN, None
    if root.value == "self":
        return (Origin.LOADER if _is_drawn(source, moved) else Origin.UNKNOWN), None
    if _is_target(source, root):
        return Origin.LOADER, None
    seen = reaching(source, statement_of(source, moved), root.value)
    value = _bound_to(source, seen, root.value)
    if seen.bound is Bound.OUTER and (bound := binding_of(source, root)) is not None:
        value = bound.value
    drawn = isinstance(value, cst.Call) and call_name(value) == "next"
    if seen.bound is Bound.PARAMETER or drawn or _is_part_of_given(source, value):
        return Origin.LOADER, None
    made = made_on_host(source, value) if value is not None else None
    if value is None or made is None:
        return Origin.UNKNOWN, None
    loops = loops_around(source, moved)
    outside = source.inside(value, cst.FunctionDef) is not source.inside(moved, cst.FunctionDef)
    if any(within(source, value, loop) for loop in loops) or not (loops or outside):
        return Origin.MADE, made
    if not _is_only_read(source, source.inside(value, cst.FunctionDef) or source.module, root.value):
        return Origin.UNKNOWN, None
    return (Origin.KEPT if _is_view(source, moved) else Origin.MADE), made


def _is_part_of_given(source: Source, value: cst.BaseExpression | None) -> bool:
    """Whether a value is a part of what the function is given: `x, y = batch`, `x = batch["image"]`."""
    root = _root(value) if value is not None else None
    if not isinstance(root, cst.Name) or root.value == "self":
        return False
    return definition_of(source, root).bound is Bound.PARAMETER


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what an attribute, a part or a view is taken of: `batch` of `batch["image"].data` and of
    `batch.view(-1)`."""
    while isinstance(inner := viewed_tensor(node), cst.Subscript | cst.Attribute):
        node = inner.value
    return inner


def viewed_tensor(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what a view is taken of: `batch` of `batch.view(-1)`; any other expression itself."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS:
        node = node.func.value
    return node


def _is_drawn(source: Source, attribute: cst.BaseExpression) -> bool:
    """Whether an attribute of an object is the next batch: `self.batch = next(self.batches)`."""
    code = source.code(attribute)
    return any(
        isinstance(assign.value, cst.Call)
        and call_name(assign.value) == "next"
        and any(source.code(target.target) == code for target in assign.targets)
        for assign in source.every(cst.Assign)
    )


def _bound_to(source: Source, seen: Definition, name: str) -> cst.BaseExpression | None:
    """The expression of a definition; of `a, b = 1, 2` the one that the name gets."""
    value = seen.value
    if not isinstance(value, cst.BaseExpression) or seen.bound not in {Bound.ASSIGNED, Bound.UNPACKED}:
        return None
    if seen.bound is Bound.ASSIGNED or not isinstance(value, cst.Tuple) or seen.statement is None:
        return value
    target = next(source.every(cst.AssignTarget, seen.statement)).target
    names = [source.code(each.value) for each in target.elements] if isinstance(target, cst.Tuple | cst.List) else []
    same = len(names) == len(value.elements) and name in names
    return value.elements[names.index(name)].value if same else None


def _is_target(source: Source, name: cst.Name) -> bool:
    """Whether a name is what a loop or a comprehension around goes through, or what a loop over one unpacks."""
    for above in source.ancestors(name):
        loops: list[cst.For | cst.CompFor] = []
        if isinstance(above, cst.For):
            loops = [above]
        elif isinstance(above, cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp):
            loops = [above.for_in]
        for loop in loops:
            names = [each.value for each in source.every(cst.Name, loop.target)]
            counts = isinstance(loop.iter, cst.Call) and call_name(loop.iter) in {"range", "trange"}
            through = {call_name(call) for call in source.every(cst.Call, loop.iter)}
            if name.value in names and not counts and through.isdisjoint(_OF_MODELS):
                return True
            if isinstance(loop, cst.For) and _unpacks(source, loop, name.value, frozenset(names)):
                return True
    return False


def _unpacks(source: Source, loop: cst.For, name: str, targets: frozenset[str]) -> bool:
    """`images, labels = batch` in a loop over batches, or `images, labels = batch["image"], batch["label"]`."""
    for assign in source.every(cst.Assign, loop.body):
        value = assign.value
        parts = [each.value for each in value.elements] if isinstance(value, cst.Tuple | cst.List) else [value]
        roots = [_root(part) for part in parts]
        bound = {each.value for target in assign.targets for each in source.every(cst.Name, target)}
        if name in bound and all(isinstance(root, cst.Name) and root.value in targets for root in roots):
            return True
    return False


def made_on_host(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression itself where it surely makes a tensor in host memory: a factory of torch without a device."""
    inner = node
    while (
        isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and inner.func.attr.value in _KEEPS_KIND
    ):
        inner = inner.func.value
    if not isinstance(inner, cst.Call) or call_name(inner) not in _MAKES:
        return None
    if not any(name.startswith("torch.") for name in source.names(inner.func)):
        return None
    if any(arg.keyword is not None and arg.keyword.value in {"device", "pin_memory"} for arg in inner.args):
        return None
    if call_name(inner) in {"stack", "cat", "concat", "as_tensor", "tensor", "Tensor", "load"}:
        code = source.code(inner)
        host = "from_numpy" in code or call_name(inner) in {"tensor", "Tensor"}
        if not host or re.search(r"device|cuda|gpu", code):
            return None
    return None if _under_device(source, node) else node


def _under_device(source: Source, node: cst.CSTNode) -> bool:
    """Whether `with device:` or a default device decides where a new tensor lies."""
    if "set_default_device" in source.text or "set_default_tensor_type" in source.text:
        return True
    return any(
        _DEVICE.search(source.code(item.item)) is not None or "device(" in source.code(item.item)
        for above in source.ancestors(node)
        if isinstance(above, cst.With)
        for item in above.items
    )


def _is_only_read(source: Source, scope: cst.CSTNode, name: str) -> bool:
    """Whether nothing writes into a tensor: it is indexed, measured and copied, and given to nobody."""
    for node in source.named(name, scope):
        parent = source.parent(node)
        if isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.Element):
            continue
        if isinstance(parent, cst.Subscript) and not isinstance(
            source.parent(parent), cst.AssignTarget | cst.AugAssign
        ):
            continue
        if isinstance(parent, cst.Attribute) and (parent.attr is node or parent.attr.value in _READS_ONLY):
            continue
        if isinstance(parent, cst.Arg):
            call = source.parent(parent)
            if parent.keyword is node or (isinstance(call, cst.Call) and call_name(call) in {"len", "print"}):
                continue
        return False
    return True


def _is_view(source: Source, moved: cst.BaseExpression) -> bool:
    """Whether an expression is a tensor itself, or a part of it that shares its memory: no list of positions."""
    if isinstance(moved, cst.Name):
        return True
    if not isinstance(moved, cst.Subscript) or not isinstance(moved.value, cst.Name):
        return False
    indices = [name for part in moved.slice for name in source.every(cst.Name, part)]
    if not all(_is_integer(source, name) for name in indices):
        return False
    return not any(isinstance(each, cst.List | cst.Call) for each in source.walk(moved) if each is not moved)


def _is_integer(source: Source, name: cst.Name, seen: tuple[cst.CSTNode, ...] = ()) -> bool:
    """Whether a name counts: what a loop over numbers goes through, or a number written out.

    `seen` are the names on the way to it: `start = start + 1` does not tell what the start was before.
    """
    if name in seen:
        return False
    for above in source.ancestors(name):
        if isinstance(above, cst.For) and isinstance(above.iter, cst.Call):
            if call_name(above.iter) in {"range", "trange"} and source.code(above.target) == name.value:
                return True
            pair = numbered(above)
            if pair is not None and source.code(pair.number) == name.value:
                return True
    counted = [
        node
        for node in source.every(cst.AugAssign)
        if isinstance(node.target, cst.Name) and node.target.value == name.value and isinstance(node.value, cst.Integer)
    ]
    if counted:
        return True
    bound = binding_of(source, name)
    value = bound.value if bound is not None else None
    if isinstance(value, cst.BinaryOperation):
        return all(_is_integer(source, each, (*seen, name)) for each in source.every(cst.Name, value))
    return value is not None and number_kind(source, value) is Kind.WHOLE


def cuda_test(source: Source, transfer: Transfer, before: cst.CSTNode | None = None) -> str:
    """Code that says whether a copy goes to a CUDA device, in the program's own words; `True` where that is certain.

    `before`: the code stands behind this statement, so names bound later cannot be used.
    """
    quote = "'" if source.text.count("'") > source.text.count('"') else '"'
    device = transfer.device
    if device is None or string(device) is not None or isinstance(device, cst.FormattedString):
        return "True"
    fallback = "torch.cuda.is_available()"
    if not isinstance(device, cst.Name):
        return fallback
    bound = binding_of(source, device)
    value = bound.value if bound is not None else None
    if value is None or (before is not None and source.span(value)[0] > source.span(before)[1]):
        return fallback
    if isinstance(value, cst.Call) and call_name(value) == "device" and value.args:
        inner = string(value.args[0].value)
        return (
            "True" if inner is not None and inner.startswith("cuda") else f"{device.value}.type == {quote}cuda{quote}"
        )
    if isinstance(value, cst.IfExp) and all(
        isinstance(side, cst.Call) and call_name(side) == "device" for side in (value.body, value.orelse)
    ):
        return f"{device.value}.type == {quote}cuda{quote}"
    if isinstance(value, cst.IfExp) and all(string(side) in {"cuda", "cpu"} for side in (value.body, value.orelse)):
        return f"{device.value} == {quote}cuda{quote}"
    if string(value) is not None and "exec(" not in source.text:
        return "True" if str(string(value)).startswith("cuda") else fallback
    if string(value) is not None:
        return f"{quote}cuda{quote} in {device.value}"
    return fallback
