"""A training step that takes the cross entropy of what the model returns: how the model could compute it instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.model import Site
from diagnose.source.bindings import binding_of
from diagnose.source.edit import call_name
from diagnose.source.flow import binds, scope_of
from diagnose.source.formulas.attention import Refused
from diagnose.source.formulas.cross_entropy import (
    CrossEntropy,
    Step,
    Unlaid,
    behind,
    cross_entropies,
    flattened,
    unlaid,
)
from diagnose.source.formulas.output_layer import OutputProduct, has_size_of, output_product
from diagnose.source.imported import module_file
from diagnose.source.reaching import Bound, names_in, reaching, statement_of, unchanged_until
from diagnose.source.steps.built import built_model
from diagnose.source.steps.compiled import model_class
from diagnose.source.steps.training import TrainingStep, training_steps
from diagnose.source.syntax import Source, parse

__all__ = ["LossOfStep", "OutputForward", "losses_of_steps"]

_COMPUTES_AS_WRITTEN = re.compile(r"\b(?:autocast|custom_fwd|compile|disable|typechecked|jaxtyped|override)\b")
"""Decorators that hand any parameter on, and the outcome as it is."""


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
    root: cst.Call
    call: cst.Call
    loss: CrossEntropy
    laid: Unlaid
    targets: cst.BaseExpression
    """As the step has them."""
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
    """Those of all training steps, each with its file; what looks like one is refused with the reason."""
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
    """Of what the model returns, within the step where the loss is taken there, else within the function."""
    outcome: cst.BaseExpression
    targets: cst.BaseExpression
    flat_targets: bool
    steps: tuple[Step, ...]


def _losses(sources: Mapping[str, str], step: TrainingStep) -> Iterator[tuple[cst.Call, _Taken]]:
    """The cross entropies of a step, taken there or in a function of the program's own."""
    source = step.source
    for loss in cross_entropies(source, step.turn):
        laid = unlaid(source, loss.logits)
        if laid is not None:
            targets, flat = flattened(source, loss.targets, []) if laid.flat else (loss.targets, False)
            yield loss.root, _Taken(loss, laid, laid.base, targets, flat, laid.steps)
    for call in source.every(cst.Call, step.turn):
        function, of = _function(sources, step, call)
        if function is None or of is None or any(arg.star for arg in call.args):
            continue
        for loss in cross_entropies(of, function.body):
            laid = unlaid(of, loss.logits)
            if laid is None or not _is_all(of, function, loss, laid):
                continue
            targets, flat = flattened(of, loss.targets, []) if laid.flat else (loss.targets, False)
            outcome, wanted = (_given(of, function, call, node) for node in (laid.base, targets))
            if outcome is not None and wanted is not None:
                steps: list[Step] = []
                yield call, _Taken(loss, laid, behind(source, outcome, steps), wanted, flat, tuple(steps))


def _function(
    sources: Mapping[str, str], step: TrainingStep, call: cst.Call
) -> tuple[cst.FunctionDef | None, Source | None]:
    """The function of the program's own that is called, and the file it lies in."""
    name, source = call.func, step.source
    while isinstance(name, cst.Name):
        wanted = name.value
        there = [one for one in source.module.body if isinstance(one, cst.FunctionDef) and one.name.value == wanted]
        if there:
            return (there[0], source) if len(there) == 1 else (None, None)
        bound = binding_of(source, name)
        if bound is None:
            return None, None
        if bound.imported is not None:
            file = module_file(bound.imported[0], step.path, sources.keys())
            other = parse(sources[file]) if file is not None else None
            if other is None:
                return None, None
            wanted = bound.imported[1]
            there = [one for one in other.module.body if isinstance(one, cst.FunctionDef) and one.name.value == wanted]
            return (there[0], other) if len(there) == 1 else (None, None)
        if not isinstance(bound.value, cst.Name):
            return None, None
        name = bound.value
    return None, None


