"""Samples that lie on an accelerator before a loader hands them out: no worker process can make them, and they cannot
be pinned.

What is asked is where the parts of a sample are put: `.cuda()`, `.to(device)`, `device=device`. The device of another
tensor of the sample (`device=x.device`) puts nothing anywhere else, and what comes back by `.cpu()` is on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, dotted, parameter_of, values_in
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_FOR_ALL = re.compile(r"\bset_default_device\((?!\s*[\"']cpu)|\bset_default_tensor_type\([^)]*cuda")
_CONTAINERS = ("torch.nn.DataParallel", "torch.nn.parallel.", "torch.nn.Sequential")
_TO_HOST = frozenset({"cpu", "numpy", "tolist", "item"})
_FORMAT = re.compile(r"^(?:torch|np|numpy)\.(?:float|double|half|bfloat|u?int|long|short|bool|complex|channels)")
_SETTINGS = frozenset({"self", "cls", "args", "cfg", "config", "opt", "hparams", "params", "settings"})


def device_samples(code: SampleCode) -> Iterator[Trace]:
    """All that is seen to put samples, or what they are taken from, on an accelerator."""
    for path, source in code.sources.items():
        for at, line in enumerate(source.text.splitlines(), 1) if "set_default_" in source.text else ():
            if _FOR_ALL.search(line) is not None:
                yield Trace(f"makes its tensors on a device by default (`{line.strip()}`)", path, at)
    for node, path in code.sampling.items():
        yield from _puts(code, path, node)
    for made, path in code.building.items():
        source = code.sources[path]
        if not isinstance(made, cst.FunctionDef) or source.inside(made, cst.ClassDef) in code.classes:
            yield from _puts(code, path, made)
        else:
            for returned in source.every(cst.Return, made):
                for each in source.every(cst.Name, returned):
                    for value in bound_to(source, each):
                        yield from _puts(code, path, value) if isinstance(value, cst.BaseExpression) else ()
                yield from _puts(code, path, returned)


def _puts(code: SampleCode, path: str, below: cst.CSTNode) -> Iterator[Trace]:
    source = code.sources[path]
    for call in source.every(cst.Call, below):
        device = _device_of(source, call)
        if device is None or not _may_be_accelerator(source, device, below) or _comes_back(source, call, below):
            continue
        if _follows_another(source, call) or _moves_module(code, source, call):
            continue
        yield Trace(f"puts samples on a device (`{source.code(call)}`)", path, source.lines_of(call)[0])


def _moves_module(code: SampleCode, source: Source, call: cst.Call) -> bool:
    """Whether a call puts a new module on a device, and no sample: `Net().cuda()`; what that computes is seen there."""
    made = call.func.value if isinstance(call.func, cst.Attribute) else None
    if not isinstance(made, cst.Call):
        return False
    bases = (
        base.value for _, each in code.named(source, made.func) if isinstance(each, cst.ClassDef) for base in each.bases
    )
    return source.is_called(made.func, *_CONTAINERS) or any("Module" in dotted(base) for base in bases)


def _device_of(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return the device that a call puts something on: the call itself for `.cuda()`; None where it puts nothing."""
    name = call_name(call)
    if isinstance(source.parent(call), cst.WithItem) and name == "device" and call.args:
        return call.args[0].value
    if isinstance(call.func, cst.Attribute) and name == "cuda" and not _is_torch(call.func.value):
        return call
    given = argument(call, "device", 0 if name == "to" else None)
    return given.value if given is not None and name not in {"Generator", "device"} else None


def _is_torch(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "torch"


def _may_be_accelerator(source: Source, device: cst.BaseExpression, below: cst.CSTNode, depth: int = 3) -> bool:
    code = source.code(device)
    if _FORMAT.match(code) or code == "None":
        return False
    if isinstance(device, cst.BaseString | cst.Integer) or (isinstance(device, cst.Call) and "cpu" in code):
        return "cpu" not in code or "cuda" in code
    if isinstance(device, cst.Attribute) and device.attr.value == "dtype":
        return False
    if isinstance(device, cst.Attribute) and device.attr.value == "device":
        return not _is_of_a_sample(source, device.value, below)
    if isinstance(device, cst.Name) and depth:
        values = [each for each in bound_to(source, device) if isinstance(each, cst.BaseExpression)]
        return not values or any(_may_be_accelerator(source, each, below, depth - 1) for each in values)
    return True


def _is_of_a_sample(source: Source, tensor: cst.BaseExpression, below: cst.CSTNode) -> bool:
    """Whether what has a `device` is a tensor of the sample or its dataset, not an accelerator or a model outside."""
    root = tensor
    while isinstance(root, cst.Attribute | cst.Subscript):
        root = root.value
    if not isinstance(root, cst.Name) or root.value in _SETTINGS:
        return root is not tensor
    around = list(source.ancestors(root))
    if below not in around:
        return False
    functions = [each for each in around if isinstance(each, cst.FunctionDef)]
    within = functions[: functions.index(below) + 1] if isinstance(below, cst.FunctionDef) else functions[:1]
    return any(parameter_of(each, root.value) or values_in(source, each, root.value) != [] for each in within)


def _follows_another(source: Source, call: cst.Call) -> bool:
    """Whether a tensor is put where another one is: `x.cuda() if y.is_cuda else x`."""
    tests = (above.test for above in source.ancestors(call) if isinstance(above, cst.If | cst.IfExp))
    return any(each.attr.value == "is_cuda" for test in tests for each in source.every(cst.Attribute, test))


def _comes_back(source: Source, call: cst.Call, below: cst.CSTNode) -> bool:
    """Whether what comes of a call goes to the host again in the same expression."""
    for above in source.ancestors(call):
        if isinstance(above, cst.Call) and isinstance(above.func, cst.Attribute):
            back = argument(above, "device", 0 if call_name(above) == "to" else None)
            if call_name(above) in _TO_HOST or (back is not None and source.code(back.value).strip("'\"") == "cpu"):
                return True
        if above is below or isinstance(above, cst.BaseSmallStatement):
            return False
    return False
