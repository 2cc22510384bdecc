"""The condition under which a micro-step is the last one before the optimizer's step, as code at the head of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

import libcst as cst

from diagnose.source.edit import call_name, free_name, replace
from diagnose.source.flow import Loop, binds, loops_around, scope_of, within
from diagnose.source.steps.training import TrainingStep, is_optimizer_step
from diagnose.source.syntax import Source, Splice

__all__ = ["LastMicroStep", "called_micro_step", "last_micro_step"]


@dataclass(frozen=True)
class LastMicroStep:
    """When gradients are complete."""

    condition: str
    """True in the last micro-step, wherever in a turn it is asked."""
    edits: tuple[Splice, ...] = ()
    """What gives a loop's variable a name first."""
    always: bool = True
    """Whether the last micro-step always comes; False where a loader may end between two steps of the optimizer."""


def called_micro_step(step: TrainingStep) -> TrainingStep | None:
    """A step whose backward pass a method makes for each micro-step, seen from the loop that calls it.

    Its `backward` and `forward` are that call. None where the method does more than add to gradients, or where several
    loops call it: `self.micro_step(batch)` in a loop whose function makes the optimizer's steps is what is meant.
    """
    method, source = step.scope, step.source
    owner = source.inside(method, cst.ClassDef) if isinstance(method, cst.FunctionDef) else None
    does_more = step.loop is not None or step.optimizer_steps or step.zero_grads
    if (
        owner is None
        or does_more
        or not isinstance(method, cst.FunctionDef)
        or not (step.model or "").startswith("self.")
    ):
        return None
    helpers = {source.code(call.func) for call in source.every(cst.Call, method)}
    others = (each for each in source.every(cst.FunctionDef, owner) if f"self.{each.name.value}" in helpers)
    if any(_steps(source, other) for other in others):
        return None
    found = []
    for call in source.every(cst.Call, owner):
        loops = loops_around(source, call) if source.code(call.func) == f"self.{method.name.value}" else []
        scope = scope_of(source, call)
        if loops and _steps(source, scope):
            clears = tuple(other for other in source.every(cst.Call, scope) if call_name(other) == "zero_grad")
            seen = replaced(step, scope=scope, loop=loops[0], backward=call, forward=(call,), clips=(), batch=())
            found.append(replaced(seen, optimizer_steps=_steps(source, scope), zero_grads=clears))
    return found[0] if len(found) == 1 else None


def _steps(source: Source, below: cst.CSTNode) -> tuple[cst.Call, ...]:
    return tuple(call for call in source.every(cst.Call, below) if is_optimizer_step(source, call))


def last_micro_step(step: TrainingStep, *, adds_only: bool = False) -> LastMicroStep | str | None:
    """The condition; why it cannot be asked for at the head of a turn; None where all turns may be the last.

    `adds_only`: whatever function makes the backward pass is known to do nothing else.
    """
    source = step.source
    around = loops_around(source, step.backward)
    inner = around[0] if around else None
    if inner is None or not step.optimizer_steps or (step.hands_loss_on and not adds_only):
        return None
    outside = [call for call in step.optimizer_steps if not within(source, call, inner)]
    if len(around) > 1 and len(outside) == len(step.optimizer_steps):
        return _counted(source, inner, around[1])
    for call in step.optimizer_steps:
        for branch in source.ancestors(call):
            if branch is inner:
                break
            if isinstance(branch, cst.If) and _asks_remainder(source, branch.test):
                return _asked_before(source, inner, branch, step.optimizer_steps)
    return None


def _counted(source: Source, inner: Loop, outer: Loop) -> LastMicroStep | str | None:
    """`for micro_step in range(count):` within a step."""
    call = inner.iter if isinstance(inner, cst.For) else None
    if not isinstance(inner, cst.For) or not isinstance(call, cst.Call):
        return None
    skipped = _ends_early(source, inner)
    if skipped is not None:
        return skipped
    counter = inner.target
    edits: tuple[Splice, ...] = ()
    if call_name(call) == "enumerate" and isinstance(inner.target, cst.Tuple) and len(inner.target.elements) == 2:
        return _of_a_list(source, call, inner.target, outer)
    if call_name(call) != "range" or len(call.args) != 1 or not isinstance(counter, cst.Name):
        return None
    name = counter.value
    if name == "_":
        name = free_name(source, "micro_step")
        edits = (replace(source, counter, name),)
    count = call.args[0].value
    code = source.code(count)
    number = count.evaluated_value if isinstance(count, cst.Integer) else None
    if isinstance(count, cst.BinaryOperation | cst.BooleanOperation | cst.IfExp) and not count.lpar:
        code = f"({code})"
    return LastMicroStep(f"{name} == {number - 1 if number is not None else f'{code} - 1'}", edits)


def _ends_early(source: Source, inner: cst.For) -> str | None:
    """Why the last turn may not come to its backward pass."""
    if any(isinstance(node, cst.Break | cst.Return) for node in source.walk(inner.body)):
        return "the loop may end early"
    if any(isinstance(node, cst.Continue) for node in source.walk(inner.body)):
        return "the loop may skip its last turn"
    return None


def _of_a_list(source: Source, call: cst.Call, target: cst.Tuple, outer: Loop) -> LastMicroStep | None:
    """`for i, batch in enumerate(micro_batches):` within a step."""
    counter, items = target.elements[0].value, call.args[0].value if len(call.args) == 1 else None
    whole = isinstance(items, cst.Name) and isinstance(counter, cst.Name) and counter.value != "_"
    if not whole or not isinstance(items, cst.Name) or not isinstance(counter, cst.Name):
        return None
    if not binds(source, outer.body, items.value):
        return None  # the loader itself: its end is that of an epoch
    return LastMicroStep(f"{counter.value} == len({items.value}) - 1")


def _asks_remainder(source: Source, test: cst.BaseExpression) -> bool:
    return any(isinstance(each.operator, cst.Modulo) for each in source.every(cst.BinaryOperation, test))


def _asked_before(source: Source, loop: Loop, branch: cst.If, steps: Sequence[cst.Call]) -> LastMicroStep | str:
    """`if (i + 1) % count == 0:`, whose names must be as they are at the head of the turn."""
    if any(not within(source, call, branch.body) for call in steps):
        return f"the optimizer also steps where `{source.code(branch.test)}` does not hold: ask for each of its steps"
    code = source.code(branch.test)
    asked = {node.value for node in source.every(cst.Name, branch.test)}
    changed = sorted(name for name in asked if binds(source, loop.body, name))
    if changed or (any(source.every(cst.Call, branch.test)) and not _only_len(source, branch.test)):
        what = f"`{changed[0]}` changes" if changed else "its condition calls something"
        return f"{what} within the turn: ask `{code}` before the forward pass"
    return LastMicroStep(code, always=False)


def _only_len(source: Source, test: cst.BaseExpression) -> bool:
    return all(call_name(call) == "len" for call in source.every(cst.Call, test))
