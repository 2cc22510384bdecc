"""Whether every parameter of the optimizer is seen to get a gradient in every step, so that none is ever left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import binds, within
from diagnose.source.optimizers.loss_choices import loss_choices
from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.given_arguments import is_given_alike, is_never_given
from diagnose.source.tree.attributes import building_methods, names_set_later
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, string
from diagnose.source.tree.syntax import Source

_CUTS = frozenset(
    {"detach", "no_grad", "inference_mode", "stop_gradient", "requires_grad_", "requires_grad", "set_grad_enabled"}
)
_HOOKS = frozenset({"register_hook", "register_full_backward_hook", "register_post_accumulate_grad_hook"})
_KNOWN = frozenset({"parameters", "named_parameters", "train", "eval", "zero_grad", "state_dict", "to", "modules"})
_KEEPS_MOVING = frozenset({"momentum", "weight_decay"})
"""Options of a group by which SGD moves a parameter whose gradient is zero."""
_RATE_ONLY = frozenset({"params", "lr", "foreach", "fused", "maximize"})


def idle_gradients(sources: Mapping[str, str], *, also_sgd: bool = False) -> str | None:
    """Why a parameter may be without a new gradient in some step; None where that is seen to be the same to it.

    It is the same where one model of the program's own or of `torch.nn` is called in every step, on one way through it;
    and to plain SGD, which a gradient of zeros moves nowhere, unless `also_sgd` asks for gradients there, too.
    """
    code = EveryStep(sources)
    parsed = code.sources
    built = [(path, source, call) for path, source in parsed.items() for call in _optimizers(source)]
    if not built:
        return "no optimizer of torch's is built in the program's files"
    plain = all(_is_plain_sgd(source, call) for _, source, call in built)
    if not also_sgd and plain and not any(map(_sets_groups, parsed.values())):
        return None
    if len(built) > 1:
        return f"{_at(*built[1])} builds a second optimizer"
    return next(_doubts(code, *built[0]), None)


def _at(path: str, source: Source, node: cst.CSTNode) -> str:
    return f"{path}:{source.lines_of(node)[0]}"


def _optimizers(source: Source) -> Iterator[cst.Call]:
    for call in source.every(cst.Call):
        if any(name.startswith("torch.optim.") and "lr_scheduler" not in name for name in source.names(call.func)):
            yield call


def _sets_groups(source: Source) -> bool:
    """Whether code gives a group momentum or decay by its key: `group["momentum"] = 0.9`, `{"weight_decay": 0.1}`."""
    if not any(name in source.text for name in _KEEPS_MOVING):
        return False
    keys = (string(each) for each in source.every(cst.SimpleString))
    calls = (call for call in source.calls_named("dict", "update"))
    named = (arg.keyword.value for call in calls for arg in call.args if arg.keyword is not None)
    return not _KEEPS_MOVING.isdisjoint({*keys, *named})


def _is_plain_sgd(source: Source, call: cst.Call) -> bool:
    named = {arg.keyword.value if arg.keyword is not None else "" for arg in call.args[1:]}
    return (
        any(name == "torch.optim.SGD" for name in source.names(call.func))
        and named <= _RATE_ONLY | {""}
        and sum(arg.keyword is None for arg in call.args) <= 2
        and not any(arg.star for arg in call.args)
    )


def _doubts(code: EveryStep, path: str, source: Source, optimizer: cst.Call) -> Iterator[str]:
    parsed = code.sources
    given = optimizer.args[0].value if optimizer.args else None
    whole = isinstance(given, cst.Call) and call_name(given) == "parameters" and isinstance(given.func, cst.Attribute)
    if not whole:
        yield f"{_at(path, source, optimizer)} is given a part of the parameters, or groups of them"
    building = building_methods(parsed.values())
    for at, other in parsed.items():
        for name in other.every(cst.Name):
            if name.value in _CUTS | _HOOKS and isinstance(other.parent(name), cst.Attribute):
                if name.value in {"no_grad", "inference_mode", "detach"} and not _is_trained(code, other, name):
                    continue
                yield f"{_at(at, other, name)} keeps gradients from some parameters, or looks at them (`{name.value}`)"
            if name.value == "find_unused_parameters":
                yield f"{_at(at, other, name)} expects parameters without a gradient"
        for written in other.every(cst.ClassDef):
            yield from _branches(code, at, other, written, building)
    yield from _steps(code)
    if isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute):
        model = source.code(given.func.value)
        yield from _foreign(parsed, path, source, given.func.value)
        for stretch in code.stretches:
            for node in stretch.source.every(cst.Attribute, stretch.body):
                if (
                    stretch.loop is not None
                    and stretch.source.code(node.value) == model
                    and node.attr.value not in _KNOWN
                ):
                    yield f"{_at(stretch.path, stretch.source, node)} takes `{node.attr.value}` of the model by itself"


def _is_trained(code: EveryStep, source: Source, node: cst.CSTNode) -> bool:
    """Whether a node lies in what every step runs before its loss."""
    return any(stretch.source is source and within(source, node, stretch.body) for stretch in code.stretches) and not (
        _is_shown(source, node)
    )


def _is_shown(source: Source, node: cst.CSTNode) -> bool:
    """Whether `loss.detach()` is only added up or told."""
    statement = source.statement(node)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.AugAssign):
        return True
    return (
        isinstance(small, cst.Expr)
        and isinstance(small.value, cst.Call)
        and call_name(small.value) in {"print", "append"}
    )


def _branches(
    code: EveryStep, path: str, source: Source, written: cst.ClassDef, building: frozenset[str]
) -> Iterator[str]:
    """Yield where a module takes another way through its layers than before, in other methods than those that build
    it."""
    methods = [each for each in source.every(cst.FunctionDef, written) if each.name.value != "__init__"]
    if not any(each.name.value == "forward" for each in methods):
        return
    later = names_set_later(code.sources.values())
    for method in (each for each in methods if each.name.value not in building):
        for node in source.walk(method):
            asks = isinstance(node, cst.If | cst.IfExp | cst.While) and not _is_settled(code, source, node.test)
            if asks or isinstance(node, cst.Continue | cst.Break | cst.Match | cst.Try):
                yield f"{_at(path, source, node)} chooses a way through `{written.name.value}`"
            elif isinstance(node, cst.Subscript) and _picks_layer(source, method, node):
                yield f"{_at(path, source, node)} picks one of the layers of `{written.name.value}`"
            elif isinstance(node, cst.Call) and _is_exchanged(source, node, later):
                yield f"{_at(path, source, node)} calls what is set after `{written.name.value}` is built"


def _is_settled(code: EveryStep, source: Source, test: cst.BaseExpression) -> bool:
    """Whether a test of a module's method has one answer in training.

    It asks for a mode, for an argument that is None always or never or that no step gives, or for options that stay as
    they were built.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _is_settled(code, source, test.expression)
    if isinstance(test, cst.BooleanOperation):
        return all(_is_settled(code, source, side) for side in (test.left, test.right))
    if isinstance(test, cst.Comparison):
        if isinstance(test.left, cst.Name) and all(source.code(each.comparator) == "None" for each in test.comparisons):
            return is_given_alike(code, source, test.left)
        return all(
            _is_option(code, source, each) for each in (test.left, *(one.comparator for one in test.comparisons))
        )
    if isinstance(test, cst.Name):
        return is_never_given(code, source, test)
    return _is_option(code, source, test)


