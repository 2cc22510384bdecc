"""The calls of the model that a loss is computed from, and what the text calls that model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from diagnose.source.dataflow.flow import binds, is_without_gradients
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_MODEL = re.compile(
    r"(^|[._])(\w*model|\w*net|net_?[A-Z]|network|ddp\w*|engine|encoder|decoder|gpt|vit|lstm|rnn|mlp|transformer|student)$",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"^(torch|F|nn|np|math|functional|loss\w*|criterion)\b|(^|\.)(criterion|loss_fn|loss_func|loss)$"
)
_OF_MODULES = frozenset({"parameters", "named_parameters", "train", "eval", "state_dict", "zero_grad", "modules"})
_METHOD_OF = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)\.(\w+)\(")
"""A name and the method of it that is called."""


def model_calls(
    source: Source, values: Sequence[cst.BaseExpression], lines: set[int]
) -> tuple[list[cst.Call], str | None]:
    """The calls of a model among the expressions that a loss is computed from, and the code of what is called.

    Lines that a run recorded decide where the text alone could mean several calls.
    """
    calls = _calls(source, values, lines)
    return (calls, _callee(source, _trained(source, calls))) if calls else _in_functions(source, values)


def _calls(source: Source, values: Sequence[cst.BaseExpression], lines: set[int]) -> list[cst.Call]:
    calls = [call for value in values for call in source.every(cst.Call, value)]
    calls.sort(key=lambda call: source.span(call)[0])
    recorded = [call for call in calls if lines.intersection(range(*_lines(source, call)))]
    direct = [call for call in recorded if not _NO_MODEL.search(source.code(call.func))] or [
        call for call in calls if is_model(source, source.code(call.func))
    ]
    if direct:
        return _surest(source, direct)
    # A function of the user's gets the model: what happens in it is a part of the forward pass.
    given = [call for call in calls if any(is_model(source, source.code(arg.value)) for arg in call.args)]
    return [call for call in given if not is_without_gradients(source, call)][:1]


def _in_functions(source: Source, values: Sequence[cst.BaseExpression]) -> tuple[list[cst.Call], str | None]:
    """The call of a function of the same file that calls a model by a name both know, and that name."""
    for call in (call for value in reversed(values) for call in source.every(cst.Call, value)):
        function = _called(source, call)
        for inner in source.every(cst.Call, function.body) if function is not None else ():
            code = source.code(inner.func)
            shared = code.startswith("self.") or not binds(source, function or source.module, code)
            if shared and is_model(source, code) and not _without_gradients(source, inner):
                return [call], code
    return [], None


def _called(source: Source, call: cst.Call) -> cst.FunctionDef | None:
    """The function of this file, or the method of the class around, that is called."""
    code = source.code(call.func)
    if not re.fullmatch(r"(self\.)?\w+", code):
        return None
    owner = source.inside(call, cst.ClassDef) if code.startswith("self.") else None
    named = (each for each in source.every(cst.FunctionDef) if each.name.value == call_name(call))
    return next((each for each in named if source.inside(each, cst.ClassDef) is owner), None)


def _lines(source: Source, node: cst.CSTNode) -> tuple[int, int]:
    first, last = source.lines_of(node)
    return first, last + 1


def _surest(source: Source, calls: list[cst.Call]) -> list[cst.Call]:
    """Return the calls whose callee the text treats as a module, where there are such: a line may hold other calls
    beside."""
    names = {source.code(call.func) for call in calls}
    certain = {name for name in names if is_model(source, name)} or names
    return [call for call in calls if source.code(call.func) in certain]


def _trained(source: Source, calls: Sequence[cst.Call]) -> cst.Call:
    """The first call that gradients go through: that of a teacher comes under `no_grad`, or is detached."""
    return next((call for call in calls if not _without_gradients(source, call)), calls[0])


def _without_gradients(source: Source, call: cst.Call) -> bool:
    """Whether a call is in a block without gradients, or detached."""
    parts = (above for above in source.ancestors(call) if isinstance(above, cst.Attribute))
    return is_without_gradients(source, call) or any(above.attr.value == "detach" for above in parts)


def is_model(source: Source, code: str) -> bool:
    """Whether the text treats a name as a module: it asks for its parameters or mode, or calls it a model."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*", code) or _NO_MODEL.search(code):
        return False
    return code in _asked_as_modules(source) or _MODEL.search(code) is not None


@per_source
def _asked_as_modules(source: Source) -> frozenset[str]:
    """The names that the text asks for something of modules, also by way of their `module`."""
    asked = [name for name, method in _METHOD_OF.findall(source.text) if method in _OF_MODULES]
    return frozenset(asked) | {name.removesuffix(".module") for name in asked}


def _callee(source: Source, call: cst.Call) -> str:
    code = source.code(call.func)
    if is_model(source, code) or not call.args:
        return code
    given = [source.code(arg.value) for arg in call.args if is_model(source, source.code(arg.value))]
    return given[0] if given else code