def _is_all(source: Source, function: cst.FunctionDef, loss: CrossEntropy, laid: Unlaid) -> bool:
    """Whether a function returns the loss and does nothing beside."""
    rows: list[Step] = []
    flattened(source, loss.targets, rows)
    known = {id(statement) for statement, _ in (*laid.steps, *rows)}
    body = function.body.body
    last = body[-1] if body else None
    returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    value = returned.value if isinstance(returned, cst.Return) else None
    if isinstance(value, cst.Name):
        seen = reaching(source, statement_of(source, value), value.value)
        known.add(id(seen.statement))
        value = seen.value if isinstance(seen.value, cst.BaseExpression) else None
    return value is loss.root and all(
        id(one) in known or _is_text(one) or _is_shape(source, one, laid) for one in body[:-1]
    )


def _is_text(statement: cst.CSTNode) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def _is_shape(source: Source, statement: cst.CSTNode, laid: Unlaid) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    value = source.code(small.value) if isinstance(small, cst.Assign) else ""
    base = source.code(laid.base)
    return value == f"{base}.shape" or value.startswith(f"{base}.size(")


def _given(
    source: Source, function: cst.FunctionDef, call: cst.Call, node: cst.BaseExpression
) -> cst.BaseExpression | None:
    """What a call passes for the parameter that an expression is."""
    names = [each.name.value for each in function.params.params]
    if not isinstance(node, cst.Name) or node.value not in names:
        return None
    if reaching(source, statement_of(source, node), node.value).bound not in {Bound.PARAMETER, Bound.ASSIGNED}:
        return None
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == node.value:
            return arg.value
    positional = [arg.value for arg in call.args if arg.keyword is None]
    at = names.index(node.value)
    return positional[at] if at < len(positional) else None


def _whole(sources: Mapping[str, str], step: TrainingStep, root: cst.Call, taken: _Taken) -> LossOfStep:
    source, call = step.source, taken.outcome
    assert isinstance(call, cst.Call)  # one of those of the model
    if taken.loss.refused is not None:
        raise _NotOne(taken.loss.refused)
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
        tuple(_unused(sources, source, root)),
    )


def _unused(sources: Mapping[str, str], source: Source, root: cst.Call) -> Iterator[cst.CSTNode]:
    """What is called there, where nothing else mentions it: a function of this file, or a variable that is one."""
    name = root.func
    while isinstance(name, cst.Name):
        wanted = name.value
        if sum(len(re.findall(rf"\b{wanted}\b", text)) for text in sources.values()) != 2:
            return  # there, and where it is made
        for function in source.module.body:
            if isinstance(function, cst.FunctionDef) and function.name.value == wanted:
                yield function
                return
        bound = binding_of(source, name)
        if bound is None or not isinstance(bound.value, cst.Name):
            return
        statement = source.statement(bound.value)
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) > 1:
            return
        yield statement
        name = bound.value


def _freed(source: Source, root: cst.Call, steps: Sequence[Step]) -> Iterator[cst.CSTNode]:
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


def _forward(sources: Mapping[str, str], step: TrainingStep) -> OutputForward:
    built = built_model(step, sources)
    made = model_class(built, sources) if built is not None else None
    if built is None or made is None:
        raise _NotOne("the class of the model is not seen")
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
    product = output_product(source, behind(source, returns[0].value, steps))
    if product is None or product.layer is None or len(steps) > 1:
        raise _NotOne(f"{made.name} does not end in its output layer")
    if any(not _COMPUTES_AS_WRITTEN.search(source.code(each.decorator)) for each in function.decorators):
        raise _NotOne(f"the forward of {made.name} is decorated")
    params = function.params
    if isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None or params.kwonly_params:
        raise _NotOne(f"the forward of {made.name} has parameters that are not named")
    if params.posonly_params or not params.params:
        raise _NotOne(f"the forward of {made.name} has parameters that are given by position alone")
    if any(name.value == "targets" for name in source.every(cst.Name, function)):
        raise _NotOne(f"the forward of {made.name} knows another `targets` already")
    return OutputForward(made.path, source, function, returns[0], product, steps[0][0] if steps else None)
