"""The type of the device that a training step runs on, as its own program names it."""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.flow import scope_of
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string

__all__ = ["device_type"]


def device_type(step: TrainingStep) -> str:
    """An argument for `torch.autocast`: the program's own variable where it is certain what that holds, else a text."""
    source = step.source
    visible = {name.value for name in source.every(cst.Name, step.scope)}
    values: dict[str, list[cst.BaseExpression]] = {"device_type": [], "device": []}
    for assign in source.every(cst.Assign):
        name = source.code(assign.targets[0].target)
        values.get(name, []).append(assign.value)
        if scope_of(source, assign) is source.module:
            visible.add(name)
    types = [source.code(value) for value in values["device_type"]]
    if "device_type" in visible and types and all("cuda" in code and "device(" not in code for code in types):
        return "device_type=device_type"
    if "device" in visible and values["device"] and all(map(_is_device, values["device"])):
        return "device.type"
    if "device" in visible and values["device"] and all(map(_is_type, values["device"])):
        return "device"
    return "'cuda'" if source.text.count("'") > source.text.count('"') else '"cuda"'


def _is_type(value: cst.BaseExpression) -> bool:
    """`"cuda" if … else "cpu"`, which nobody overrides."""
    return isinstance(value, cst.IfExp) and all(string(side) in {"cuda", "cpu"} for side in (value.body, value.orelse))


def _is_device(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.IfExp):
        return _is_device(value.body) and _is_device(value.orelse)
    return isinstance(value, cst.Call) and call_name(value) in {"device", "current_accelerator"}
