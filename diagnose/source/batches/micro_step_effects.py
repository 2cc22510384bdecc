"""The side effects of a micro-step besides adding gradients: fewer and larger micro-steps would change them.

A line that is printed for each micro-step, a counter, the loss of the last one, a loss that compares the samples of a
micro-batch with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.batches.accumulation import Accumulation
from diagnose.source.dataflow.flow import bindings, within
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.training.every_step import counter_of
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source

_OF_A_STEP = frozenset(
    {"backward", "manual_backward", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_", "train"}
    | {"synchronize", "empty_cache", "mark_step"}
)
_SYNCHRONIZES = frozenset({"require_backward_grad_sync", "set_requires_gradient_sync"})
_BETWEEN_SAMPLES = frozenset({"cdist", "pdist", "cov", "corrcoef", "randperm", "roll"})
_NOT_LINEAR = frozenset({"sum", "sqrt", "log", "exp", "pow", "square", "norm", "max", "min", "std", "var", "logsumexp"})
"""What is not the mean over two groups of samples, where it is the mean of what it is for each group."""


def effect_of_micro_step(step: TrainingStep, way: Accumulation) -> str | None:
    """The line of the first thing that depends on how many micro-steps there are, and why; None where there is none."""
    source, loop = step.source, step.loop
    if loop is None:
        return None
    branches = [above for call in step.optimizer_steps for above in _branches(source, call, loop)]
    made = {
        name.value
        for name in source.every(cst.Name, loop)
        if any(bound is name for bound in bindings(source, loop, name.value))
        and not isinstance(source.parent(name), cst.AugAssign)
        and not any(within(source, name, each) for each in branches)
    }
    for node in source.walk(loop.body):
        often = not any(within(source, node, each) for each in branches)
        why = _effect(step, way, node, made, often)
        if why is not None:
            return f"{source.lines_of(node)[0]} {why}"
    for name in source.every(cst.Name, step.scope):
        if name.value in made and _is_read_after(source, name, loop):
            return f"{source.lines_of(name)[0]} reads `{name.value}` of the last micro-step"
    return None


def _branches(source: Source, call: cst.Call, loop: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The body of the `if` within the loop that holds the optimizer's step."""
    around = source.inside(call, cst.If)
    if around is not None and within(source, around, loop):
        yield around.body


def _effect(step: TrainingStep, way: Accumulation, node: cst.CSTNode, made: set[str], often: bool) -> str | None:
    source = step.source
    if isinstance(node, cst.Yield | cst.Await | cst.Raise | cst.Assert):
        return "may do something in every micro-step that is not followed"
    if isinstance(node, cst.If | cst.While | cst.IfExp):
        return _effect_of_test(step, way, node.test, made)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        return _effect_of_call(step, node.value, made, often)
    if isinstance(node, cst.AugAssign):
        return _effect_of_update(step, way, node, made, often)
    if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute | cst.Subscript):
        known = isinstance(node.target, cst.Attribute) and node.target.attr.value in _SYNCHRONIZES
        assign = source.parent(node)
        kept = isinstance(assign, cst.Assign) and _reads(source, assign.value, made)
        if not known and kept:
            return "keeps a value of each micro-step"
    return None


def _effect_of_test(step: TrainingStep, way: Accumulation, test: cst.BaseExpression, made: set[str]) -> str | None:
    """Return where something else than the number of micro-steps, or the last batch of an epoch, decides what a turn
    does.

    What kind of thing a value is, it is in each micro-step.
    """
    source = step.source
    if isinstance(test, cst.BooleanOperation):
        return _effect_of_test(step, way, test.left, made) or _effect_of_test(step, way, test.right, made)
    if isinstance(test, cst.UnaryOperation):
        return _effect_of_test(step, way, test.expression, made)
    if _is_of_a_kind(source, test):
        return None
    counter = counter_of(source, step.loop) if step.loop is not None else None
    counts = _counts_steps(source, test, source.code(way.steps), made)
    read = _reads(source, test, made - {counter} if counts else made)
    return f"decides by `{read}` of a micro-step" if read is not None else None


def _is_of_a_kind(source: Source, test: cst.BaseExpression) -> bool:
    """Whether a test asks what kind of thing a value is, or whether there is one."""
    if isinstance(test, cst.Call):
        return source.code(test.func) == "isinstance"
    return isinstance(test, cst.Comparison) and all(
        isinstance(each.operator, cst.Is | cst.IsNot) and source.code(each.comparator) == "None"
        for each in test.comparisons
    )


