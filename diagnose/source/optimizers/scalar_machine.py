"""Follows a small part of Python on single numbers: enough for the arithmetic of an optimizer, and nothing else.

A tensor is one number that can be changed in place, as torch's can. Names of the program are not looked up outside of
the class, nothing is imported, and no call is made but those listed here; all else raises NotUnderstoodError.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Machine", "NotUnderstoodError", "Tensor"]

_MOST_STEPS = 20_000


class NotUnderstoodError(Exception):
    """The program does something that is not followed."""


class Tensor:
    """One number of a tensor."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.grad: Tensor | None = None


class _Known:
    """A module, or a function of one, by its dotted name."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, holder: item in holder,
    ast.NotIn: lambda item, holder: item not in holder,
}
_TENSOR: Mapping[str, Callable[..., float]] = {
    "add": lambda x, other, alpha=1: x + alpha * other,
    "sub": lambda x, other, alpha=1: x - alpha * other,
    "mul": lambda x, other: x * other,
    "div": lambda x, other: x / other,
    "pow": lambda x, exponent: x**exponent,
    "addcmul": lambda x, one, other, value=1: x + value * one * other,
    "addcdiv": lambda x, one, other, value=1: x + value * one / other,
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "square": lambda x: x * x,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "clone": lambda x: x,
    "copy": lambda _x, other: other,
    "zero": lambda _x: 0.0,
}
_ONLY_IN_PLACE = frozenset({"copy", "zero"})
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "math.sqrt": math.sqrt,
    "math.pow": math.pow,
    "len": len,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
    "zip": zip,
    "list": list,
    "dict": dict,
    "tuple": tuple,
}
_OF_DICT = frozenset({"get", "setdefault", "update", "items", "values", "keys"})
_FACTS = {"is_sparse": False, "requires_grad": True}


class Machine:
    """An instance of an optimizer's class."""

    def __init__(self, tree: ast.Module, methods: Mapping[str, ast.FunctionDef], parameters: Sequence[Tensor]) -> None:
        self._methods = methods
        self._parameters = list(parameters)
        self._attributes: dict[str, Any] = {"state": defaultdict(dict)}
        self._imported = dict(_imports(tree))
        self._steps = 0

    def call(self, method: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Run a method of the class."""
        function = self._methods[method]
        listed = function.args
        if listed.vararg or listed.kwarg:
            raise NotUnderstoodError(f"{method} takes more than it names")
        names = [each.arg for each in listed.args]
        static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
        names = names if static else names[1:]
        names_with_default = dict(zip(reversed(names), reversed(listed.defaults), strict=False))
        names_with_default |= {
            each.arg: value for each, value in zip(listed.kwonlyargs, listed.kw_defaults, strict=True) if value
        }
        given = {**dict(zip(names, positional, strict=False)), **keywords}
        scope: dict[str, Any] = {} if static else {function.args.args[0].arg: self}
        for name in (*names, *(each.arg for each in listed.kwonlyargs)):
            if name not in given and name not in names_with_default:
                raise NotUnderstoodError(f"{method} is given no {name}")
            scope[name] = given[name] if name in given else self._value(names_with_default[name], {})
        try:
            self._run(function.body, scope)
        except _Return as result:
            return result.value
        return None

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise NotUnderstoodError("does not come to an end")
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Assign():
                value = self._value(node.value, scope)
                for target in node.targets:
                    self._bind(target, value, scope)
            case ast.AnnAssign(value=ast.expr()):
                assert node.value is not None
                self._bind(node.target, self._value(node.value, scope), scope)
            case ast.AugAssign():
                self._augment(node, scope)
            case ast.Expr():
                if not isinstance(node.value, ast.Constant):
                    self._value(node.value, scope)
            case ast.If():
                self._run(node.body if self._truth(node.test, scope) else node.orelse, scope)
            case ast.For(orelse=[]):
                self._loop(node, scope)
            case ast.With():
                for item in node.items:
                    if ast.unparse(item.context_expr) not in {"torch.no_grad()", "torch.enable_grad()"}:
                        raise NotUnderstoodError("enters a context")
                self._run(node.body, scope)
            case ast.Return():
                raise _Return(self._value(node.value, scope) if node.value else None)
            case ast.Continue():
                raise _Continue
            case ast.Break():
                raise _Break
            case ast.Pass():
                pass
            case ast.Assert():
                if not self._truth(node.test, scope):
                    raise NotUnderstoodError("asserts otherwise")
            case _:
                raise NotUnderstoodError(f"has a statement {type(node).__name__}")

    def _loop(self, node: ast.For, scope: dict[str, Any]) -> None:
        for item in list(self._value(node.iter, scope)):
            self._bind(node.target, item, scope)
            try:
                self._run(node.body, scope)
            except _Continue:
                continue
            except _Break:
                break

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name():
                scope[target.id] = value
            case ast.Tuple() | ast.List():
                for part, item in zip(target.elts, list(value), strict=True):
                    self._bind(part, item, scope)
            case ast.Subscript():
                self._value(target.value, scope)[self._value(target.slice, scope)] = value
            case ast.Attribute():
                owner = self._value(target.value, scope)
                if owner is self:
                    self._attributes[target.attr] = value
                elif isinstance(owner, Tensor) and target.attr == "data" and isinstance(value, Tensor):
                    owner.value = value.value
                else:
                    raise NotUnderstoodError(f"sets {target.attr}")
            case _:
                raise NotUnderstoodError("binds in a way that is not followed")

    def _augment(self, node: ast.AugAssign, scope: dict[str, Any]) -> None:
        old = self._value(node.target, scope)
        new = self._binary(node.op, old, self._value(node.value, scope))
        if isinstance(old, Tensor):
            old.value = new.value
        else:
            self._bind(node.target, new, scope)

    def _truth(self, node: ast.expr, scope: dict[str, Any]) -> bool:
        value = self._value(node, scope)
        if isinstance(value, Tensor):
            raise NotUnderstoodError("decides by a tensor")
        return bool(value)

    def _value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return scope[node.id] if node.id in scope else _Known(self._imported.get(node.id, node.id))
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Subscript():
                held, key = self._value(node.value, scope), self._value(node.slice, scope)
                return held[key]
            case ast.Tuple():
                return tuple(self._value(each, scope) for each in node.elts)
            case ast.List():
                return [self._value(each, scope) for each in node.elts]
            case ast.Dict() if None not in node.keys:
                keys = [self._value(key, scope) for key in node.keys if key is not None]
                return dict(zip(keys, [self._value(each, scope) for each in node.values], strict=True))
            case ast.BinOp():
                return self._binary(node.op, self._value(node.left, scope), self._value(node.right, scope))
            case ast.UnaryOp(op=ast.USub()):
                return self._binary(ast.Mult(), -1, self._value(node.operand, scope))
            case ast.UnaryOp(op=ast.Not()):
                return not self._truth(node.operand, scope)
            case ast.BoolOp():
                wanted = isinstance(node.op, ast.Or)
                return next((True for each in node.values if self._truth(each, scope) is wanted), False) is wanted
            case ast.IfExp():
                return self._value(node.body if self._truth(node.test, scope) else node.orelse, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.Call():
                return self._call(node, scope)
            case _:
                raise NotUnderstoodError(f"has an expression {type(node).__name__}")

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in _BINARY:
            raise NotUnderstoodError(f"computes with {type(op).__name__}")
        result = _BINARY[type(op)](_plain(left), _plain(right))
        return Tensor(result) if isinstance(left, Tensor) or isinstance(right, Tensor) else result

    def _compare(self, node: ast.Compare, scope: dict[str, Any]) -> bool:
        left = self._value(node.left, scope)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node, scope)
            tensors = isinstance(left, Tensor) or isinstance(right, Tensor)
            if tensors and not isinstance(op, ast.Is | ast.IsNot):
                raise NotUnderstoodError("compares tensors")
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def _attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        owner = self._value(node.value, scope)
        if owner is self:
            return self._attributes[node.attr]
        if isinstance(owner, _Known):
            return _Known(f"{owner.name}.{node.attr}")
        if isinstance(owner, Tensor) and node.attr in {"data", "grad"}:
            return owner if node.attr == "data" else owner.grad
        if isinstance(owner, Tensor) and node.attr in _FACTS:
            return _FACTS[node.attr]
        raise NotUnderstoodError(f"asks for {node.attr}")

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        func = node.func
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise NotUnderstoodError("passes on what it is given")
        is_super = isinstance(func, ast.Attribute) and ast.unparse(func).startswith("super(")
        positional = [self._value(each, scope) for each in node.args]
        keywords = {
            each.arg: self._value(each.value, scope)
            for each in node.keywords
            if each.arg is not None and each.arg != "memory_format"
        }
        if is_super:
            return self._built(ast.unparse(func), positional, keywords)
        if isinstance(func, ast.Attribute):
            owner = self._value(func.value, scope)
            if owner is self and func.attr in self._methods:
                return self.call(func.attr, positional, keywords)
            if isinstance(owner, Tensor):
                return _method(owner, func.attr, positional, keywords)
            if isinstance(owner, dict) and func.attr in _OF_DICT:
                return getattr(owner, func.attr)(*positional, **keywords)
        known = self._value(func, scope)
        if not isinstance(known, _Known):
            raise NotUnderstoodError("calls something that is not known")
        return _function(known.name, positional, keywords)

    def _built(self, called: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """The constructor of torch's base class."""
        values = [*positional, *(keywords[name] for name in ("params", "defaults") if name in keywords)]
        if not called.endswith(").__init__") or len(values) != 2 or values[0] != self._parameters:
            raise NotUnderstoodError("is built otherwise")
        self._attributes["defaults"] = values[1]
        self._attributes["param_groups"] = [{**values[1], "params": self._parameters}]


def _plain(value: Any) -> Any:
    number = value.value if isinstance(value, Tensor) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise NotUnderstoodError("computes with something that is no number")
    return number


def _method(tensor: Tensor, name: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """A method of a tensor: a new one, or in place where the name ends in an underscore."""
    stem = name.removesuffix("_")
    if name in {"detach", "item"} and not positional:
        return tensor if name == "detach" else tensor.value
    if stem not in _TENSOR or (stem in _ONLY_IN_PLACE and stem == name):
        raise NotUnderstoodError(f"calls {name}")
    given = {key: _plain(value) for key, value in keywords.items()}
    result = _TENSOR[stem](tensor.value, *map(_plain, positional), **given)
    if stem == name:
        return Tensor(result)
    tensor.value = result
    return tensor


def _function(name: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    if name in _PLAIN:
        return _PLAIN[name](*positional, **keywords)
    stem = name.removeprefix("torch.")
    if stem == "zeros_like" and len(positional) == 1 and not keywords:
        return Tensor(0.0)
    if stem == "tensor" and len(positional) == 1 and not keywords:
        return Tensor(float(_plain(positional[0])))
    if name.startswith("torch.") and positional and isinstance(positional[0], Tensor) and not stem.endswith("_"):
        return _method(positional[0], stem, positional[1:], keywords)
    raise NotUnderstoodError(f"calls {name}")


def _imports(tree: ast.Module) -> list[tuple[str, str]]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [(each.asname, each.name) for each in node.names if each.asname]
        elif isinstance(node, ast.ImportFrom):
            found += [(each.asname or each.name, f"{node.module}.{each.name}") for each in node.names]
    return found
