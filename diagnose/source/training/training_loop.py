"""The parts of a training step in the source: its loop, the call of the model, the loss, the optimizer's step.

Found from the call of `backward`: what it is called on is the loss; what the loss is computed from leads to the call of
the model; the loop around it goes through the steps. Lines that a run recorded (`forward`) decide where the text alone
could mean several calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import libcst as cst

from diagnose.model import Site
from diagnose.source.dataflow.flow import Loop, Scope, loops_around, scope_of, within
from diagnose.source.dataflow.iteration import NUMBERS, PROGRESS_BARS, numbered, unwrapped
from diagnose.source.training.library_passes import library_passes
from diagnose.source.training.model_calls import model_calls
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.definitions import called_as
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with, parse_all, per_program
from diagnose.source.tree.syntax import Source

_Ran: TypeAlias = frozenset[tuple[str, int]]
"""The files and lines on which the run called a model."""
_BACKWARD = frozenset({"backward", "manual_backward"})
_WRAPS_LOSS = frozenset({"scale", "scale_loss"})
_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
_NUMBER = re.compile(r"\.(?:item|detach|cpu|numpy|tolist)\(|^float\(")
"""What has no gradients any more."""
_NO_OPTIMIZER = re.compile(r"sched|prof|warmup|timer|meter|logger|bar\b|ema|tracker", re.IGNORECASE)


@dataclass(frozen=True)
class TrainingStep:
    """One place in the source that computes gradients, with what belongs to it."""

    path: str
    source: Source = field(repr=False)
    scope: Scope = field(repr=False)
    """The function that holds the step, or the module."""
    loop: Loop | None = field(repr=False)
    """The innermost loop around it in its scope; None where a caller loops."""
    backward: cst.Call = field(repr=False)
    """The call of `backward`, or of a function of the program's that is given the loss and calls it."""
    loss: str | None
    """The variable that the gradients are of, or `self.loss`."""
    forward: tuple[cst.Call, ...] = field(repr=False)
    """Calls of the model, or of a function that takes it or calls it, whose values reach the loss, as they stand."""
    model: str | None
    """The code of what is called there: `model`, `self.model`."""
    optimizer_steps: tuple[cst.Call, ...] = field(repr=False)
    zero_grads: tuple[cst.Call, ...] = field(repr=False)
    clips: tuple[cst.Call, ...] = field(repr=False)
    batch: tuple[str, ...]
    """Names that get a new batch in each turn."""

    @property
    def hands_loss_on(self) -> bool:
        """Whether a function of the program's makes the backward pass, and may do more: clip gradients, or step."""
        return _method(self.backward) not in _BACKWARD

    @property
    def turn(self) -> cst.BaseSuite | cst.Module:
        """The statements of one step: the body of the loop, or of the scope."""
        return self.loop.body if self.loop is not None else _body(self.scope)


def training_steps(sources: Mapping[str, str], sites: Sequence[Site] = ()) -> tuple[TrainingStep, ...]:
    """Every training step of the sources, in their order; none where a library holds the loop.

    Those whose backward pass a library makes count where the program makes none itself.
    """
    return _steps(sources, frozenset((site.file, site.line) for site in sites if site.kind == "forward"))


def has_several_passes(steps: Sequence[TrainingStep]) -> bool:
    """Whether several backward passes may follow each other: those that no `if` chooses between."""
    return any(not _chosen_between(one, other) for at, one in enumerate(steps) for other in steps[:at])


def _chosen_between(one: TrainingStep, other: TrainingStep) -> bool:
    source, call = one.source, one.backward
    if other.source is not source:
        return False
    choices = (each for each in source.ancestors(call) if isinstance(each, cst.If))
    both = (each for each in choices if within(source, other.backward, each))
    return any(within(source, call, each.body) is not within(source, other.backward, each.body) for each in both)


@per_program
def _steps(sources: Mapping[str, str], ran: _Ran) -> tuple[TrainingStep, ...]:
    found: list[TrainingStep] = []
    for path, source in files_with(sources, "backward"):
        lines = _lines_run(path, ran)
        for call in source.calls_named(*_BACKWARD):
            if _is_backward(source, call):
                step = _step(path, source, call, lines)
                found += [step] if step.forward else _of_callers(step, sources, ran) or [step]
    if not found:
        found = [
            _step(path, source, call, _lines_run(path, ran), loss)
            for path, source in parse_all(sources).items()
            for call, loss in library_passes(source)
        ]
    found = list({id(step.backward): step for step in found}.values())
    files = {path for path, _ in ran}
    return tuple([step for step in found if step.path in files] or found)  # a timer of modules called no model


