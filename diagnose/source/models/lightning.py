"""Modules of Lightning: the models that their steps call, where those are built, and the values that they log.

Lightning holds the loop and calls `training_step`, so that there is no call of `backward` to start from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import scope_of
from diagnose.source.models.model_construction import Built, built_as
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source

_STEP = "training_step"
_NO_MODEL = re.compile(r"loss|criterion|metric|acc|auc|f1|perplexity|augment|transform|normali[sz]er", re.IGNORECASE)
_LOGS = frozenset({"self.log", "self.log_dict"})
_SAME_VALUE = frozenset({"detach", "cpu"})


def lightning_models(sources: Mapping[str, str]) -> list[Built]:
    """Return the models that the steps of Lightning modules call, each once: parts of the module, or the module
    itself.
    """
    found: dict[tuple[str, str], Built] = {}
    for path, source, owner in _modules(sources):
        methods = {each.name.value: each for each in source.every(cst.FunctionDef, owner)}
        step = methods[_STEP]
        called = [source.code(call.func) for call in source.every(cst.Call, step)]
        # What the steps of training and validation share has a method of its own.
        shared = [methods[name] for name in methods if f"self.{name}" in called and name != "forward"]
        called += [source.code(call.func) for each in shared for call in source.every(cst.Call, each)]
        parts = [name for name in dict.fromkeys(called) if _is_part(name, methods)]
        built = [built_as(path, source, step, name, sources) for name in parts]
        if "self" in called:
            built = [_instance(owner.name.value, sources)]
        for each in built:
            if each is not None:
                found.setdefault((each.path, each.name), each)
    return list(found.values())


def logged_reads(source: Source) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """`x.item()` where a Lightning module logs it, and the tensor, which its `log` takes as well and keeps there."""
    for owner in _steps_in(source):
        for call in source.every(cst.Call, owner):
            if source.code(call.func) not in _LOGS:
                continue
            for read in source.every(cst.Call, call):
                if (
                    call_name(read) == "item"
                    and isinstance(read.func, cst.Attribute)
                    and _is_logged(source, read, call)
                ):
                    yield read, _plain(read.func.value)


def _modules(sources: Mapping[str, str]) -> Iterator[tuple[str, Source, cst.ClassDef]]:
    for path, source in files_with(sources, where=lambda text: _STEP in text and "lightning" in text.lower()):
        for owner in _steps_in(source):
            yield path, source, owner


def _steps_in(source: Source) -> Iterator[cst.ClassDef]:
    """Classes that Lightning trains."""
    if _STEP not in source.function_names or not any(
        "Lightning" in ast.unparse(base) for each in source.outline.every(ast.ClassDef) for base in each.bases
    ):
        return
    for owner in source.every(cst.ClassDef):
        named = any("Lightning" in source.code(base.value) for base in owner.bases)
        own = (each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef))
        if named and _STEP in own:
            yield owner


def _is_part(name: str, methods: Mapping[str, cst.FunctionDef]) -> bool:
    first, _, rest = name.partition(".")
    return first == "self" and rest.isidentifier() and rest not in methods and _NO_MODEL.search(rest) is None


def _instance(name: str, sources: Mapping[str, str]) -> Built | None:
    """The one variable that is given a module of that class."""
    found: list[Built] = []
    for path, source in files_with(sources, name):
        for assign in source.every(cst.Assign):
            target = assign.targets[0].target
            made = isinstance(assign.value, cst.Call) and source.code(assign.value.func) in {
                name,
                f"{name}.load_from_checkpoint",
            }
            if made and len(assign.targets) == 1 and isinstance(target, cst.Name):
                found.append(Built(path, source, scope_of(source, assign), target.value, (assign,)))
    return found[0] if len(found) == 1 else None


def _is_logged(source: Source, read: cst.Call, log: cst.Call) -> bool:
    """Whether the value itself is what is logged: an argument, or a value of a dictionary in one."""
    for above in source.ancestors(read):
        if above is log:
            return True
        if not isinstance(above, cst.Arg | cst.Dict | cst.DictElement):
            return False
    return False


def _plain(tensor: cst.BaseExpression) -> cst.BaseExpression:
    while (
        isinstance(tensor, cst.Call)
        and isinstance(tensor.func, cst.Attribute)
        and tensor.func.attr.value in _SAME_VALUE
        and not tensor.args
    ):
        tensor = tensor.func.value
    return tensor
