"""NumPy expressions over tensors that were copied to the host, as what torch calls the same on the device.

Only what means the same in both is translated: element-wise functions, indexing with numbers, comparisons, and
reductions to one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import libcst as cst

from diagnose.source.dataflow.bindings import dotted
from diagnose.source.tree.syntax import Source

_ELEMENTWISE = {"abs": "abs", "absolute": "abs", "sqrt": "sqrt", "square": "square", "exp": "exp", "log": "log"}
_TESTS = {"isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite"}
_REDUCTIONS = {"max": "max", "amax": "max", "min": "min", "amin": "min", "mean": "mean", "sum": "sum"}
_LOGIC = {"any": "any", "all": "all"}


@dataclass(frozen=True, slots=True)
class Translation:
    """Code that computes the same with tensors."""

    code: str
    kind: str
    """`float`, `bool`, `int`, or `number` for a literal."""
    reduced: bool = False
    """A tensor of one element; its value is read by `.item()`."""
    exact: bool = True
    """Bit for bit the same number; False where sums are added up in another order."""
    read: bool = False
    """A Python number already."""
    count: str | None = None
    """What the number that is read has to be divided by in Python, for the mean of a mask.

    Devices multiply by the reciprocal, which may differ from NumPy's quotient in the last digit.
    """

    @property
    def number(self) -> str:
        """Code that reads the number."""
        return f"{self.code}.item()" + (f" / {self.count}" if self.count is not None else "")


def copied_tensor(source: Source, node: cst.BaseExpression) -> str | None:
    """The tensor in `tensor.cpu().numpy()` or `tensor.cpu()`, as code; None for other expressions."""
    steps = [node]
    while isinstance(steps[-1], cst.Call) and isinstance(steps[-1].func, cst.Attribute):
        steps.append(steps[-1].func.value)
    for call, inner in pairwise(steps):
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return None
        name = call.func.attr.value
        to_host = name == "to" and len(call.args) == 1 and source.code(call.args[0].value) in {"'cpu'", '"cpu"'}
        if (name == "cpu" and not call.args) or to_host:
            return source.code(inner)
        if name != "numpy" or call.args:
            return None
    return None


def leaf(code: str, tensor: str) -> Translation:
    """A copied tensor, under the code that stands for it; what made it tells what numbers it has."""
    if ".float()" in tensor or ".double()" in tensor:
        return Translation(code, "float")
    return Translation(code, "int" if "argmax(" in tensor else "unknown")


def translated_use(
    source: Source, use: cst.BaseExpression, leaves: Mapping[cst.CSTNode, Translation]
) -> tuple[cst.BaseExpression, Translation] | None:
    """The largest expression around a leaf that can be computed with tensors and ends in one number."""
    best: tuple[cst.BaseExpression, Translation] | None = None
    for node in (use, *source.ancestors(use)):
        if isinstance(node, cst.BaseExpression):
            found = as_torch(source, node, leaves)
            if found is not None:
                best = (node, found)
        elif not isinstance(node, cst.Arg | cst.ComparisonTarget):
            break
    if best is None or not best[1].reduced or not best[1].exact:
        return None  # a sum in another order has other last digits
    node, found = best
    if found.read:
        return (node, _in_parentheses(source, node, found))
    shown = source.parent(node)
    formatted = isinstance(shown, cst.FormattedStringExpression) and shown.format_spec is not None
    # A number of NumPy's prints otherwise than one of Python's, and computes otherwise in single precision.
    return (node, replace(found, code=found.number, read=True)) if formatted else None


def _in_parentheses(source: Source, node: cst.BaseExpression, found: Translation) -> Translation:
    """Code of a quotient, in parentheses where it is a part of an expression."""
    around = source.parent(node)
    alone = isinstance(around, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.Arg | cst.Return)
    return found if found.count is None or alone else replace(found, code=f"({found.code})")


def as_torch(source: Source, node: cst.BaseExpression, leaves: Mapping[cst.CSTNode, Translation]) -> Translation | None:
    """An expression with tensors in the place of `leaves`; None where it has other parts, or means something else."""
    if node in leaves:
        return leaves[node]
    if isinstance(node, cst.Integer | cst.Float):
        return Translation(source.code(node), "number")
    if isinstance(node, cst.Subscript):
        return _indexed(source, node, leaves)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        return _operation(source, node.left, node.comparisons[0].comparator, leaves, "bool")
    if isinstance(node, cst.BinaryOperation) and isinstance(
        node.operator, cst.Add | cst.Subtract | cst.Multiply | cst.Divide
    ):
        return _operation(source, node.left, node.right, leaves, "float")
    if isinstance(node, cst.Call):
        return _call(source, node, leaves)
    return None


def _indexed(source: Source, node: cst.Subscript, leaves: Mapping[cst.CSTNode, Translation]) -> Translation | None:
    base = as_torch(source, node.value, leaves)
    if base is None or base.reduced or base.kind == "number":
        return None
    plain = (cst.Integer, cst.UnaryOperation, cst.Slice, cst.Index, cst.SubscriptElement, cst.Ellipsis, cst.Minus)
    for part in node.slice:
        if any(isinstance(each, cst.BaseExpression) and not isinstance(each, plain) for each in source.walk(part)):
            return None
        if isinstance(part.slice, cst.Slice) and isinstance(part.slice.step, cst.UnaryOperation):
            return None  # tensors have no negative strides
    start, end = source.wide_span(node.value)[1], source.wide_span(node)[1]
    return replace(base, code=base.code + source.text[start:end])


def _operation(
    source: Source,
    left: cst.BaseExpression,
    right: cst.BaseExpression,
    leaves: Mapping[cst.CSTNode, Translation],
    kind: str,
) -> Translation | None:
    one, two = as_torch(source, left, leaves), as_torch(source, right, leaves)
    if one is None or two is None or one.read or two.read or one.count or two.count or one.kind == two.kind == "number":
        return None
    middle = source.text[source.wide_span(left)[1] : source.wide_span(right)[0]]
    code = f"({one.code}{middle}{two.code})"
    return Translation(code, kind, one.reduced and two.reduced, one.exact and two.exact)


def _call(source: Source, node: cst.Call, leaves: Mapping[cst.CSTNode, Translation]) -> Translation | None:
    function = node.func
    if isinstance(function, cst.Name) and function.value in {"float", "int"} and len(node.args) == 1:
        return _converted(source, node, function.value, leaves)
    if not isinstance(function, cst.Attribute):
        return None
    name = function.attr.value
    if dotted(function) and any(found.startswith("numpy.") for found in source.names(function)):
        inner = node.args[0].value if len(node.args) == 1 and node.args[0].keyword is None else None
    else:
        inner = function.value if not node.args else None
    base = as_torch(source, inner, leaves) if inner is not None else None
    if base is None or base.read or base.kind == "number":
        return None
    if name == "item" and base.reduced:
        return replace(base, code=base.number, read=True)
    if base.reduced:
        return None
    if name in _ELEMENTWISE:
        return replace(base, code=f"{base.code}.{_ELEMENTWISE[name]}()", exact=base.exact and name == "abs")
    if name in _TESTS:
        return replace(base, code=f"{base.code}.{_TESTS[name]}()", kind="bool")
    if name in _LOGIC and base.kind == "bool":
        return replace(base, code=f"{base.code}.{_LOGIC[name]}()", reduced=True)
    if name in _REDUCTIONS:
        return _reduced(base, _REDUCTIONS[name])
    return None


def _reduced(base: Translation, name: str) -> Translation | None:
    if name == "mean" and base.kind == "bool":
        return replace(base, code=f"{base.code}.sum()", kind="float", reduced=True, count=f"{base.code}.numel()")
    if name in {"max", "min"}:
        return replace(base, code=f"{base.code}.{name}()", reduced=True)
    if base.kind == "unknown":
        return None  # a mean of integers is another thing in torch, and a sum of half floats has another format
    kind = "int" if base.kind == "bool" else base.kind
    return replace(base, code=f"{base.code}.{name}()", kind=kind, reduced=True, exact=base.kind == "bool")


def _converted(
    source: Source, node: cst.Call, to: str, leaves: Mapping[cst.CSTNode, Translation]
) -> Translation | None:
    inner = as_torch(source, node.args[0].value, leaves)
    if inner is None or not inner.reduced or inner.read:
        return None
    code = inner.number
    return replace(inner, code=code if inner.kind == to else f"{to}({code})", kind=to, read=True)