def _is_option(code: EveryStep, source: Source, value: cst.BaseExpression) -> bool:
    """Whether a value is a literal, or an attribute of its module that nothing sets after the constructor."""
    if isinstance(value, cst.Tuple | cst.List | cst.Set):
        return all(_is_option(code, source, each.value) for each in value.elements)
    if literal(value) is not None:
        return True
    if not (isinstance(value, cst.Attribute) and source.code(value.value) == "self"):
        return False
    return value.attr.value == "training" or value.attr.value not in names_set_later(code.sources.values())


def _is_exchanged(source: Source, call: cst.Call, later: frozenset[str]) -> bool:
    """Whether a call is of an attribute of the module's own that the program sets while it trains."""
    func = call.func
    return isinstance(func, cst.Attribute) and source.code(func.value) == "self" and func.attr.value in later


def _picks_layer(source: Source, method: cst.FunctionDef, node: cst.Subscript) -> bool:
    """Whether an index chooses a layer: `self.heads[task]`, but for a number or the counter of a loop."""
    if not (isinstance(node.value, cst.Attribute) and source.code(node.value.value) == "self"):
        return False
    code = source.code(node.slice[0].slice)
    counters = {source.code(loop.target) for loop in source.every(cst.For, method)}
    called = source.parent(node)
    return isinstance(called, cst.Call | cst.Attribute) and not code.lstrip("-").isdigit() and code not in counters


