"""The computation of a tensor expression, independent of how it is written.

`q @ k`, `torch.matmul(q, k)` and `q.matmul(k)` are one operation, and so is what a name stands for: an operation is
followed through plain assignments, `x += …`, `x.masked_fill_(…)` and assignments under a lone `if`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, definition_of, in_module, reaching, statement_of
from diagnose.source.tree.attributes import is_of_self, member
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_BINARY: Mapping[type[cst.BaseBinaryOp], str] = {
    cst.Add: "add",
    cst.Subtract: "sub",
    cst.Multiply: "mul",
    cst.Divide: "div",
    cst.MatrixMultiply: "matmul",
    cst.Power: "pow",
    cst.FloorDivide: "floordiv",
    cst.BitAnd: "and",
    cst.BitOr: "or",
}
_UPDATES: Mapping[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "add",
    cst.SubtractAssign: "sub",
    cst.MultiplyAssign: "mul",
    cst.DivideAssign: "div",
}
_SAME = {
    "bmm": "matmul",
    "multiply": "mul",
    "true_divide": "div",
    "divide": "div",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "negative": "neg",
    "logical_not": "invert",
    "bitwise_not": "invert",
    "masked_fill_": "masked_fill",
    "mul_": "mul",
    "div_": "div",
    "add_": "add",
    "softmax_": "softmax",
}
_MODULES = {"Softmax": "softmax", "Dropout": "dropout"}
_TORCH = ("torch.", "math.", "numpy.", "torch.nn.functional.")
_CONVERSIONS = ("builtins.float", "builtins.int", "builtins.bool")
_CONSTANTS = {"math.pi": math.pi, "numpy.pi": math.pi, "torch.pi": math.pi, "math.inf": math.inf}
_CONSTANTS |= {"torch.inf": math.inf, "numpy.inf": math.inf, "np.inf": math.inf, "math.e": math.e}


@dataclass(frozen=True)
class Operation:
    """One operation on tensors."""

    name: str
    """The operator's name in `torch`: matmul, mul, softmax, …; `self.` and the member's name for a call of another
    module."""
    operands: tuple[cst.BaseExpression, ...]
    """Positional, the object of a method first."""
    node: cst.CSTNode
    """The expression or update that it is written as."""
    keywords: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    through: tuple[tuple[cst.CSTNode, str], ...] = ()
    """The statements that were followed to it, outermost last, with the names that they bind."""
    condition: cst.BaseExpression | None = None
    """The condition under which the operator is applied; otherwise its first operand passes unchanged."""
    method: bool = False
    module: cst.Call | None = None
    """The code with which the class builds the module, where one of torch's modules is called."""

    def given(self, keyword: str, position: int) -> cst.BaseExpression | None:
        """An operand by its name, or by its position from 0."""
        found = self.keywords.get(keyword)
        if found is not None:
            return found
        return self.operands[position] if position < len(self.operands) else None


def is_of_tensors(source: Source, made: Operation) -> bool:
    """Whether an operation is torch's, or Python's, and leaves alone what others may hold.

    Functions of `math` and NumPy share its name; `x.mul_(y)` writes into its object, and so does `x *= y` but where x
    was computed right before.
    """
    if isinstance(made.node, cst.AugAssign):
        target = made.node.target
        seen = reaching(source, statement_of(source, made.node), target.value) if isinstance(target, cst.Name) else None
        return seen is not None and seen.bound is Bound.ASSIGNED and isinstance(seen.value, cst.BinaryOperation)
    if not isinstance(made.node, cst.Call):
        return True
    if made.method and isinstance(made.node.func, cst.Attribute):
        return not made.node.func.attr.value.endswith("_")
    return not source.is_called(made.node.func, "math.", "numpy.")


def certain(source: Source, node: cst.CSTNode) -> Operation | None:
    """Return the operation that an expression computes unconditionally; None where it depends on a condition."""
    made = operation(source, node)
    return made if made is not None and made.condition is None else None


@per_source
def operation(source: Source, node: cst.CSTNode) -> Operation | None:
    """Return the operation that an expression computes; None for what is no operation (a parameter, an unpacked name, a
    literal).
    """
    through: list[tuple[cst.CSTNode, str]] = []
    while isinstance(node, cst.Name):
        name = node.value
        found = reaching(source, statement_of(source, node), name)
        condition = None
        if found.bound is Bound.GUARDED and isinstance(found.statement, cst.If) and found.inner is not None:
            condition, statement, found = found.statement.test, found.statement, found.inner
        else:
            statement = found.statement  # type: ignore[assignment]
        if statement is None or found.value is None or found.bound not in _FOLLOWED:
            return None
        through.append((statement, name))
        if found.bound is Bound.ASSIGNED and condition is None:
            node = found.value
            continue
        made = _written(source, found.value)
        return replace(made, through=tuple(through), condition=condition) if made is not None else None
    made = _written(source, node)
    return replace(made, through=tuple(through)) if made is not None else None


_FOLLOWED = frozenset({Bound.ASSIGNED, Bound.UPDATED, Bound.MUTATED})