def _counts_steps(source: Source, test: cst.BaseExpression, steps: str, made: set[str]) -> bool:
    """Whether a test divides by a multiple of the number of micro-steps, or asks for a length of another thing."""
    divided = (each.right for each in source.every(cst.BinaryOperation, test) if isinstance(each.operator, cst.Modulo))
    sides = {source.code(side) for right in divided for side in _factors(right)}
    lengths = (call for call in source.every(cst.Call, test) if source.code(call.func) == "len")
    return steps in sides or any(_reads(source, call, made) is None for call in lengths)


def _factors(value: cst.BaseExpression) -> tuple[cst.BaseExpression, ...]:
    multiplied = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply)
    return (value.left, value.right) if isinstance(value, cst.BinaryOperation) and multiplied else (value,)


def _effect_of_call(step: TrainingStep, call: cst.Call, made: set[str], often: bool) -> str | None:
    source, name = step.source, call_name(call)
    if name in _OF_A_STEP | _SYNCHRONIZES or call is step.backward or call in step.optimizer_steps:
        return None
    if name == "update" and not call.args:
        return None  # of a gradient scaler
    if often:
        return f"calls `{name}` in every micro-step"
    read = _reads(source, call, made)
    return f"gives `{name}` a value of the last micro-step (`{read}`)" if read is not None else None


def _effect_of_update(
    step: TrainingStep, way: Accumulation, update: cst.AugAssign, made: set[str], often: bool
) -> str | None:
    source = step.source
    target = source.code(update.target)
    if target == step.loss and isinstance(update.operator, cst.DivideAssign):
        return None
    read = _reads(source, update.value, made)
    if read is None:
        return f"counts micro-steps in `{target}`" if often else None
    divided = _is_divided(source, step, source.code(way.steps), update.value)
    adds = isinstance(update.operator, cst.AddAssign) and isinstance(update.target, cst.Name)
    if not adds or read != step.loss or not (divided or _is_mean(source, step, way, target)):
        return f"adds up `{read}` of micro-steps in `{target}`, of which there are fewer"
    return None


def _is_divided(source: Source, step: TrainingStep, steps: str, value: cst.BaseExpression) -> bool:
    """Whether the loss that is added up has been divided by the number of micro-steps."""
    before = source.span(value)[0]
    for node in source.walk(step.turn):
        if isinstance(node, cst.AugAssign) and source.code(node.target) == step.loss:
            if source.code(node.value) == steps and source.span(node)[0] < before:
                return True
        elif isinstance(node, cst.Assign) and source.code(node.targets[0].target) == step.loss:
            right = node.value.right if isinstance(node.value, cst.BinaryOperation) else None
            if right is not None and source.code(right) == steps and source.span(node)[0] < before:
                return True
    return False


def _is_mean(source: Source, step: TrainingStep, way: Accumulation, total: str) -> bool:
    """Whether each read of a sum divides it by the number of micro-steps, or of all turns of the loop."""
    over = {source.code(way.steps)}
    if isinstance(step.loop, cst.For):
        over |= {f"len({source.code(name)})" for name in source.every(cst.Name, step.loop.iter)}
    for name in source.every(cst.Name, step.scope):
        if name.value != total or any(bound is name for bound in bindings(source, step.scope, total)):
            continue
        around = source.parent(name)
        if not (isinstance(around, cst.BinaryOperation) and source.code(around.right) in over):
            return False
    return True


def _reads(source: Source, node: cst.CSTNode, names: set[str]) -> str | None:
    return next((name.value for name in names_in(source, node) if name.value in names), None)


def _is_read_after(source: Source, name: cst.Name, loop: cst.CSTNode) -> bool:
    """Whether a name behind a loop is read there as the loop has left it."""
    if is_attribute_name(source, name):
        return False
    place, end = source.span(name)[0], source.span(loop)[1]
    scope = source.inside(loop, cst.FunctionDef) or source.module
    if place < end or (source.inside(name, cst.FunctionDef) or source.module) is not scope:
        return False
    bound = [source.span(each)[0] for each in bindings(source, scope, name.value)]
    return place not in bound and not any(end <= each < place for each in bound)


