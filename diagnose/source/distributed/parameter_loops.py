"""Loops over the parameters of a model that hand each to a collective: gradients reduced, or weights sent, by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.ranks import given_to
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source

_OVER = re.compile(r"(?:list\()?(?P<model>[\w.]+?)\.(?:named_)?parameters\(\)\)?$")
_WORLD = re.compile(r"(?<!local_)world_?size|n_?ranks|num_?replicas", re.IGNORECASE)
_ASKS_GRADIENT = re.compile(r"(?:not\s+)?\(?[\w.]+\.(?:grad|requires_grad)\b")
_NAMES_FOLLOWED = 3
_QUIET = frozenset({"get_world_size", "get_rank", "is_initialized", "is_available", "float", "int", "no_grad"})


@dataclass(frozen=True)
class ParameterLoop:
    """One such loop, and how the program gets there."""

    path: str
    source: Source = field(repr=False)
    loop: cst.For = field(repr=False)
    collective: Literal["all_reduce", "broadcast"]
    of: Literal["grad", "weight"]
    model: str
    """What the loop's parameters are those of, as the loop calls it."""
    averages: bool
    """Whether a sum over ranks is divided by their number there."""
    function: cst.FunctionDef | None = field(repr=False)
    """The function that does nothing else; None where the loop stands in the training code itself."""
    calls: tuple[cst.Call, ...] = field(repr=False)
    """The calls of that function in the same file."""
    group: str | None = None
    """The code of the group of ranks that the collective names; None for all ranks of the job."""

    def model_in(self, call: cst.Call) -> str:
        """Return what a call of the loop's function names the model whose parameters the loop goes through."""
        root, dot, rest = self.model.partition(".")
        listed = self.function.params.params if self.function is not None else ()
        names = [each.name.value for each in listed if each.name.value != "self"]
        passed = argument(call, root, names.index(root)) if root in names else None
        return self.source.code(passed.value) + dot + rest if passed is not None else self.model

    @property
    def line(self) -> str:
        """The loop as a line of text, for messages."""
        return f"{self.path}:{self.source.lines_of(self.loop)[0]}"


def parameter_loops(sources: Mapping[str, str]) -> list[ParameterLoop]:
    """All of the sources, in their order."""
    loops = (
        _parameter_loop(path, source, loop)
        for path, source in files_with(sources, "all_reduce", "broadcast")
        if "parameters()" in source.text
        for loop in source.every(cst.For)
    )
    return [loop for loop in loops if loop is not None]


def _parameter_loop(path: str, source: Source, loop: cst.For) -> ParameterLoop | None:
    over = _OVER.match(source.code(loop.iter))
    name = _parameter(loop)
    body = _statements(source, loop.body)
    if over is None or name is None or loop.orelse is not None or body is None:
        return None
    sent: list[tuple[Literal["all_reduce", "broadcast"], Literal["grad", "weight"]]] = []
    divisions, group = 0, None
    for small in body:
        call = small.value if isinstance(small, cst.Expr) else None
        collective = _collective(source, call, name) if isinstance(call, cst.Call) else None
        if collective is not None:
            sent.append(collective)
            divisions += isinstance(call, cst.Call) and "AVG" in source.code(call)
            named_group = argument(call, "group", 2) if isinstance(call, cst.Call) else None
            group = source.code(named_group.value) if named_group is not None else None
        elif _divides(source, small, name):
            divisions += 1
        elif not isinstance(small, cst.Continue | cst.Pass):
            return None
    if len(sent) != 1 or divisions > 1:
        return None
    function = source.inside(loop, cst.FunctionDef)
    if function is not None and not _does_nothing_else(source, function, loop):
        function = None
    named = function.name.value if function is not None else None
    calls = tuple(call for call in source.every(cst.Call) if call_name(call) == named) if named else ()
    group = None if group == "None" else group
    return ParameterLoop(path, source, loop, *sent[0], over["model"], divisions == 1, function, calls, group)


def _parameter(loop: cst.For) -> str | None:
    """The name of the parameter in a turn: `p`, or the second of `name, p`."""
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and len(target.elements) == 2:
        target = target.elements[1].value
    return target.value if isinstance(target, cst.Name) else None