def _written(source: Source, node: cst.CSTNode) -> Operation | None:
    if isinstance(node, cst.BinaryOperation):
        name = _BINARY.get(type(node.operator))
        return Operation(name, (node.left, node.right), node) if name else None
    if isinstance(node, cst.AugAssign):
        name = _UPDATES.get(type(node.operator))
        return Operation(name, (node.target, node.value), node) if name else None
    if isinstance(node, cst.UnaryOperation):
        name = {cst.Minus: "neg", cst.BitInvert: "invert", cst.Not: "not"}.get(type(node.operator))
        return Operation(name, (node.expression,), node) if name else None
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        name = _COMPARED.get(type(node.comparisons[0].operator))
        return Operation(name, (node.left, node.comparisons[0].comparator), node) if name else None
    if isinstance(node, cst.Attribute) and node.attr.value in {"T", "mT"}:
        return Operation(node.attr.value, (node.value,), node, method=True)
    if isinstance(node, cst.Call):
        return _called(source, node)
    return None


_COMPARED: Mapping[type[cst.BaseCompOp], str] = {
    cst.Equal: "eq",
    cst.NotEqual: "ne",
    cst.GreaterThan: "gt",
    cst.GreaterThanEqual: "ge",
    cst.LessThan: "lt",
    cst.LessThanEqual: "le",
}


def _called(source: Source, call: cst.Call) -> Operation | None:
    if any(arg.star for arg in call.args):
        return None
    given = tuple(arg.value for arg in call.args if arg.keyword is None)
    keywords = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    function = call.func
    module = built_module(source, function)
    if module is not None:
        kind = source_kind(source, module)
        if kind in _MODULES:
            return Operation(_MODULES[kind], given, call, keywords, module=module)
        return Operation(source.code(function), given, call, keywords, module=module)
    of_torch = _is_dotted(function) and source.is_called(function, *_TORCH, *_CONVERSIONS)
    for name in source.names(function) if of_torch else ():
        if name.startswith(_TORCH) or name in _CONVERSIONS:
            last = name.rpartition(".")[2]
            if "input" in keywords and not given:
                given, keywords = (keywords["input"],), {k: v for k, v in keywords.items() if k != "input"}
            return Operation(_SAME.get(last, last), given, call, keywords)
    if not isinstance(function, cst.Attribute):
        return None
    if is_of_self(function):
        return Operation(f"self.{function.attr.value}", given, call, keywords)
    name = function.attr.value
    return Operation(_SAME.get(name, name), (function.value, *given), call, keywords, method=True)


def _is_dotted(node: cst.BaseExpression) -> bool:
    """Whether a callee is names alone; LibCST knows `torch.ones(3).view` as torch.ones.view too."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def built_module(source: Source, function: cst.BaseExpression) -> cst.Call | None:
    """Return how the class around `self.name(…)` builds its member; None where it does not, or nobody can tell."""
    found = member(source, function)
    return found if isinstance(found, cst.Call) else None


def source_kind(source: Source, call: cst.Call) -> str:
    """The class of torch's that a call builds, without its package; empty for other calls."""
    if not source.is_called(call.func, "torch.nn."):
        return ""
    return next(name.rpartition(".")[2] for name in source.names(call.func) if name.startswith("torch.nn."))


def integer(node: cst.BaseExpression | None) -> int | None:
    """The value of an integer literal, with its sign."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        positive = integer(node.expression)
        return None if positive is None else -positive
    return int(node.value, 0) if isinstance(node, cst.Integer) and node.value.isdecimal() else None


@per_source
def constant(
    source: Source, node: cst.BaseExpression | None, followed: tuple[cst.BaseExpression, ...] = ()
) -> float | None:
    """The value of an expression of numbers, functions of `math` and constants bound once in the file.

    `followed` are the values of names on the way to this one: what is bound to itself, `self.n = self.n * 2`, has none.
    """
    if isinstance(node, cst.Integer | cst.Float):
        return float(node.evaluated_value)
    if node is None:
        return None
    if isinstance(node, cst.Attribute | cst.Name):
        names = source.names(node) if source.is_called(node, *_CONSTANTS) else ()
        known = next((_CONSTANTS[name] for name in names if name in _CONSTANTS), None)
        if known is not None:
            return known
    if isinstance(node, cst.Attribute | cst.Name):
        value = member(source, node) if isinstance(node, cst.Attribute) else _bound(source, node)
        if value is None or any(value is each for each in followed):
            return None
        return constant(source, value, (*followed, value))
    made = _written(source, node)
    return _computed(source, made, followed) if made is not None else None


def _bound(source: Source, node: cst.Name) -> cst.BaseExpression | None:
    """The expression that a name was given."""
    found = definition_of(source, node)
    if found.bound is Bound.OUTER:
        found = in_module(source, node.value) or found
    return found.assigned


def _computed(source: Source, made: Operation, followed: tuple[cst.BaseExpression, ...]) -> float | None:
    if made.name in {"float", "tensor", "FloatTensor"} and made.operands:
        first = made.operands[0]
        if isinstance(first, cst.SimpleString):
            text = str(first.evaluated_value).strip()
            try:
                return float(text)
            except ValueError:
                return None
        if isinstance(first, cst.List | cst.Tuple) and len(first.elements) == 1:
            first = first.elements[0].value
        return constant(source, first, followed)
    values = [constant(source, operand, followed) for operand in made.operands]
    numbers = [value for value in values if value is not None]
    if len(numbers) != len(values) or made.name not in _ARITHMETIC:
        return None
    try:
        return float(_ARITHMETIC[made.name](*numbers))
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return None


_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
}
