"""The condition under which a micro-step is the last one before the optimizer's step, as code at the head of a turn."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from diagnose.source.batches.micro_step_methods import own_methods
from diagnose.source.dataflow.flow import Loop, bindings, binds, loops_around, within
from diagnose.source.dataflow.iteration import Numbered, numbered
from diagnose.source.dataflow.reaching_definitions import Bound, reaching
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name, free_name, insert_above, replace
from diagnose.source.tree.syntax import Source, Splice

_PARTS = frozenset({"chunk", "split", "tensor_split", "unbind"})
"""Calls that cut a batch into a tuple of tensors."""
_READS_GRADIENTS = re.compile(r"\.grad\b(?!\s*(?:\(|(?:=|is(?:\s+not)?)\s*None\b))|\bclip_grad_")
"""What does so: neither letting go of them, nor asking whether there are any, nor `torch.autograd.grad(…)`."""


@dataclass(frozen=True)
class LastMicroStep:
    """The test that tells when gradients are complete."""

    condition: str
    """True in the last micro-step, wherever in a turn it is asked."""
    edits: tuple[Splice, ...] = ()
    """What gives a loop's variable a name first."""
    always: bool = True
    """Whether the last micro-step always comes; False where a loader may end between two steps of the optimizer."""


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
    found: LastMicroStep | str | None = None
    if len(around) > 1 and len(outside) == len(step.optimizer_steps):
        found = _counted(source, inner, around[1])
    else:
        branch = _deciding(step, inner)
        found = _asked_before(step, inner, branch) if branch is not None else None
    if isinstance(found, LastMicroStep) and not _makes_a_pass(source, step.backward, inner):
        return "a turn may go without its backward pass"
    if isinstance(found, LastMicroStep) and _reads_gradients(step, inner):
        return "the program looks at gradients in every turn, or clips them, as sums over the ranks"
    return found


def _reads_gradients(step: TrainingStep, loop: Loop) -> bool:
    """Whether a turn reads or clips gradients, itself or in a function of the file, beside the optimizer's step."""
    source = step.source
    branches = [each for each in source.every(cst.If, loop.body) if _holds(source, each.body, step.optimizer_steps)]
    apart = [branch.body for branch in branches if not within(source, step.backward, branch.body)]
    readers = {
        function.name.value
        for function in source.every(cst.FunctionDef)
        if _READS_GRADIENTS.search(source.code(function)) and not within(source, loop, function)
    }
    called = (call for call in source.every(cst.Call, loop.body) if call_name(call) in readers)
    begins = [match.start() for match in _READS_GRADIENTS.finditer(source.text, *source.span(loop.body))]
    begins += [source.span(call)[0] for call in called]
    spans = [source.span(body) for body in apart]
    return any(not any(first <= begin < last for first, last in spans) for begin in begins)


def _holds(source: Source, node: cst.CSTNode, calls: tuple[cst.Call, ...]) -> bool:
    return any(within(source, call, node) for call in calls)


def _deciding(step: TrainingStep, loop: Loop) -> cst.If | None:
    """The `if (i + 1) % count == 0:` within a loop around the optimizer's step."""
    source = step.source
    for call in step.optimizer_steps:
        for branch in source.ancestors(call):
            if branch is loop:
                break
            if isinstance(branch, cst.If) and _asks_remainder(source, _meant(source, branch, loop)):
                return branch
    return None


def _meant(source: Source, branch: cst.If, loop: Loop) -> cst.CSTNode:
    """Return what a condition stands for: of a name that one statement of the turn itself gives a value, that value."""
    flag = _flag(source, branch, loop)
    return flag if flag is not None else branch.test


def _flag(source: Source, branch: cst.If, loop: Loop) -> cst.CSTNode | None:
    """The statement of every turn that gives a condition the value it has where it is asked; None of others."""
    if not isinstance(branch.test, cst.Name):
        return None
    found = reaching(source, branch, branch.test.value)
    if found.bound is not Bound.ASSIGNED or found.statement is None:
        return None
    return found.statement if source.parent(found.statement) is loop.body else None


def _counted(source: Source, inner: Loop, outer: Loop) -> LastMicroStep | str | None:
    """`for micro_step in range(count):` within a step."""
    call = inner.iter if isinstance(inner, cst.For) else None
    if not isinstance(inner, cst.For) or inner.asynchronous is not None:
        return None
    if not (isinstance(call, cst.Call) or _is_list(source, inner.iter, outer)):
        return None
    skipped = _ends_early(source, inner)
    if skipped is not None:
        return skipped
    if not isinstance(call, cst.Call) or _is_cut(source, call, outer):
        return _numbered(source, inner)
    counter = inner.target
    edits: tuple[Splice, ...] = ()
    pair = numbered(inner)
    if pair is not None:
        return _of_a_list(source, pair, outer)
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


def _of_a_list(source: Source, pair: Numbered, outer: Loop) -> LastMicroStep | None:
    """`for i, batch in enumerate(micro_batches):` within a step."""
    counter, items = pair.number, pair.values
    if not isinstance(items, cst.Name) or not isinstance(counter, cst.Name):
        return None
    if not pair.from_zero or counter.value == "_" or not binds(source, outer.body, items.value):
        return None  # the loader itself: its end is that of an epoch
    return LastMicroStep(f"{counter.value} == len({items.value}) - 1")