def _lines_run(path: str, ran: _Ran) -> set[int]:
    """The lines of a file on which the run called a model."""
    return {line for file, line in ran if file == path}


def _of_callers(step: TrainingStep, sources: Mapping[str, str], ran: _Ran) -> list[TrainingStep]:
    """The steps of those who hand their loss to a function that calls `backward` on it: `update(loss, optimizer)`."""
    helper = step.scope
    given = helper.params.params if isinstance(helper, cst.FunctionDef) and step.loop is None else ()
    parameters = [param.name.value for param in given]
    if not isinstance(helper, cst.FunctionDef) or step.loss not in parameters:
        return []
    position = parameters.index(step.loss) - (parameters[0] in {"self", "cls"})
    if position < 0:
        return []  # the loss is the object that has the method
    found: list[TrainingStep] = []
    parsed = parse_all(sources)
    names = called_as(step.source, helper, parsed.values())
    for path, source in parsed.items():
        lines = _lines_run(path, ran)
        for call in source.calls_named(*names):
            loss = argument(call, step.loss, position)
            if loss is not None and _may_be(source, call, helper) and not _NUMBER.search(source.code(loss.value)):
                found.append(_step(path, source, call, lines, loss.value))
    return [each for each in found if each.forward]


def _may_be(source: Source, call: cst.Call, helper: cst.FunctionDef) -> bool:
    """Whether a call of that name is of the function, not of a method of the same name: `meter.update(…)`."""
    if helper.name.value == "__call__":
        return True  # of an instance, which goes by many names
    is_method = [param.name.value for param in helper.params.params][:1] in (["self"], ["cls"])
    if is_method or not isinstance(call.func, cst.Attribute):
        return is_method is isinstance(call.func, cst.Attribute)
    module = source.code(call.func.value)
    bound = (alias.asname.name if alias.asname is not None else alias.name for alias in source.every(cst.ImportAlias))
    return any(source.code(name) == module for name in bound)


def _is_backward(source: Source, call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _BACKWARD:
        return False
    # A function's own derivative, and the gradients that a custom operator computes, are no steps.
    around = source.inside(call, cst.FunctionDef)
    if around is None or around.name.value not in {"backward", "setup_context"}:
        return True
    given = [param.name.value for param in around.params.params]
    custom = bool(around.decorators) or given[:1] in (["ctx"], ["context"])
    return around.name.value == "backward" and not custom


def _step(
    path: str, source: Source, backward: cst.Call, lines: set[int], given: cst.BaseExpression | None = None
) -> TrainingStep:
    """The step around a backward pass, or around the call of a function that makes it for the loss that it is given."""
    scope = scope_of(source, backward)
    loops = loops_around(source, backward)
    loop = loops[0] if loops else None
    turn = loop.body if loop is not None else _body(scope)
    loss = given if given is not None else _loss(backward)
    forward, name = _models(source, turn, loss, backward, lines)
    whole: cst.CSTNode = loops[-1] if loops else scope
    calls = list(source.every(cst.Call, whole))
    return TrainingStep(
        path,
        source,
        scope,
        loop,
        backward,
        _variable(source, loss),
        tuple(forward),
        name,
        tuple(call for call in calls if is_optimizer_step(source, call)),
        tuple(call for call in calls if _method(call) == "zero_grad"),
        tuple(call for call in calls if _method(call) in _CLIPS or _plain(call) in _CLIPS),
        _batch(source, loop, turn, forward),
    )


def _models(
    source: Source, turn: cst.CSTNode, loss: cst.BaseExpression, backward: cst.Call, lines: set[int]
) -> tuple[list[cst.Call], str | None]:
    """The calls of the model that the loss is computed from, and what gets gradients there.

    What an earlier backward pass of the turn was made for, and this one is given detached, is not called for this one.
    """
    forward, name = model_calls(source, _reaching(source, turn, loss, backward), lines)
    learning, its = model_calls(source, _reaching(source, turn, loss, backward, detached=False), lines)
    if not learning or learning == forward:
        return forward, name
    first, end = source.span(forward[0])[0], source.span(backward)[0]
    passes = (source.span(call)[0] for call in source.every(cst.Call, turn) if _method(call) in _BACKWARD)
    return learning if any(first < at < end for at in passes) else forward, its


def _body(scope: Scope) -> cst.BaseSuite | cst.Module:
    return scope.body if isinstance(scope, cst.FunctionDef) else scope


def _loss(backward: cst.Call) -> cst.BaseExpression:
    """Return what the gradients are of: `loss` in `scaler.scale(loss / 4).backward()` and in
    `accelerator.backward(loss)`."""
    assert isinstance(backward.func, cst.Attribute)
    positional = [arg.value for arg in backward.args if arg.keyword is None and not arg.star]
    value = positional[0] if positional and not isinstance(positional[0], cst.Integer) else backward.func.value
    while True:
        if isinstance(value, cst.Call) and _method(value) in _WRAPS_LOSS and value.args:
            value = value.args[0].value
        elif isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and not value.args:
            value = value.func.value
        elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide | cst.Multiply):
            value = value.right if isinstance(value.left, cst.Integer | cst.Float) else value.left
        else:
            return value


