"""The known kind of an expression's value: integers or floats, a Python number, a new tensor, a tensor without axes.

Only what the code says counts: literals, operators, methods and functions of torch, and the bindings of a name.
"""

from __future__ import annotations

import enum

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.flow import loops_around, scope_of
from diagnose.source.training.every_step import counter_of
from diagnose.source.tree.attributes import class_of, members_named
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source


class Kind(enum.Enum):
    """The numbers that a tensor holds, or that Python computes."""

    WHOLE = "whole numbers, or truth values"
    FLOAT = "floats"


_TESTS = frozenset({"eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "all", "any"})
_WHOLE = _TESTS | {"argmax", "argmin", "argsort", "count_nonzero", "long", "int", "bool", "logical_and", "logical_or"}
_FLOAT = frozenset(
    {"mean", "std", "var", "norm", "float", "double", "half", "bfloat16", "sqrt", "rsqrt", "exp", "log", "log2"}
    | {"sigmoid", "tanh", "softmax", "log_softmax", "true_divide", "div", "rand", "randn", "logsumexp", "vector_norm"}
    | {"clip_grad_norm_", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
    | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity"}
)
_SAME = frozenset(
    {"sum", "abs", "max", "min", "amax", "amin", "clamp", "detach", "cpu", "cuda", "clone", "contiguous", "view"}
    | {"reshape", "flatten", "squeeze", "unsqueeze", "item", "square", "prod"}
)
_REDUCES = frozenset({"sum", "mean", "norm", "max", "min", "std", "var", "prod", "count_nonzero", "argmax", "argmin"})
_NEW = _REDUCES | _TESTS | {"abs", "sqrt", "exp", "log", "square", "pow", "sigmoid", "tanh", "amax", "amin", "neg"}
_NEW |= {"clone", "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "binary_cross_entropy_with_logits", "stack"}
_ARITHMETIC = cst.Add | cst.Subtract | cst.Multiply
_DEEPEST = 5


def kind_of(source: Source, node: cst.BaseExpression, depth: int = 0) -> Kind | None:
    """The kind of numbers in a tensor that an expression makes; None where the code does not tell."""
    if depth > _DEEPEST:
        return None
    if _is_differentiated(source, node):
        return Kind.FLOAT
    if isinstance(node, cst.Comparison):
        return Kind.WHOLE
    if isinstance(node, cst.UnaryOperation):
        return kind_of(source, node.expression, depth + 1)
    if isinstance(node, cst.Subscript):
        return kind_of(source, node.value, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        return _of_operation(source, node, depth)
    if isinstance(node, cst.Call):
        return _of_call(source, node, depth)
    if isinstance(node, cst.Name):
        values = bound_to(source, node)
        kinds = {kind_of(source, each, depth + 1) if isinstance(each, cst.BaseExpression) else None for each in values}
        return kinds.pop() if len(kinds) == 1 else None
    return number_kind(source, node)


def _of_operation(source: Source, node: cst.BinaryOperation, depth: int) -> Kind | None:
    if isinstance(node.operator, cst.Divide):
        return Kind.FLOAT
    sides = {_side(source, node.left, depth), _side(source, node.right, depth)}
    if isinstance(node.operator, cst.BitAnd | cst.BitOr):
        return Kind.WHOLE if sides == {Kind.WHOLE} else None
    if not isinstance(node.operator, _ARITHMETIC):
        return None
    return Kind.FLOAT if Kind.FLOAT in sides else Kind.WHOLE if sides == {Kind.WHOLE} else None


def _side(source: Source, node: cst.BaseExpression, depth: int) -> Kind | None:
    return number_kind(source, node) or kind_of(source, node, depth + 1)


def _of_call(source: Source, call: cst.Call, depth: int) -> Kind | None:
    if any(arg.keyword is not None and arg.keyword.value == "dtype" for arg in call.args):
        return None
    made = source.names(call.func)
    if isinstance(call.func, cst.Attribute):
        name = call.func.attr.value
        of_torch = any(each.startswith("torch.") for each in made)
        base = (call.args[0].value if call.args else None) if of_torch else call.func.value
        known = of_torch or name not in source.function_names
    else:
        of_torch = any(each.startswith("torch.") for each in made)
        name = next((each.rpartition(".")[2] for each in made if each.startswith("torch.")), "")
        base = call.args[0].value if call.args else None
        known = of_torch
    if not known:
        return None
    if name in _WHOLE:
        return Kind.WHOLE
    if name in _FLOAT:
        return Kind.FLOAT
    if name in _SAME:
        return kind_of(source, base, depth + 1) if base is not None else None
    return Kind.FLOAT if _is_loss_module(source, call.func) else None


def _is_loss_module(source: Source, function: cst.BaseExpression) -> bool:
    """Whether what is called is one of torch's loss modules: their outcome is a float."""
    values: list[cst.CSTNode] = []
    if isinstance(function, cst.Name):
        values = list(bound_to(source, function))
    elif isinstance(function, cst.Attribute) and source.code(function.value) == "self":
        around = class_of(source, function)
        values = list(members_named(source, around, function.attr.value)) if around is not None else []
    return bool(values) and all(
        isinstance(each, cst.Call)
        and any(name.startswith("torch.nn.") and name.endswith("Loss") for name in source.names(each.func))
        for each in values
    )


def _is_differentiated(source: Source, node: cst.BaseExpression) -> bool:
    """Whether the function around differentiates the same expression: only floats have gradients."""
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    code = source.code(node)
    for call in source.every(cst.Call, scope_of(source, node)):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
            around = call.func.value
            scaled = isinstance(around, cst.Call) and call_name(around) == "scale" and len(around.args) == 1
            of = around.args[0].value if scaled and isinstance(around, cst.Call) else around
            if source.code(of) == code:
                return True
    return False


def number_kind(source: Source, node: cst.BaseExpression, depth: int = 0) -> Kind | None:
    """The kind of a number of Python's; None for what may be a tensor, or anything."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, cst.Integer):
        return Kind.WHOLE
    if isinstance(node, cst.Float):
        return Kind.FLOAT
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus | cst.Plus):
        return number_kind(source, node.expression, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        sides = {number_kind(source, each, depth + 1) for each in (node.left, node.right)}
        if None in sides:
            return None
        return Kind.FLOAT if Kind.FLOAT in sides or isinstance(node.operator, cst.Divide) else Kind.WHOLE
    if isinstance(node, cst.Subscript):
        value = node.value
        shape = isinstance(value, cst.Attribute) and value.attr.value == "shape"
        return Kind.WHOLE if shape and isinstance(node.slice[0].slice, cst.Index) else None
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name):
            return {"len": Kind.WHOLE, "int": Kind.WHOLE, "float": Kind.FLOAT}.get(node.func.value)
        sized = call_name(node) == "numel" or (call_name(node) == "size" and len(node.args) == 1)
        return Kind.WHOLE if sized else None
    if isinstance(node, cst.Name):
        if any(counter_of(source, loop) == node.value for loop in loops_around(source, node)):
            return Kind.WHOLE
        values = bound_to(source, node)
        kinds = {
            number_kind(source, each, depth + 1) if isinstance(each, cst.BaseExpression) else None for each in values
        }
        if None in kinds or not kinds:
            return None
        return Kind.FLOAT if Kind.FLOAT in kinds else Kind.WHOLE
    return None


def is_number(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is evidently a number of Python's, and no tensor."""
    return number_kind(source, node) is not None


def is_fresh(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression makes a tensor of its own, which nothing else can write to."""
    if isinstance(node, cst.BinaryOperation | cst.Comparison):
        return True
    if not isinstance(node, cst.Call) or call_name(node) in source.function_names:
        return False
    method = isinstance(node.func, cst.Attribute)
    of_torch = any(name.startswith("torch.") for name in source.names(node.func))
    return (method or of_torch) and call_name(node) in _NEW


def is_reduced(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is evidently a tensor without axes: a reduction of all there is."""
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return all(is_reduced(source, each) or is_number(source, each) for each in sides)
    if not isinstance(node, cst.Call) or call_name(node) in source.function_names:
        return False
    if isinstance(node.func, cst.Attribute) and not any(n.startswith("torch.") for n in source.names(node.func)):
        return call_name(node) in _REDUCES and not node.args
    return call_name(node) in _REDUCES | {"cross_entropy", "mse_loss", "l1_loss", "nll_loss"} and len(node.args) <= 2