def _numbered(source: Source, inner: cst.For) -> LastMicroStep:
    """`for part in batch.chunk(4):` within a step, whose parts get a number; what makes them is called once."""
    counter = free_name(source, "micro_step")
    edits: list[Splice] = []
    parts = source.code(inner.iter)
    if not isinstance(inner.iter, cst.Name):
        made, parts = parts, free_name(source, "micro_batches")
        made = f"list({made})" if isinstance(inner.iter, cst.Call) and call_name(inner.iter) == "zip" else made
        edits.append(insert_above(source, inner, [f"{parts} = {made}"]))
    target = source.text[slice(*source.wide_span(inner.target))]
    inside = f"({target})" if isinstance(inner.target, cst.Tuple) and not inner.target.lpar else target
    edits.append(Splice(*source.wide_span(inner.target), f"{counter}, {inside}"))
    edits.append(Splice(*source.wide_span(inner.iter), f"enumerate({parts})"))
    return LastMicroStep(f"{counter} == len({parts}) - 1", tuple(edits))


def _is_cut(source: Source, node: cst.BaseExpression, outer: Loop) -> bool:
    """Whether an expression gives the parts of a batch: `batch.chunk(4)`, or several of those side by side."""
    if not isinstance(node, cst.Call):
        return False
    if call_name(node) == "zip" and node.args and not any(arg.star or arg.keyword for arg in node.args):
        return all(_is_cut(source, arg.value, outer) or _is_list(source, arg.value, outer) for arg in node.args)
    return call_name(node) in _PARTS and isinstance(node.func, cst.Attribute)


def _is_list(source: Source, node: cst.BaseExpression, outer: Loop) -> bool:
    """Whether a name is given a list or a tuple within a step, each time it is given anything there."""
    if not isinstance(node, cst.Name):
        return False
    targets = [source.parent(name) for name in bindings(source, outer, node.value)]
    given = [source.parent(target) for target in targets if isinstance(target, cst.AssignTarget)]
    return (
        bool(targets)
        and len(given) == len(targets)
        and all(isinstance(assign, cst.Assign) and _has_length(source, assign.value, outer) for assign in given)
    )


def _has_length(source: Source, value: cst.BaseExpression, outer: Loop) -> bool:
    listed = isinstance(value, cst.Call) and call_name(value) in {"list", "tuple"}
    cut = isinstance(value, cst.Call) and call_name(value) != "zip" and _is_cut(source, value, outer)
    return listed or cut or isinstance(value, cst.ListComp | cst.List | cst.Tuple)


def _asks_remainder(source: Source, test: cst.CSTNode) -> bool:
    return any(isinstance(each.operator, cst.Modulo) for each in source.every(cst.BinaryOperation, test))


def _makes_a_pass(source: Source, backward: cst.Call, loop: Loop) -> bool:
    """Whether no test decides on a backward pass: of two branches that both make one, either does."""
    for above in source.ancestors(backward):
        if above is loop:
            return True
        if isinstance(above, cst.If):
            other = above.orelse.body if isinstance(above.orelse, cst.Else) else None
            if other is None or "backward(" not in source.code(other) or "backward(" not in source.code(above.body):
                return False
    return False


def _asked_before(step: TrainingStep, loop: Loop, branch: cst.If) -> LastMicroStep | str:
    """`if (i + 1) % count == 0:`, whose names must be as they are at the head of the turn."""
    source = step.source
    if any(not within(source, call, branch.body) for call in step.optimizer_steps):
        return f"the optimizer also steps where `{source.code(branch.test)}` does not hold: ask for each of its steps"
    if any(within(source, clip, loop) and not within(source, clip, branch) for clip in step.clips):
        return "gradients are clipped in every turn, as sums over the ranks: clip right before the optimizer's step"
    code = source.code(branch.test)
    flag = _flag(source, branch, loop)
    if flag is not None:
        begin = min(source.span(call)[0] for call in (*step.forward, step.backward))
        known = source.span(flag)[1] < begin
        return (
            LastMicroStep(code, always=False) if known else f"`{code}` is known after the forward pass: set it before"
        )
    asked = {node.value for node in source.every(cst.Name, branch.test)}
    changed = sorted(name for name in asked if binds(source, loop.body, name)) or _set_meanwhile(step, loop, branch)
    if changed or (any(source.every(cst.Call, branch.test)) and not _only_len(source, branch.test)):
        what = f"`{changed[0]}` changes" if changed else "its condition calls something"
        return f"{what} within the turn: ask `{code}` before the forward pass"
    return LastMicroStep(code, always=False)


def _set_meanwhile(step: TrainingStep, loop: Loop, branch: cst.If) -> list[str]:
    """Attributes of a condition that get a value between the forward pass and the condition, also by methods."""
    source = step.source
    begin = min(source.span(call)[0] for call in (*step.forward, step.backward))
    end = source.span(branch)[0]
    owner = source.inside(loop, cst.ClassDef)
    between = [call for call in source.every(cst.Call, loop.body) if begin <= source.span(call)[0] < end]
    methods = own_methods(source, owner, between) if owner is not None else []
    asked = {source.code(each) for each in source.every(cst.Attribute, branch.test)}
    nodes = [node for node in source.walk(loop.body) if begin <= source.span(node)[0] < end]
    nodes += [node for method in methods for node in source.walk(method)]
    targets = (node.target for node in nodes if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign))
    return sorted(code for code in map(source.code, targets) if code in asked)


def _only_len(source: Source, test: cst.BaseExpression) -> bool:
    return all(call_name(call) == "len" for call in source.every(cst.Call, test))
