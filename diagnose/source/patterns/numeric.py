"""Plain Python numbers among tensors: whether an expression is one, and whether two of them are the same."""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, definition_of, in_module
from diagnose.source.patterns.formula import certain, constant, integer, operation
from diagnose.source.settings.defaults import assigned, defaults_of
from diagnose.source.tree.attributes import member
from diagnose.source.tree.syntax import Source

_KEEPS_LAST = frozenset({"contiguous", "to", "float", "type_as", "clone", "unbind", "half", "bfloat16"})


def is_number(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is surely no tensor: made of literals, sizes, settings and functions of `math`."""
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
        return is_number(source, node.left) and is_number(source, node.right)
    if isinstance(node, cst.UnaryOperation):
        return is_number(source, node.expression)
    if isinstance(node, cst.IfExp):
        return is_number(source, node.body) and is_number(source, node.orelse)
    if isinstance(node, cst.Subscript):
        return _is_shape(node.value)
    if isinstance(node, cst.Call):
        return _is_numeric_call(source, node)
    if isinstance(node, cst.Name):
        return _is_numeric_name(source, node)
    if isinstance(node, cst.Attribute):
        kept = member(source, node)
        if kept is not None:
            return is_number(source, kept)
        return _is_setting(source, node)
    return False


def _is_setting(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an attribute of something that holds settings is a number, by what this file does with it.

    The file gives it a number, or uses it where nothing but a number can stand: the size of a layer, `range`, `//`.
    """
    if not isinstance(node, cst.Attribute):
        return False
    name = node.attr.value
    given = [default.value for default in defaults_of(source, name)] + list(assigned(source, name))
    if given:
        return all(isinstance(each, cst.Integer | cst.Float) or constant(source, each) is not None for each in given)
    return any(each.attr.value == name and _stands_for_number(source, each) for each in source.every(cst.Attribute))


def _stands_for_number(source: Source, node: cst.Attribute) -> bool:
    around = source.parent(node)
    if isinstance(around, cst.BinaryOperation):
        return isinstance(around.operator, cst.FloorDivide)
    call = source.parent(around) if isinstance(around, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    names = [name for name in source.names(call.func) if not name.startswith("torch.nn.functional.")]
    return any(name == "builtins.range" or name.startswith(("torch.nn.", "math.")) for name in names)


def _is_shape(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Attribute):
        return node.attr.value == "shape"
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "size"


def _is_numeric_call(source: Source, call: cst.Call) -> bool:
    given = [arg.value for arg in call.args]
    names = source.names(call.func)
    if any(name.startswith(("math.", "numpy.sqrt", "builtins.")) for name in names):
        return all(is_number(source, value) for value in given)
    return _is_shape(call) and len(given) == 1


def _is_numeric_name(source: Source, node: cst.Name) -> bool:
    found = definition_of(source, node)
    if found.bound is Bound.OUTER:
        found = in_module(source, node.value) or found
    if found.assigned is not None:
        return is_number(source, found.assigned)
    if found.bound is Bound.UNPACKED and isinstance(found.value, cst.BaseExpression):
        value = found.value
        return _is_shape(value) or (isinstance(value, cst.Subscript) and _is_shape(value.value))
    if found.bound is Bound.PARAMETER and isinstance(found.statement, cst.FunctionDef):
        for parameter in [*found.statement.params.params, *found.statement.params.kwonly_params]:
            if parameter.name.value == node.value:
                if parameter.annotation is not None:
                    return source.code(parameter.annotation.annotation).split(" ")[0] in {"int", "float"}
                return found.statement.name.value == "__init__"
    return False


def canonical(source: Source, node: cst.BaseExpression) -> str:
    """A text that two expressions share only where they are the same number."""
    if isinstance(node, cst.Integer | cst.Float):
        return node.value
    if isinstance(node, cst.BinaryOperation):
        operator = type(node.operator).__name__
        return f"({canonical(source, node.left)} {operator} {canonical(source, node.right)})"
    if isinstance(node, cst.Name):
        found = definition_of(source, node)
        if found.assigned is not None:
            return canonical(source, found.assigned)
        return node.value if found.bound is Bound.OUTER else f"{node.value}@{id(found.statement)}"
    if isinstance(node, cst.Attribute):
        kept = member(source, node)
        return canonical(source, kept) if kept is not None else source.code(node)
    if isinstance(node, cst.Call) and source.code(node.func) == "int" and len(node.args) == 1:
        return canonical(source, node.args[0].value)
    return f"{source.code(node)}@{id(node)}"


def root_of(source: Source, node: cst.BaseExpression, inverse: bool = False) -> cst.BaseExpression | None:
    """The x of an expression that is √x (or, `inverse`, 1 / √x); None for others."""
    kept = member(source, node)
    if kept is not None:
        return root_of(source, kept, inverse)
    made = certain(source, node)
    if made is None:
        return None
    if made.name == "float" and len(made.operands) == 1:
        return root_of(source, made.operands[0], inverse)
    if made.name == "sqrt" and not inverse:
        return made.operands[0]
    if made.name == "rsqrt" and inverse:
        return made.operands[0]
    if made.name == "pow":
        power = constant(source, made.operands[1])
        return made.operands[0] if power == (-0.5 if inverse else 0.5) else None
    if made.name == "div" and inverse and constant(source, made.operands[0]) == 1:
        return root_of(source, made.operands[1])
    return None


def last_size(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression for the size of a tensor's last dimension, where the way that it was made says so."""
    axes = 2
    for _ in range(12):
        if isinstance(node, cst.Name):
            found = definition_of(source, node)
            if found.bound is Bound.UNPACKED and isinstance(found.value, cst.BaseExpression):
                value = found.value
                if isinstance(value, cst.Tuple):  # a, b = x, y
                    return None
                node = value
                continue
        if isinstance(node, cst.Subscript):
            simple = all(
                isinstance(each.slice, cst.Index) and integer(each.slice.value) is not None for each in node.slice
            )
            if not simple:
                return None
            node = node.value
            continue
        made = operation(source, node)
        if made is None or not made.operands:
            return None
        if made.name in {"view", "reshape", "unflatten"} and made.method:
            sizes = made.operands[1:]
            if len(sizes) == 1 and isinstance(sizes[0], cst.Tuple):
                sizes = tuple(element.value for element in sizes[0].elements)
            return sizes[-1] if len(sizes) >= axes and integer(sizes[-1]) != -1 else None
        linear = made.module is not None and "torch.nn.Linear" in source.names(made.module.func)
        if linear and made.module is not None and len(made.module.args) > 1 and axes == 2:
            return made.module.args[1].value
        if not _keeps_last(made.name, made.operands):
            return None
        if made.name == "transpose" and any(integer(axis) == 2 for axis in made.operands[1:]):
            axes = 4  # of three axes it would be the last one that moves
        node = made.operands[0]
    return None


def _keeps_last(name: str, operands: tuple[cst.BaseExpression, ...]) -> bool:
    if name in _KEEPS_LAST:
        return True
    if name == "transpose":
        return all(integer(axis) in {0, 1, 2} for axis in operands[1:]) and len(operands) == 3
    if name == "permute":
        axes = operands[1:]
        if len(axes) == 1 and isinstance(axes[0], cst.Tuple):
            axes = tuple(element.value for element in axes[0].elements)
        return integer(axes[-1]) == len(axes) - 1 if axes else False
    return False
