"""The statements of a training step that compute the loss: from the first call of the model to the loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import binds, within
from diagnose.source.rewrite.with_blocks import block_of
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_ENDS_FORWARD = frozenset({"backward", "step", "zero_grad"})
_CRITERION = re.compile(r"(^|[._])(criterion|loss_fn|loss_func|loss_function|functional|F|nn)\b")
_NO_VALUE = frozenset(
    {"item", "detach", "to", "cuda", "next", "float", "zeros", "tensor", "sum", "mean", "stack", "cat"}
)
"""What makes no loss, or puts one together of losses that came from elsewhere."""


@dataclass(frozen=True)
class ForwardRegion:
    """Statements in a row, of one block, before the statement with the backward pass."""

    statements: tuple[cst.CSTNode, ...]
    """Empty where the loss is an expression in the statement of the backward pass itself."""
    backward: cst.CSTNode
    """The statement that runs the backward pass."""
    expression: cst.BaseExpression | None = None
    """The loss as an expression, where it has no statement of its own."""


def forward_region(step: TrainingStep) -> ForwardRegion | str:
    """Return where forward pass and loss stand, or why they are not statements in a row."""
    source = step.source
    backward = source.statement(step.backward)
    if not isinstance(backward, cst.SimpleStatementLine) or len(backward.body) != 1:
        return "the backward pass shares its line with other statements"
    inner = [call for call in step.forward if within(source, call, backward)]
    if inner:
        return _in_backward(source, step, backward, inner)
    first = min((_begin(source, call) for call in step.forward), key=lambda node: source.span(node)[0], default=None)
    for around in (backward, *source.ancestors(backward)):
        block = block_of(source, around)
        if block is None or around not in block:
            if isinstance(around, cst.FunctionDef | cst.For | cst.While):
                break
            continue
        before = list(block[: block.index(around)])
        region = _region(source, step, before, first)
        if region:
            reason = _why_not(source, region)
            return reason or ForwardRegion(tuple(region), around)
    return "the calls of the model that lead to its loss were not found before it"


def _begin(source: Source, call: cst.Call) -> cst.CSTNode:
    return source.statement(call) or call


def _region(
    source: Source, step: TrainingStep, before: Sequence[cst.CSTNode], first: cst.CSTNode | None
) -> list[cst.CSTNode]:
    """The part of a block, up to the backward pass, that begins with the model and ends with the loss."""
    last = max((at for at, each in enumerate(before) if step.loss and _binds(source, each, step.loss)), default=None)
    if last is None:
        return []
    if first is None:
        # No call of a model in sight: whatever function gives the loss has it inside.
        value = _value(before[last])
        known = isinstance(value, cst.Call) and call_name(value) not in _NO_VALUE
        return [before[last]] if known and not _is_criterion(source, value) else []
    start = next((at for at, each in enumerate(before) if each is first or within(source, first, each)), None)
    return list(before[start : last + 1]) if start is not None and start <= last else []


def _binds(source: Source, statement: cst.CSTNode, name: str) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    if "." not in name:
        return binds(source, statement, name)
    targets: list[cst.BaseExpression] = [each.target for each in source.every(cst.AssignTarget, statement)]
    targets += [each.value for target in targets if isinstance(target, cst.Tuple) for each in target.elements]
    return any(source.code(target) == name for target in targets)


def _value(statement: cst.CSTNode) -> cst.BaseExpression | None:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return small.value if isinstance(small, cst.Assign | cst.AnnAssign) else None


def _is_criterion(source: Source, value: cst.BaseExpression | None) -> bool:
    return isinstance(value, cst.Call) and _CRITERION.search(source.code(value.func)) is not None


def _why_not(source: Source, region: Sequence[cst.CSTNode]) -> str | None:
    for statement in region:
        for call in source.every(cst.Call, statement):
            ends = isinstance(call.func, cst.Attribute) and call.func.attr.value in _ENDS_FORWARD - {"zero_grad"}
            if ends or source.is_called(call.func, "torch.autograd.grad"):
                return "a backward pass or an optimizer's step lies between the model and the loss"
    return None


def _in_backward(
    source: Source, step: TrainingStep, backward: cst.SimpleStatementLine, inner: Sequence[cst.Call]
) -> ForwardRegion | str:
    """`criterion(model(x), y).backward()`: the loss is what the backward pass is called on."""
    func = step.backward.func
    whole = isinstance(backward.body[0], cst.Expr) and backward.body[0].value is step.backward
    if not whole or not isinstance(func, cst.Attribute) or len(inner) != len(step.forward):
        return "the call of the model is a part of a statement that cannot be taken apart"
    loss = func.value
    if isinstance(loss, cst.Call) and call_name(loss) in {"scale", "scale_loss"}:
        return "the loss is scaled in the statement that computes it"
    if block_of(source, backward) is None or not within(source, inner[0], loss):
        return "the call of the model is a part of a statement that cannot be taken apart"
    return ForwardRegion((), backward, loss)
