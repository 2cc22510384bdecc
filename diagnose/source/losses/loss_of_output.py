"""A training step that takes the cross entropy of what the model returns: how the model could compute it instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.model import Site
from diagnose.source.dataflow.flow import binds, scope_of
from diagnose.source.dataflow.reaching_definitions import names_in, statement_of, unchanged_until
from diagnose.source.losses.loss_forms import losses
from diagnose.source.losses.output_layer import OutputProduct, has_size_of, output_product
from diagnose.source.models.compilation import model_class
from diagnose.source.models.model_construction import Built, built_model
from diagnose.source.patterns.attention import Refused
from diagnose.source.patterns.cross_entropy import (
    CrossEntropy,
    Step,
    Unlaid,
    flattened,
    follow_names,
    unlaid,
    why_not_indices,
)
from diagnose.source.training.loss_function import (
    COMPUTES_AS_WRITTEN,
    LossFunction,
    loss_function,
    method_of,
    unused_after,
)
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.arguments import has_star
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_ORDERED = re.compile(
    r"\brandom\.|\b(?:rand\w*|bernoulli\w*|multinomial|\w*dropout\w*|normal_?|uniform_?|shuffle|permutation|\w*seed\w*)\("
    r"|\.(?:train|eval|step|load_state_dict|copy_)\("
)
"""What a model that is called after it would compute otherwise for."""


@dataclass(frozen=True)
class OutputForward:
    """The `forward` of the model, which ends in `return self.head(…)`."""

    path: str
    source: Source
    function: cst.FunctionDef
    returned: cst.Return
    product: OutputProduct
    made: cst.CSTNode | None
    """The statement that computes the logits, where that is not the `return`."""


@dataclass(frozen=True)
class LossOfStep:
    """`root`, an expression of a training step, is the cross entropy of the outcome of `call`."""

    path: str
    source: Source
    root: cst.BaseExpression
    call: cst.Call
    loss: CrossEntropy
    laid: Unlaid
    targets: cst.BaseExpression
    """The targets, as code of the training step."""
    flat: bool
    """Hidden states and these targets are to be made rows."""
    forward: OutputForward
    gone: tuple[cst.CSTNode, ...]
    """Statements of the step that nobody needs any more."""
    unused: tuple[cst.CSTNode, ...]
    """The function that computed the loss, and other names of it, in the step's file."""


class _NotOne(Exception):
    """The logits are needed, for this reason."""


def losses_of_steps(sources: Mapping[str, str], sites: Sequence[Site]) -> Iterator[tuple[str, LossOfStep | Refused]]:
    """Yield the losses of all training steps, each with its file; what looks like one is refused with the reason."""
    for step in training_steps(sources, sites):
        for root, taken in _losses(sources, step):
            if not any(taken.outcome is call for call in step.forward):
                continue
            try:
                yield step.path, _whole(sources, step, root, taken)
            except _NotOne as reason:
                yield step.path, Refused(root, str(reason))


@dataclass(frozen=True)
class _Taken:
    """A cross entropy of `logits` and `targets`, which are expressions of the step."""

    loss: CrossEntropy
    laid: Unlaid
    """How the loss lays out what the model returns: within the step where the loss is taken there, else within the
    function."""
    outcome: cst.BaseExpression
    targets: cst.BaseExpression
    flat_targets: bool
    steps: tuple[Step, ...]


def _losses(sources: Mapping[str, str], step: TrainingStep) -> Iterator[tuple[cst.BaseExpression, _Taken]]:
    """The cross entropies of a step, taken there or in a function of the program's own."""
    source = step.source
    for loss in losses(source, step.turn):
        laid = unlaid(loss)
        if laid is not None:
            targets, flat = _targets(loss, laid)
            yield loss.root, _Taken(loss, laid, laid.base, targets, flat, (*laid.steps, *loss.steps))
    for call in source.every(cst.Call, step.turn):
        # Only what is given the model's outcome is worth a look at what it is.
        if not any(_is_outcome(source, step, arg.value) for arg in call.args) or has_star(call):
            continue
        function = _function(sources, step, call)
        for loss in losses(function.source, function.node.body) if function is not None else ():
            assert function is not None  # it has a loss
            laid = unlaid(loss)
            if laid is None or not function.returns(loss, laid):
                continue
            targets, flat = _targets(loss, laid)
            outcome, wanted = (function.given(call, node) for node in (laid.base, targets))
            beside = [arg.value for arg in call.args if arg.value not in (outcome, wanted)]
            # What is asked to do something beside has to go on doing it.
            if any(any(source.every(cst.Call, value)) for value in beside):
                continue
            if outcome is not None and wanted is not None:
                steps: list[Step] = []
                yield call, _Taken(loss, laid, follow_names(source, outcome, steps), wanted, flat, tuple(steps))


def _function(sources: Mapping[str, str], step: TrainingStep, call: cst.Call) -> LossFunction | None:
    """The function of the program's own that is called; `model.loss(…)` is a method of the model's class."""
    if isinstance(call.func, cst.Attribute) and step.source.code(call.func.value) == step.model:
        built = built_model(step, sources)
        made = model_class(built, sources) if built is not None else None
        return method_of(sources, made.source, made.definition, call.func.attr.value) if made is not None else None
    return loss_function(sources, step.path, step.source, call.func)


def _is_outcome(source: Source, step: TrainingStep, node: cst.BaseExpression) -> bool:
    value = follow_names(source, node, [])
    return any(value is call for call in step.forward)


