"""Whether a model may use other parameters in one step than in another: layers that are dropped, experts, branches."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from diagnose.source.syntax import Source, parse

__all__ = ["varies"]

_FORWARD = frozenset({"forward", "training_step"})
_RANDOM = re.compile(
    r"\b(?:random|rand|randn|randint|bernoulli|choice|uniform)\(|layer_?drop|drop_path|stochastic_depth|drop_layer",
    re.I,
)
_BY_STEP = re.compile(r"\b(?:step|epoch|iteration|global_step)\b")


def varies(sources: Mapping[str, str]) -> str | None:
    """The place of a condition of a forward pass that hangs on a random number or on the step; None where none does."""
    for path, text in sources.items():
        source = parse(text) if "forward" in text or "training_step" in text else None
        for function in source.every(cst.FunctionDef) if source is not None else ():
            assert source is not None  # or it would have no functions
            if function.name.value in _FORWARD and (branch := _varying(source, function)) is not None:
                return f"{path}:{source.lines_of(branch)[0]}"
    return None


def _varying(source: Source, function: cst.FunctionDef) -> cst.CSTNode | None:
    branches: list[cst.If | cst.IfExp] = [
        *source.every(cst.If, function.body),
        *source.every(cst.IfExp, function.body),
    ]
    for branch in branches:
        test = source.code(branch.test)
        if _RANDOM.search(test) or _BY_STEP.search(test) or _names_of_chance(source, function, branch.test):
            return branch
    return None


def _names_of_chance(source: Source, function: cst.FunctionDef, test: cst.BaseExpression) -> bool:
    """Whether a condition asks a variable that the function drew."""
    asked = {name.value for name in source.every(cst.Name, test)}
    for assign in source.every(cst.Assign, function.body):
        named = {source.code(target.target) for target in assign.targets}
        if named & asked and _RANDOM.search(source.code(assign.value)):
            return True
    return False