def mixes_samples(sources: Mapping[str, str], step: TrainingStep) -> str | None:
    """The line at which a model or a loss compares samples of a micro-batch with each other; None where none is seen.

    Looked at are the turn of the loop, the functions that it calls, and the methods of modules.
    """
    parsed = parse_all(sources)
    seen: list[tuple[str, Source, cst.CSTNode]] = [(step.path, step.source, step.turn)]
    wanted = {call_name(call) for call in step.source.every(cst.Call, step.turn)}
    functions = [(path, source, each) for path, source in parsed.items() for each in source.every(cst.FunctionDef)]
    modules = {
        owner
        for _, source, each in functions
        if each.name.value == "forward" and (owner := source.inside(each, cst.ClassDef)) is not None
    }
    taken: set[cst.CSTNode] = set()
    more = True
    while more:
        more = False
        for path, source, each in functions:
            of_module = source.inside(each, cst.ClassDef) in modules and each.name.value != "__init__"
            if each not in taken and (of_module or each.name.value in wanted):
                taken.add(each)
                seen.append((path, source, each.body))
                wanted |= {call_name(call) for call in source.every(cst.Call, each)}
                more = True
    for path, source, below in seen:
        for node in source.walk(below, cst.BinaryOperation, cst.Call):
            why = _mixes(source, node)
            if why is not None:
                return f"{path}:{source.lines_of(node)[0]} {why}"
    return _not_a_mean(step)


def _mixes(source: Source, node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return _of_product(source, node.left, node.right)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
        inner = node.right
        while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
            if inner.func.attr.value in {"sum", "count_nonzero"} and not inner.args:
                return "divides by a sum over the micro-batch"
            inner = inner.func.value
        return None
    if not isinstance(node, cst.Call):
        return None
    name = call_name(node)
    if name in _BETWEEN_SAMPLES:
        return f"compares samples of a micro-batch with each other (`{name}`)"
    if name == "arange" and node.args and _is_length(source, node.args[0].value):
        return "numbers the samples of a micro-batch"
    if name in {"matmul", "mm"}:
        sides = [arg.value for arg in node.args]
        if len(sides) == 1 and isinstance(node.func, cst.Attribute):
            sides.insert(0, node.func.value)
        return _of_product(source, *sides) if len(sides) == 2 else None
    if name == "einsum" and node.args and isinstance(node.args[0].value, cst.SimpleString):
        given, _, out = str(node.args[0].value.evaluated_value).replace(" ", "").partition("->")
        parts = given.split(",")
        pairs = len(parts) == 2 and all(len(part) == 2 for part in parts) and out == parts[0][0] + parts[1][0]
        return "compares samples of a micro-batch with each other (`einsum`)" if pairs else None
    weighted = any(arg.keyword is not None and arg.keyword.value == "weight" for arg in node.args)
    if weighted and name in {"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"}:
        return "divides by the weights of a micro-batch's targets"
    return None


def _is_length(source: Source, node: cst.BaseExpression) -> bool:
    """`len(x)`, `x.size(0)`, `x.shape[0]`."""
    code = source.code(node).replace(" ", "")
    return code.startswith("len(") or code.endswith((".size(0)", ".shape[0]"))


def _of_product(source: Source, left: cst.BaseExpression, right: cst.BaseExpression) -> str | None:
    """A product of rows with rows: `.t()` takes two axes only, so that the first one is that of samples."""
    for side in (left, right):
        method = side.func if isinstance(side, cst.Call) and not side.args else side
        turned = isinstance(method, cst.Attribute) and method.attr.value in {"t", "T"}
        if turned and isinstance(method, cst.Attribute) and not source.code(method.value).startswith("self."):
            return "compares samples of a micro-batch with each other"
    return None


def _not_a_mean(step: TrainingStep) -> str | None:
    """Return where the loss of a micro-step is not a mean over its samples, by the last thing that computes it."""
    source = step.source
    for assign in source.every(cst.Assign, step.turn):
        if source.code(assign.targets[0].target) != step.loss:
            continue
        value = assign.value
        while isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide | cst.Multiply):
            value = value.left
        if isinstance(value, cst.Call) and call_name(value) in _NOT_LINEAR:
            return f"{step.path}:{source.lines_of(assign)[0]} is no mean over samples (`{call_name(value)}`)"
    return None
