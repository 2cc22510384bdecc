"""Methods of a module that a training step calls in the place of the module itself: `agent.act(observations)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from diagnose.source.models.model_construction import Built, built_model
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, only_statement, parse

_TAKES_WHOLE = frozenset({"save", "dump", "dumps", "Process", "spawn", "start_processes"})


@dataclass(frozen=True)
class CalledMethods:
    """The methods of one module that training steps call."""

    built: Built
    names: tuple[str, ...]


def called_methods(steps: Sequence[TrainingStep], sources: Mapping[str, str]) -> list[CalledMethods]:
    """Return the methods that the steps call of modules without a `forward`, or with one that only raises, by module;
    those alone whose module is found where it is built.
    """
    found: dict[tuple[str, str], CalledMethods] = {}
    for step in steps:
        for owner, name in _called(step, sources):
            built = built_model(replace(step, model=owner), sources)
            if built is not None and not _is_of_library(built):
                before = found.get((built.path, built.name))
                names = (*before.names, name) if before is not None else (name,)
                found[built.path, built.name] = CalledMethods(built, tuple(dict.fromkeys(names)))
    return list(found.values())


def shared_whole(methods: CalledMethods, sources: Mapping[str, str]) -> str | None:
    """Return the file and line of the first call that copies a module, or pickles this one; None without one.

    A method that was replaced on the object stays bound to it: a copy would compute with the weights of the original.
    """
    leaf = methods.built.name.rpartition(".")[2]
    for path, source in ((path, parse(text)) for path, text in sources.items()):
        if source is None or source.words.isdisjoint({"deepcopy", *_TAKES_WHOLE}):
            continue
        for call in source.every(cst.Call):
            name = call_name(call)
            if name == "deepcopy" or (name in _TAKES_WHOLE and leaf in _bare_names(source, call)):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def _called(step: TrainingStep, sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """The object (`agent`) and the method of each such call, once."""
    calls = [call.func for call in step.source.every(cst.Call, step.turn) if isinstance(call.func, cst.Attribute)]
    called = {func.attr.value for func in calls}
    parsed = (parse(text) for text in sources.values() if "Module" in text)
    # A file that defines none of these names is not laid out.
    holding = (source for source in parsed if source is not None and source.function_names & called)
    methods = {name for source in holding for name in _methods(source)}
    found = [(step.source.code(func.value), func.attr.value) for func in calls if func.attr.value in methods]
    return list(dict.fromkeys(one for one in found if one[0] != "self" and not one[0].startswith("super(")))


def _is_of_library(built: Built) -> bool:
    """Whether it is of torch's own, such as an optimizer: a class of the program's may have a method `step` too."""
    values = (each.value for each in built.assigned if isinstance(each.value, cst.Call))
    return any(name.startswith("torch.") for value in values for name in built.source.names(value.func))


def _methods(source: Source) -> Iterator[str]:
    for owner in source.every(cst.ClassDef):
        methods = [each for each in owner.body.body if isinstance(each, cst.FunctionDef)]
        own = [each.name.value for each in methods if not _only_raises(each)]
        module = any(source.code(base.value).rpartition(".")[2] == "Module" for base in owner.bases)
        if module and "forward" not in own:
            yield from (name for name in own if not name.startswith("_"))


def _only_raises(method: cst.FunctionDef) -> bool:
    """Whether a method does no more than raise an error, behind a docstring perhaps: `raise NotImplementedError`."""
    *before, last = method.body.body
    told = all(isinstance(only_statement(each), cst.Expr) for each in before)
    return told and isinstance(only_statement(last), cst.Raise)


def _bare_names(source: Source, call: cst.Call) -> Iterator[str]:
    """The last names of what the call is given as it is, also within a tuple, list or dict."""
    for arg in call.args:
        for node in source.walk(arg.value, cst.Name, cst.Attribute):
            around = source.parent(node)
            whole = not isinstance(around, cst.Attribute) and not (isinstance(around, cst.Call) and around.func is node)
            if whole and isinstance(node, cst.Name | cst.Attribute):
                yield source.code(node).rpartition(".")[2]
