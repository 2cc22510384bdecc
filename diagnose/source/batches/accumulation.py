"""Gradient accumulation in the source: the number of micro-steps, what divides by it, and the size of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import Loop, loops_around, within
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, Splice

_DIVIDES = (cst.FloorDivide, cst.Divide, cst.Modulo)


@dataclass(frozen=True)
class Accumulation:
    """Micro-steps between two steps of the optimizer."""

    steps: cst.BaseExpression
    """How many, as the loop or its condition has it."""
    counted: bool
    """The micro-steps are a loop of their own within the step, not those of the loader with a condition."""


@dataclass(frozen=True)
class Count:
    """A whole number that the program sets in one place."""

    path: str
    start: int
    end: int
    value: int

    def to(self, value: int) -> Splice:
        """The edit that sets it."""
        return Splice(self.start, self.end, str(value))


def accumulation(step: TrainingStep) -> Accumulation | None:
    """Return how a training step accumulates gradients; None where it does not, or not as a mean over micro-steps."""
    source = step.source
    around = loops_around(source, step.backward)
    inner = around[0] if around else None
    found: Accumulation | None = None
    if isinstance(inner, cst.For) and _of_range(inner) is not None and len(around) > 1:
        outside = [call for call in step.optimizer_steps if not within(source, call, inner)]
        if outside and len(outside) == len(step.optimizer_steps):
            found = Accumulation(_of_range(inner) or inner.iter, True)
    if found is None and inner is not None:
        found = _by_condition(source, step, inner)
    if found is None or not _divides(source, step, source.code(found.steps)):
        return None
    return found


def _of_range(loop: cst.For) -> cst.BaseExpression | None:
    call = loop.iter
    if isinstance(call, cst.Call) and call_name(call) == "range" and len(call.args) == 1:
        return call.args[0].value
    return None


def _by_condition(source: Source, step: TrainingStep, loop: Loop) -> Accumulation | None:
    """`if (i + 1) % steps == 0: optimizer.step()`."""
    for call in step.optimizer_steps:
        branch = source.inside(call, cst.If)
        if branch is None or not within(source, branch, loop):
            continue
        for modulo in source.every(cst.BinaryOperation, branch.test):
            if isinstance(modulo.operator, cst.Modulo):
                return Accumulation(modulo.right, False)
    return None


def _divides(source: Source, step: TrainingStep, steps: str) -> bool:
    """Whether the loss of a micro-step is divided by their number."""
    scope = step.turn
    divided = [each.right for each in source.every(cst.BinaryOperation, scope) if isinstance(each.operator, cst.Divide)]
    divided += [
        each.value for each in source.every(cst.AugAssign, scope) if isinstance(each.operator, cst.DivideAssign)
    ]
    return any(source.code(each) == steps for each in divided)


def count_of(source: Source, path: str, name: str, *, divisor: bool = False) -> Count | None:
    """The one statement that sets a variable to a number or a product of numbers; None where more hangs on it."""
    found: list[Count] = []
    for assign in source.every(cst.Assign):
        if any(source.code(target.target) == name for target in assign.targets):
            value = _constant(assign.value)
            if value is None or len(assign.targets) != 1:
                return None
            found.append(Count(path, *source.wide_span(assign.value), value))
    alone = len(found) == 1 and not _is_set_otherwise(source, name)
    return found[0] if alone and only_multiplied(source, name, divisor) else None


def _is_set_otherwise(source: Source, name: str) -> bool:
    """Whether a variable also gets a number with an annotation, in a row of several, or by an update.

    Micro-steps that ranks share out (`//=`) are as many in all as before.
    """
    for node in source.every(cst.Name):
        parent = source.parent(node)
        if node.value != name or is_attribute_name(source, node):
            continue
        if isinstance(parent, cst.AnnAssign) and parent.target is node and parent.value is not None:
            return True
        row = source.parent(parent) if isinstance(parent, cst.Element) else None
        if row is not None and isinstance(source.parent(row), cst.AssignTarget):
            return True
        updated = isinstance(parent, cst.AugAssign) and parent.target is node
        if updated and isinstance(parent, cst.AugAssign) and not isinstance(parent.operator, cst.FloorDivideAssign):
            return True
    return False


def _constant(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return int(node.value.replace("_", ""), 0)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        left, right = _constant(node.left), _constant(node.right)
        return left * right if left is not None and right is not None else None
    return None


def only_multiplied(source: Source, name: str, divisor: bool) -> bool:
    """Whether nothing is divided by the variable, such as the length of an epoch, but the loss by a `divisor`."""
    for node in source.every(cst.Name):
        if node.value != name:
            continue
        for above in source.ancestors(node):
            if isinstance(above, cst.BaseSmallStatement | cst.BaseCompoundStatement | cst.Arg):
                break
            if not isinstance(above, cst.BinaryOperation) or not isinstance(above.operator, _DIVIDES):
                continue
            statement = source.statement(above)
            code = source.code(statement) if isinstance(statement, cst.SimpleStatementLine) else ""
            turns = isinstance(above.operator, cst.Modulo)
            if not divisor or not (turns or "loss" in code or "backward" in code):
                return False
    return True
