"""Methods of a module that a training step calls in the place of the module itself: `agent.act(observations)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.syntax import Source, parse

__all__ = ["called_methods"]


def called_methods(step: TrainingStep, sources: Mapping[str, str]) -> list[str]:
    """Their code (`agent.act`), of classes in these files that are modules without a `forward`; each once."""
    calls = [call.func for call in step.source.every(cst.Call, step.turn) if isinstance(call.func, cst.Attribute)]
    called = {func.attr.value for func in calls}
    parsed = (parse(text) for text in sources.values() if "Module" in text)
    # A file that defines none of these names is not laid out.
    holding = (source for source in parsed if source is not None and source.function_names & called)
    methods = {name for source in holding for name in _methods(source)}
    found = [step.source.code(func) for func in calls if func.attr.value in methods]
    return list(dict.fromkeys(code for code in found if not code.startswith(("self.", "super("))))


def _methods(source: Source) -> Iterator[str]:
    for owner in source.every(cst.ClassDef):
        own = [each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef)]
        module = any(source.code(base.value).rpartition(".")[2] == "Module" for base in owner.bases)
        if module and "forward" not in own:
            yield from (name for name in own if not name.startswith("_"))