def _targets(loss: CrossEntropy, laid: Unlaid) -> tuple[cst.BaseExpression, bool]:
    """The targets as they were before they were made one axis with the logits, and whether they were."""
    if not laid.flat:
        return loss.targets, False
    targets, flat = flattened(loss.source, loss.targets, [])
    return targets, flat or loss.column


def _whole(sources: Mapping[str, str], step: TrainingStep, root: cst.BaseExpression, taken: _Taken) -> LossOfStep:
    source, call = step.source, taken.outcome
    assert isinstance(call, cst.Call)  # one of those of the model
    refused = taken.loss.refused or why_not_indices(source, taken.targets)
    if refused is not None:
        raise _NotOne(refused)
    if source.code(call.func) != step.model:
        raise _NotOne("another function calls the model, and would have to hand the targets on")
    if not taken.loss.portable:
        raise _NotOne("its options have names that the model's file does not know")
    if taken.flat_targets is not taken.laid.flat:
        raise _NotOne("logits and targets are not laid out alike")
    forward = _forward(sources, step)
    of = taken.loss.source
    if not has_size_of(of, taken.laid, forward.product, forward.source):
        raise _NotOne("rows of logits are not seen to be whole")
    if taken.laid.picks:
        raise _NotOne("a part of the logits is left out of it")
    made = [statement for statement, _ in taken.steps]
    gone = (*made, *_freed(source, root, taken.steps))
    at = statement_of(source, root)
    apart = any(source.parent(statement) is not source.parent(at) for statement in made)
    if apart or not unchanged_until(source, call, at):
        raise _NotOne("the model is called elsewhere than the loss is computed")
    if _ORDERED.search(source.text[source.span(statement_of(source, call))[1] : source.span(at)[0]]):
        raise _NotOne("between the call of the model and the loss numbers are drawn, or a model changes")
    return LossOfStep(
        step.path,
        source,
        root,
        call,
        taken.loss,
        taken.laid,
        taken.targets,
        taken.laid.flat,
        forward,
        gone,
        tuple(unused_after(sources, source, root)) if isinstance(root, cst.Call) else (),
    )


def _freed(source: Source, root: cst.BaseExpression, steps: Sequence[Step]) -> Iterator[cst.CSTNode]:
    """Statements that only let the logits go, `del logits`. Raises for whoever reads them besides."""
    names = {name for _, name in steps}
    without = {id(root), *(id(statement) for statement, _ in steps)}
    scope = scope_of(source, root)
    for name in names_in(source, scope):
        if name.value not in names or any(id(above) in without for above in source.ancestors(name)):
            continue
        function = scope_of(source, name)
        if function is not scope and isinstance(function, cst.FunctionDef) and _is_own(source, function, name.value):
            continue
        statement = source.statement(name)
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, cst.Del) and small.target is name and statement is not None:
            yield statement
            continue
        raise _NotOne(f"`{name.value}` is read for something else too, in line {source.lines_of(name)[0]}")


def _is_own(source: Source, function: cst.FunctionDef, name: str) -> bool:
    """Whether a name is a variable of that function."""
    given = any(param.name.value == name for param in source.every(cst.Param, function.params))
    return given or binds(source, function.body, name)


def _is_always(built: Built, name: str) -> bool:
    """Whether every value that the model is given is made of that class, or of the model itself."""
    values = [each.value for each in built.assigned if each.value is not None]
    while any(isinstance(value, cst.IfExp) for value in values):
        chosen = [[value.body, value.orelse] if isinstance(value, cst.IfExp) else [value] for value in values]
        values = [each for group in chosen for each in group]
    codes = [built.source.code(value) for value in values]
    own = re.compile(rf"\b{name}\s*[(\[.]|(?<![\w.]){re.escape(built.name)}\b")
    return all(code == "None" or own.search(code) for code in codes)


def _forward(sources: Mapping[str, str], step: TrainingStep) -> OutputForward:
    built = built_model(step, sources)
    made = model_class(built, sources) if built is not None else None
    if built is None or made is None:
        raise _NotOne("the class of the model is not seen")
    if not _is_always(built, made.name):
        raise _NotOne("the model may be of several classes")
    if any(call_name(call) == "Sequential" for each in built.assigned for call in built.source.every(cst.Call, each)):
        raise _NotOne(f"{made.name} is a part of a `Sequential`, which hands no targets on")
    source = made.source
    methods = [one for one in made.definition.body.body if isinstance(one, cst.FunctionDef)]
    function = next((one for one in methods if one.name.value == "forward"), None)
    returns = [one for one in source.every(cst.Return, function) if function is not None]
    last = function.body.body[-1] if function is not None and function.body.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    if function is None or len(returns) != 1 or returns[0] is not small or returns[0].value is None:
        raise _NotOne(f"{made.name} does not end in its output layer")
    steps: list[Step] = []
    product = output_product(source, follow_names(source, returns[0].value, steps))
    if product is None or product.layer is None or len(steps) > 1:
        raise _NotOne(f"{made.name} does not end in its output layer")
    if any(not COMPUTES_AS_WRITTEN.search(source.code(each.decorator)) for each in function.decorators):
        raise _NotOne(f"the forward of {made.name} is decorated")
    params = function.params
    if isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None or params.kwonly_params:
        raise _NotOne(f"the forward of {made.name} has parameters that are not named")
    if params.posonly_params or not params.params:
        raise _NotOne(f"the forward of {made.name} has parameters that are given by position alone")
    if any(name.value == "targets" for name in source.every(cst.Name, function)):
        raise _NotOne(f"the forward of {made.name} knows another `targets` already")
    return OutputForward(made.path, source, function, returns[0], product, steps[0][0] if steps else None)
