"""Hooks on modules and tensors: whether there are any, and which only watch: they look for NaN and raise."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Iterable, Mapping

import libcst as cst

from diagnose.source.tree.built_classes import Classes, in_class_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source

_REGISTERS = frozenset(
    {
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_backward_hook",
        "register_full_backward_pre_hook",
        "register_hook",
        "register_module_forward_hook",
        "register_module_full_backward_hook",
    }
)
_ON_CALLS = frozenset(
    {"register_forward_hook", "register_forward_pre_hook", "register_module_forward_hook"}
    | {"register_module_forward_pre_hook"}
)
_EXTRACTS = frozenset({"create_feature_extractor", "IntermediateLayerGetter"})
"""What calls the parts of a module itself, in the place of its forward pass."""
_ON_MODULES = _ON_CALLS | _REGISTERS - {"register_hook"}
_LOOKS = re.compile(r"\b(isnan|isinf|isfinite)\(")
_CHANGES = re.compile(
    r"\.(append|add|update|extend|setdefault|mul_|add_|clamp_|copy_|zero_|fill_|backward|save)\(|\bglobal\b"
)
_TELLS = re.compile(r"\bprint\(|\blogg(?:er|ing)\b|\b(?:write|warn)\(")


def forward_hook(sources: Mapping[str, str]) -> str | None:
    """The file and line at which a program first hooks the calls of modules, or makes them itself; None where it does
    neither.
    """
    return _first_call(sources, _ON_CALLS | _EXTRACTS, frozenset())


def module_hook(sources: Mapping[str, str], unused: Classes = frozenset()) -> str | None:
    """The file and line of the first hook on calls or gradients of modules; hooks on tensors, and what `unused`
    classes do, do not count.
    """
    hooking = {path: text for path, text in sources.items() if "_hook" in text}
    return _first_call(hooking, _ON_MODULES, unused)


def _first_call(sources: Mapping[str, str], names: Collection[str], unused: Classes) -> str | None:
    """The file and line of the first call of one of these names; a file without any of them is not parsed."""
    for path, source in files_with(sources, *names):
        for call in source.calls_named(*names):
            if not in_class_of(source, call, path, unused):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def is_watching_hook(source: Source, call: cst.Call) -> bool:
    """Whether a call registers a function of the same file which only looks for NaN, and raises an error of Python's.

    One that prints or logs does not only watch: what it says is what the program says.
    """
    if call_name(call) not in _REGISTERS or not call.args:
        return False
    hook = call.args[0].value
    if not isinstance(hook, cst.Name):
        return False
    functions = [each for each in source.every(cst.FunctionDef) if each.name.value == hook.value]
    return len(functions) == 1 and _watches(source, functions[0])


def _watches(source: Source, function: cst.FunctionDef) -> bool:
    code = source.code(function.body)
    if not _LOOKS.search(code) or _CHANGES.search(code) or _TELLS.search(code):
        return False
    if not all(map(_is_builtin, source.every(cst.Raise, function))):
        return False  # an error of the program's own is there to be caught: it starts anew from a checkpoint
    returns = (each.value for each in source.every(cst.Return, function))
    if any(value is not None and source.code(value) != "None" for value in returns):
        return False
    return not any(source.every(cst.Yield, function)) and all(map(_is_local, _targets(source, function)))


def _is_builtin(raised: cst.Raise) -> bool:
    """Whether an error is one of Python's own."""
    error = raised.exc.func if isinstance(raised.exc, cst.Call) else raised.exc
    return error is None or (isinstance(error, cst.Name) and hasattr(builtins, error.value))


def _targets(source: Source, function: cst.FunctionDef) -> Iterable[cst.BaseExpression]:
    for assign in source.every(cst.Assign, function):
        yield from (target.target for target in assign.targets)
    yield from (each.target for each in source.every(cst.AugAssign, function))


def _is_local(target: cst.BaseExpression) -> bool:
    """Whether an assignment binds plain names only, which end with the hook."""
    if isinstance(target, cst.Tuple | cst.List):
        return all(_is_local(element.value) for element in target.elements)
    return isinstance(target, cst.Name)
