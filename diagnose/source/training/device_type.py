"""The type of the device that a training step runs on, as its own program names it."""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.bindings import parameter_of, passed_to, values_in
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source


def device_type(step: TrainingStep) -> str:
    """An argument for `torch.autocast`: the program's own variable where it is certain what that holds, else a text."""
    source = step.source
    kinds = [source.code(value) for value in _held(source, step.backward, "device_type")]
    if kinds and all("cuda" in code and "device(" not in code for code in kinds):
        return "device_type=device_type"
    devices = _held(source, step.backward, "device")
    if devices and all(map(_is_device, devices)):
        return "device.type"
    if devices and all(map(_is_type, devices)):
        return "device"
    return "'cuda'" if source.text.count("'") > source.text.count('"') else '"cuda"'


def _held(source: Source, at: cst.CSTNode, name: str, calls: int = 3) -> list[cst.BaseExpression]:
    """All that a variable may hold where `at` stands, through so many calls; empty where that is not known."""
    for scope in source.ancestors(at):
        if not isinstance(scope, cst.FunctionDef | cst.Module):
            continue
        values = values_in(source, scope, name)
        if values is None or values:
            return values or []
        parameter = parameter_of(scope, name) if isinstance(scope, cst.FunctionDef) else None
        if isinstance(scope, cst.FunctionDef) and parameter is not None:
            return _given(source, scope, parameter, calls)
    return []


def _given(source: Source, function: cst.FunctionDef, parameter: cst.Param, calls: int) -> list[cst.BaseExpression]:
    found: list[cst.BaseExpression] = []
    for _, value in passed_to(function, parameter, None, {"": source}) or () if calls else ():
        given = value if value is not None else parameter.default
        held = _held(source, given, given.value, calls - 1) if isinstance(given, cst.Name) else [given]
        if not held or held[0] is None:
            return []
        found += [each for each in held if each is not None]
    return found


def _is_type(value: cst.BaseExpression) -> bool:
    """`"cuda" if … else "cpu"`, which nobody overrides."""
    return isinstance(value, cst.IfExp) and all(string(side) in {"cuda", "cpu"} for side in (value.body, value.orelse))


def _is_device(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.IfExp):
        return _is_device(value.body) and _is_device(value.orelse)
    return isinstance(value, cst.Call) and call_name(value) in {"device", "current_accelerator"}
