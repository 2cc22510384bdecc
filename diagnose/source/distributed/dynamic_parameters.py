"""Whether a model may use other parameters in one step than in another.

Layers are dropped, inputs go to experts, a branch or a switch decides, or parameters are frozen while training goes on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.reachable_code import ReachableCode, runs_after
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_of_self, names_set_later
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.syntax import Source

_FORWARD = frozenset({"forward", "training_step"})
_RANDOM = re.compile(
    r"\b(?:random|rand|randn|randint|bernoulli|choice|uniform)\(|layer_?drop|drop_path|stochastic_depth|drop_layer",
    re.I,
)
_LOSS = re.compile(r"loss|criterion|objective", re.I)
_BY_STEP = re.compile(r"\b(?:step|epoch|iteration|global_step)\b")


def varies(sources: Mapping[str, str]) -> str | None:
    """The place of a condition of a forward pass that may come out differently in the next step; None where none does.

    It hangs on a random number, on the step, on an input, or on a switch of the model that is set after it is built,
    and decides whether a part of the model is called.
    """
    later = names_set_later(parse_all(sources).values())
    for path, source in files_with(sources, "forward", "training_step"):
        for function in source.every(cst.FunctionDef):
            if function.name.value not in _FORWARD:
                continue
            branch = _varying(source, function) or _switched(source, function, later)
            if branch is not None:
                return f"{path}:{source.lines_of(branch)[0]}"
    return None


def frozen_later(sources: Mapping[str, str], path: str, node: cst.CSTNode) -> str | None:
    """The place of a statement that may take gradients from parameters after a node; None without one."""
    parsed = parse_all(sources)
    if not any(source.mentions("requires_grad") for source in parsed.values()):
        return None
    reached = ReachableCode(parsed, list(runs_after(parsed, path, node)))
    for at, source, call in reached.every(cst.Call):
        given = argument(call, "requires_grad", 0) if call_name(call) == "requires_grad_" else None
        if given is not None and source.code(given.value) != "True":
            return f"{at}:{source.lines_of(call)[0]}"
    for at, source, assign in reached.every(cst.Assign):
        targets = [target.target for target in assign.targets if isinstance(target.target, cst.Attribute)]
        freezes = any(target.attr.value == "requires_grad" for target in targets)
        if freezes and source.code(assign.value) != "True":
            return f"{at}:{source.lines_of(assign)[0]}"
    return None


def _switched(source: Source, function: cst.FunctionDef, later: frozenset[str]) -> cst.CSTNode | None:
    """Return where an attribute that is set after the model is built decides: in a test, or as what is called."""
    deciding: list[cst.CSTNode] = [call.func for call in source.every(cst.Call, function.body)]
    deciding += [node.test for node in source.walk(function.body) if isinstance(node, cst.If | cst.IfExp | cst.While)]
    deciding += [
        arg.value
        for call in source.every(cst.Call, function.body)
        if call_name(call) == "set_grad_enabled"
        for arg in call.args
    ]
    for each in deciding:
        for attribute in source.every(cst.Attribute, each):
            own = isinstance(attribute.value, cst.Name) and attribute.value.value == "self"
            if own and attribute.attr.value in later:
                return each
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
        if _asks_input(function, branch.test) and _chooses_parts(source, function, branch):
            return branch
    return _picked(source, function)


def _picked(source: Source, function: cst.FunctionDef) -> cst.CSTNode | None:
    """A part that an input picks: `self.heads[task](x)`, `getattr(self, name)(x)`, `in self.layers[:depth]`."""
    given = {each.name.value for each in function.params.params} - {"self"}
    used = [call.func for call in source.every(cst.Call, function.body)]
    used += [loop.iter for loop in source.every(cst.For, function.body)]
    made: list[tuple[cst.CSTNode, list[cst.BaseExpression]]] = [
        (each.value, [target.target for target in each.targets]) for each in source.every(cst.Assign, function.body)
    ]
    made += [
        (each.iter, [each.target]) for each in source.every(cst.For, function.body) if isinstance(each.iter, cst.Name)
    ]
    for value, targets in made:  # in the order of the text, loops last
        if any(name.value in given for name in source.every(cst.Name, value)):
            given |= {target.value for target in targets if isinstance(target, cst.Name)}
    for each in used:
        part: Sequence[cst.CSTNode] = each.slice if isinstance(each, cst.Subscript) and is_of_self(each.value) else ()
        if isinstance(each, cst.Call) and source.code(each.func) == "getattr" and len(each.args) > 1:
            part = each.args[1:2] if source.code(each.args[0].value) == "self" else ()
        if any(name.value in given for one in part for name in source.every(cst.Name, one)):
            return each
    return None


def _asks_input(function: cst.FunctionDef, test: cst.BaseExpression) -> bool:
    """Whether a condition asks which task an input is for, or whether there is one."""
    given = {each.name.value for each in function.params.params}
    compared = [test.left] if isinstance(test, cst.Comparison) else [test]
    return any(isinstance(each, cst.Name) and each.value in given for each in compared)


def _chooses_parts(source: Source, function: cst.FunctionDef, branch: cst.If | cst.IfExp) -> bool:
    """Whether a part of the model is called in one of its cases, and nowhere else."""
    called = Counter(_parts(source, function.body))
    both = [branch.body, branch.orelse] if branch.orelse is not None else [branch.body]
    return any(called[part] == count for side in both for part, count in Counter(_parts(source, side)).items())


def _parts(source: Source, below: cst.CSTNode) -> list[str]:
    """Return what a piece of code calls of `self`, criteria aside: these have no parameters."""
    calls = [source.code(call.func) for call in source.every(cst.Call, below)]
    return [code for code in calls if re.fullmatch(r"self\.\w+", code) and not _LOSS.search(code)]


def _names_of_chance(source: Source, function: cst.FunctionDef, test: cst.BaseExpression) -> bool:
    """Whether a condition asks a variable that the function drew."""
    asked = {name.value for name in source.every(cst.Name, test)}
    for assign in source.every(cst.Assign, function.body):
        named = {source.code(target.target) for target in assign.targets}
        if named & asked and _RANDOM.search(source.code(assign.value)):
            return True
    return False