def _steps(code: EveryStep) -> Iterator[str]:
    """Yield where a step makes another loss than the one before, or none."""
    passes = [
        (path, source, call)
        for path, source in code.sources.items()
        for call in source.every(cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"
    ]
    if len(passes) != 1:
        yield f"{_at(*passes[1])} goes backward a second time" if passes else "no backward pass is seen"
        return
    path, source, call = passes[0]
    loops = [stretch for stretch in code.stretches if stretch.loop is not None]
    for stretch in loops:
        source_of = stretch.source
        for node in source_of.walk(stretch.body):
            chosen = isinstance(node, cst.IfExp) and isinstance(source_of.parent(node), cst.Attribute | cst.Assign)
            branches = isinstance(node, cst.If | cst.IfExp) and any(map(_computes, source_of.every(cst.Call, node)))
            if chosen or branches:
                yield f"{_at(stretch.path, source_of, node)} decides what a step computes"
            elif isinstance(node, cst.Subscript) and _chooses(stretch.source, stretch.body, node):
                yield f"{_at(stretch.path, stretch.source, node)} picks a part of what a step computes"
            elif isinstance(node, cst.Continue):
                yield f"{_at(stretch.path, stretch.source, node)} leaves some steps early"
    for place in loss_choices(code, path, source, call):
        yield f"{place} decides what the loss is made of"
    for above in source.ancestors(call):
        if isinstance(above, cst.If | cst.Try):
            if isinstance(above, cst.If) and "__name__" in source.code(above.test):
                continue
            yield f"{_at(path, source, above)} decides whether a step goes backward"


def _chooses(source: Source, loop: cst.CSTNode, node: cst.Subscript) -> bool:
    """Whether an index that may change from step to step picks from what the step made itself."""
    index = node.slice[0].slice
    if not isinstance(index, cst.Index) or isinstance(
        index.value, cst.BaseNumber | cst.BaseString | cst.UnaryOperation
    ):
        return False
    return not isinstance(node.value, cst.Name) or binds(source, loop, node.value.value)


def _computes(call: cst.Call) -> bool:
    """Whether a call within a branch may be of the model, or of the loss: not what tells, saves, or updates."""
    names = {
        "print",
        "step",
        "zero_grad",
        "clip_grad_norm_",
        "item",
        "save",
        "append",
        "format",
        "len",
        "write",
        "eval",
    }
    more = {
        "train",
        "update",
        "unscale_",
        "info",
        "state_dict",
        "round",
        "float",
        "int",
        "synchronize",
        "join",
        "get_lr",
    }
    return call_name(call) not in names | more


def _foreign(parsed: Mapping[str, Source], path: str, source: Source, model: cst.BaseExpression) -> Iterator[str]:
    """A model whose layers are neither the program's own nor of `torch.nn`."""
    bound = binding_of(source, model) if isinstance(model, cst.Name) else None
    made = bound.value if bound is not None else None
    while (
        isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute) and made.func.attr.value in {"to", "cuda"}
    ):
        made = made.func.value
    own = {each.name.value for other in parsed.values() for each in other.every(cst.ClassDef)}
    if not isinstance(made, cst.Call):
        yield f"{_at(path, source, model)} does not show which layers `{source.code(model)}` has"
    elif call_name(made) not in own and not any(name.startswith("torch.nn.") for name in source.names(made.func)):
        yield f"{_at(path, source, made)} builds a model whose layers are not seen"
