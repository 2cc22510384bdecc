"""A micro-step that a method makes, seen from the loop that calls it, where the method only adds to gradients."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace as replaced

import libcst as cst

from diagnose.source.dataflow.flow import loops_around, scope_of
from diagnose.source.training.training_loop import TrainingStep, is_optimizer_step
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_READS_GRADIENTS = re.compile(r"\.grad\b|clip_grad|unscale_|zero_grad|all_reduce")


def called_micro_step(step: TrainingStep) -> TrainingStep | None:
    """The step whose `backward` and `forward` are the call `self.micro_step(batch)` in the loop that updates.

    None where several loops call the method; where it may come back without a backward pass, as behind a test of the
    loss: gradients that the other ranks never get would meet the optimizer; and where it, or what it calls, reads or
    changes gradients, which are sums over the ranks without `no_sync`.
    """
    method, source = step.scope, step.source
    owner = source.inside(method, cst.ClassDef) if isinstance(method, cst.FunctionDef) else None
    if owner is None or not isinstance(method, cst.FunctionDef) or not (step.model or "").startswith("self."):
        return None
    namesakes = [each for each in source.every(cst.FunctionDef) if each.name.value == method.name.value]
    if len(namesakes) > 1 or step.loop is not None or not _only_adds(step, owner, method):
        return None
    found = []
    for call in source.every(cst.Call, owner):
        loops = loops_around(source, call) if source.code(call.func) == f"self.{method.name.value}" else []
        scope = scope_of(source, call)
        if loops and _steps(source, scope):
            clears = tuple(other for other in source.every(cst.Call, scope) if call_name(other) == "zero_grad")
            seen = replaced(step, scope=scope, loop=loops[0], backward=call, forward=(call,), batch=())
            clips = tuple(other for other in source.every(cst.Call, scope) if "clip_grad" in call_name(other))
            found.append(replaced(seen, optimizer_steps=_steps(source, scope), zero_grads=clears, clips=clips))
    if len(found) != 1 or not _always_runs(source, found[0].backward, found[0].turn):
        return None
    return found[0]


def own_methods(source: Source, owner: cst.ClassDef, calls: Iterable[cst.Call]) -> list[cst.FunctionDef]:
    """The methods of a class that some calls come to by `self`, directly and through each other."""
    known = {f"self.{each.name.value}": each for each in source.every(cst.FunctionDef, owner)}
    found: dict[str, cst.FunctionDef] = {}
    waiting = list(calls)
    while waiting:
        called = source.code(waiting.pop().func)
        if called in known and called not in found:
            found[called] = known[called]
            waiting += source.every(cst.Call, known[called])
    return list(found.values())


def _only_adds(step: TrainingStep, owner: cst.ClassDef, method: cst.FunctionDef) -> bool:
    """Whether each call of a method makes one backward pass, and nothing looks at gradients or updates by them."""
    source = step.source
    end = source.span(step.backward)[0]
    if any(source.span(each)[0] < end for each in source.every(cst.Return, method)):
        return False
    reached = [method, *own_methods(source, owner, source.every(cst.Call, method))]
    if any(_steps(source, each) or _READS_GRADIENTS.search(source.code(each.body)) for each in reached):
        return False
    return _always_runs(source, step.backward, method.body)


def _always_runs(source: Source, node: cst.CSTNode, body: cst.CSTNode) -> bool:
    """Whether nothing between a body and one of its nodes decides whether the node runs, or catches what it raises."""
    for above in source.ancestors(node):
        if above is body:
            return True
        if isinstance(above, cst.BaseCompoundStatement | cst.IfExp | cst.BooleanOperation) and not isinstance(
            above, cst.With
        ):
            return False
    return False


def _steps(source: Source, below: cst.CSTNode) -> tuple[cst.Call, ...]:
    return tuple(call for call in source.every(cst.Call, below) if is_optimizer_step(source, call))