def _statements(source: Source, body: cst.BaseSuite) -> list[cst.BaseSmallStatement] | None:
    """The simple statements of a body, with those below a question about the gradient; None where there is more."""
    found: list[cst.BaseSmallStatement] = []
    for line in body.body:
        if isinstance(line, cst.SimpleStatementLine):
            found += line.body
        elif isinstance(line, cst.If) and line.orelse is None and _ASKS_GRADIENT.match(source.code(line.test)):
            below = _statements(source, line.body)
            if below is None:
                return None
            found += below
        elif isinstance(line, cst.BaseSmallStatement):
            found.append(line)
        else:
            return None
    return found


def _collective(
    source: Source, call: cst.Call, name: str
) -> tuple[Literal["all_reduce", "broadcast"], Literal["grad", "weight"]] | None:
    if not call.args or any(arg.keyword is not None and arg.keyword.value == "async_op" for arg in call.args):
        return None
    given = source.code(call.args[0].value)
    kind = call_name(call)
    if kind == "all_reduce" and given in {f"{name}.grad", f"{name}.grad.data"} and _adds_up(source, call):
        return "all_reduce", "grad"
    if kind == "broadcast" and given in {name, f"{name}.data"} and _from_one_rank(call):
        return "broadcast", "weight"
    return None


def _adds_up(source: Source, call: cst.Call) -> bool:
    """Whether a call sums or averages, as an all-reduce does unless told otherwise."""
    operation = argument(call, "op", 1)
    return operation is None or re.search(r"SUM|AVG", source.code(operation.value)) is not None


def _from_one_rank(call: cst.Call) -> bool:
    """Whether the same rank sends all: where each sends its part, that is how the others get it."""
    sender = argument(call, "src", 1)
    return sender is not None and isinstance(sender.value, cst.Integer)


def _divides(source: Source, small: cst.BaseSmallStatement, name: str) -> bool:
    """Whether a statement divides the gradient by the number of ranks."""
    divisor = _divisor(source, small, {f"{name}.grad", f"{name}.grad.data"})
    return divisor is not None and _is_world_size(source, divisor, _NAMES_FOLLOWED)


def _divisor(source: Source, small: cst.BaseSmallStatement, gradient: set[str]) -> cst.BaseExpression | None:
    """Return what a statement divides the gradient by: `p.grad /= n`, `p.grad = p.grad / n`, `p.grad.div_(n)`."""
    if isinstance(small, cst.AugAssign):
        divides = isinstance(small.operator, cst.DivideAssign) and source.code(small.target) in gradient
        return small.value if divides else None
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and source.code(small.targets[0].target) in gradient:
        return _over(source, small.value, gradient)
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
        return None
    if source.code(call.func.value) not in gradient:
        return None
    given = call.args[0].value
    if call_name(call) == "mul_":
        return _over(source, given, {"1", "1.0", "1."})
    return given if call_name(call) == "div_" else None


def _over(source: Source, node: cst.BaseExpression, above: set[str]) -> cst.BaseExpression | None:
    quotient = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)
    if not quotient or not isinstance(node, cst.BinaryOperation) or source.code(node.left) not in above:
        return None
    return node.right


def _is_world_size(source: Source, node: cst.BaseExpression, names: int) -> bool:
    """Whether an expression is the number of ranks: by all that a name is given or passed, else by its own name."""
    if isinstance(node, cst.Call) and call_name(node) in {"float", "int"} and len(node.args) == 1:
        return _is_world_size(source, node.args[0].value, names)
    given = given_to(source, node) if names and isinstance(node, cst.Name | cst.Attribute) else []
    if given:
        return all(_is_world_size(source, value, names - 1) for value in given)
    # A multiple of it is another number, and so is that of a group.
    whole = not any(source.every(cst.BinaryOperation, node)) and not (isinstance(node, cst.Call) and node.args)
    return whole and _WORLD.search(source.code(node)) is not None


def _does_nothing_else(source: Source, function: cst.FunctionDef, loop: cst.For) -> bool:
    """Whether a function only runs the loop: beside it, it asks for the number of ranks."""
    for statement in _below(function.body):
        if statement is loop:
            continue
        if within(source, loop, statement):
            if any(isinstance(above, cst.For | cst.While) for above in source.ancestors(loop) if above is not function):
                return False
            continue
        if any(call_name(call) not in _QUIET for call in source.every(cst.Call, statement)):
            return False
        if any(isinstance(node, cst.For | cst.While | cst.AugAssign) for node in source.walk(statement)):
            return False
    return True


def _below(body: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    statements: Sequence[cst.CSTNode] = body.body
    yield from statements