def _variable(source: Source, loss: cst.BaseExpression) -> str | None:
    code = source.code(loss)
    return code if isinstance(loss, cst.Name) or re.fullmatch(r"self\.\w+", code) else None


def _reaching(
    source: Source, turn: cst.CSTNode, loss: cst.BaseExpression, backward: cst.Call, *, detached: bool = True
) -> list[cst.BaseExpression]:
    """The expressions of one turn that the loss is computed from, in the order of the text.

    `detached`: also those whose gradients `detach()` cuts off.
    """
    end = source.span(backward)[0]
    wanted = _names_in(source, loss)
    found: list[cst.BaseExpression] = [loss]
    for targets, value, node in reversed(list(_assignments(source, turn))):
        names = {name for target in targets for name in _names_in(source, target)}
        if source.span(node)[0] >= end or not names & wanted:
            continue
        if isinstance(node, cst.Assign | cst.AnnAssign) and _always_runs(source, node, turn):
            wanted -= names  # what the name held before does not reach the loss
        found.append(value)
        wanted |= _names_in(source, value, detached=detached)
    return found[::-1]


def _always_runs(source: Source, node: cst.CSTNode, turn: cst.CSTNode) -> bool:
    for above in source.ancestors(node):
        if above is turn:
            return True
        if isinstance(above, cst.If | cst.For | cst.While | cst.Try):
            return False
    return True


def _assignments(
    source: Source, below: cst.CSTNode
) -> Iterator[tuple[list[cst.BaseExpression], cst.BaseExpression, cst.CSTNode]]:
    for node in source.walk(below, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr):
        if isinstance(node, cst.Assign):
            yield [target.target for target in node.targets], node.value, node
        elif isinstance(node, cst.AnnAssign | cst.AugAssign | cst.NamedExpr) and node.value is not None:
            yield [node.target], node.value, node


def _names_in(source: Source, node: cst.CSTNode, *, detached: bool = True) -> set[str]:
    """Variables in an expression; `self.x` counts by its whole name. `detached`: also those behind a `detach()`."""
    cut = [] if detached else [call for call in source.every(cst.Call, node) if _method(call) == "detach"]
    names: set[str] = set()
    for each in source.every(cst.Name, node):
        if any(within(source, each, call) for call in cut):
            continue
        parent = source.parent(each)
        if isinstance(parent, cst.Attribute) and parent.attr is each:
            if is_of_self(parent):
                names.add(f"self.{each.value}")
        elif each.value != "self" and not (isinstance(parent, cst.Arg) and parent.keyword is each):
            names.add(each.value)
    return names


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _plain(call: cst.Call) -> str:
    return call.func.value if isinstance(call.func, cst.Name) else ""


def is_optimizer_step(source: Source, call: cst.Call) -> bool:
    if _method(call) != "step":
        return False
    assert isinstance(call.func, cst.Attribute)
    return _NO_OPTIMIZER.search(source.code(call.func.value)) is None


def _batch(source: Source, loop: Loop | None, turn: cst.CSTNode, forward: Sequence[cst.Call]) -> tuple[str, ...]:
    """The names that hold the batch: the loop's own, else what the model is given and each turn makes anew."""
    if isinstance(loop, cst.For) and not _counts(loop.iter):
        pair = numbered(loop)
        target = pair.value if pair is not None else loop.target
        return tuple(each.value for each in source.every(cst.Name, target) if each.value != "_")
    given = {name for call in forward for arg in call.args for name in _names_in(source, arg.value)}
    made: dict[str, None] = {}
    results: set[str] = set()
    for targets, _, node in _assignments(source, turn):
        names = _in_order(source, targets)
        if any(within(source, call, node) for call in forward):
            results.update(names)  # a hidden state goes from turn to turn and is no batch
        else:
            made |= dict.fromkeys(names)
    return tuple(name for name in made if name in given - results)


def _in_order(source: Source, targets: Sequence[cst.BaseExpression]) -> list[str]:
    return [each.value for target in targets for each in source.every(cst.Name, target)]


def _counts(iterated: cst.BaseExpression) -> bool:
    """Whether a loop runs over numbers, not batches."""
    inner = unwrapped(iterated, PROGRESS_BARS)
    return isinstance(inner, cst.Call) and call_name(inner) in NUMBERS
