"""Where values of a number format that NumPy has not, bfloat16, reach NumPy and libraries that are made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_OF_NUMPY = ("numpy.", "sklearn.", "scipy.", "matplotlib.", "pandas.", "cv2.", "PIL.", "skimage.")
_OTHER_FORMAT = frozenset(
    {"float", "double", "long", "int", "bool", "item", "tolist", "argmax", "argmin", "argsort", "multinomial", "eq"}
    | {"len", "str", "isnan", "isfinite", "gt", "lt", "ge", "le", "ne", "nonzero", "print", "range", "cross_entropy"}
    | {"size", "dim", "numel", "isinstance", "type"}
)
"""Functions and methods whose results are whole numbers, truth values, Python's own, or of full precision."""
_NO_VALUES = frozenset({"shape", "device", "dtype", "indices", "ndim", "requires_grad"})
_WITH_INDICES = frozenset({"max", "min", "topk", "sort", "median"})
"""What gives values and then the indices of them."""
_FULL = frozenset({"float32", "float64", "float", "double", "long", "int64", "int", "uint8", "bool"})
_KEEPS = frozenset({"append", "appendleft", "extend", "insert", "update", "add"})
"""Methods by which a container takes values."""
_DEEPEST = 2  # calls from the training step down


def reach_numpy(sources: Mapping[str, Source], source: Source, scope: cst.CSTNode, half: set[str]) -> bool:
    """Whether one of these variables, or of the attributes that begin with a dot, goes to NumPy.

    So does what is made of them in the same format.
    """
    return _Values(sources).reach_numpy(source, scope, half, 0)


def made_half(source: Source, statement: cst.CSTNode) -> set[str]:
    """The variables and attributes that a statement computes, but for those of whole numbers or of other formats."""
    found: set[str] = set()
    for assign in source.every(cst.Assign, statement):
        if not _is_other(source, assign.value):
            found |= _half_targets(source, assign)
    return found


class _Values:
    """Follows values through a program's functions."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources

    def reach_numpy(self, source: Source, scope: cst.CSTNode, half: set[str], depth: int) -> bool:
        """Whether values of these variables of a scope, or what is made of them, go to NumPy."""
        known = set(half)
        while more := {name for node in source.walk(scope) for name in _made_of(source, node, known)} - known:
            known |= more
        if depth < _DEEPEST and self._leave(source, scope, half, known, depth):
            return True
        for call in source.every(cst.Call, scope):
            if _is_numpy(source, call) and any(_holds(source, each, known) for each in _inputs(call)):
                return True
            if depth < _DEEPEST and any(_holds(source, arg.value, known) for arg in call.args):
                for other, function in self._called(call):
                    passed = _parameters(source, call, function, known)
                    if passed and self.reach_numpy(other, function.body, passed, depth + 1):
                        return True
        return False

    def _leave(self, source: Source, scope: cst.CSTNode, half: set[str], known: set[str], depth: int) -> bool:
        """Whether values that a scope returns, or keeps as attributes, go to NumPy elsewhere."""
        new = known if depth == 0 else known - half
        told = {name: name[1:] for name in new if name.startswith(".")}
        returned = (each.value for each in source.every(cst.Return, scope))
        if isinstance(scope, cst.FunctionDef) and any(each and _holds(source, each, known) for each in returned):
            told[f"{scope.name.value}()"] = scope.name.value
        for key, word in told.items():
            for other in self._sources.values():
                nodes = (*other.calls_named(word), *other.attributes_named(word)) if other.mentions(word) else ()
                for place in {other.inside(node, cst.FunctionDef) or other.module for node in nodes}:
                    if place is not scope and self.reach_numpy(other, place, {key}, depth + 1):
                        return True
        return False

    def _called(self, call: cst.Call) -> Iterator[tuple[Source, cst.FunctionDef]]:
        for other in self._sources.values():
            yield from ((other, function) for function in other.functions_named(call_name(call)))


def _is_numpy(source: Source, call: cst.Call) -> bool:
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "numpy":
        return True
    return any(name.startswith(_OF_NUMPY) for name in source.imported(call.func))


def _inputs(call: cst.Call) -> Iterator[cst.BaseExpression]:
    if isinstance(call.func, cst.Attribute):
        yield call.func.value
    yield from (arg.value for arg in call.args)


def _made_of(source: Source, node: cst.CSTNode, half: set[str]) -> Iterator[str]:
    """The variables that a node gives a value of the same format."""
    if isinstance(node, cst.Assign) and _holds(source, node.value, half):
        yield from _half_targets(source, node)
    elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name) and _holds(source, node.value, half):
        yield node.target.value
    elif isinstance(node, cst.For | cst.CompFor) and _holds(source, node.iter, half):
        yield from (name.value for name in source.every(cst.Name, node.target))
    elif (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _KEEPS
        and any(_holds(source, arg.value, half) for arg in node.args)
    ):
        yield from _owners(source, node.func.value)


def _half_targets(source: Source, assign: cst.Assign) -> set[str]:
    indices = isinstance(assign.value, cst.Call) and call_name(assign.value) in _WITH_INDICES
    found: set[str] = set()
    for each in assign.targets:
        target = each.target
        values = target.elements[0].value if indices and isinstance(target, cst.Tuple) else target
        found.update(_owners(source, values))
    return found


def _owners(source: Source, target: cst.CSTNode) -> Iterator[str]:
    """The variables in what is given a value, and its attributes: `.last` of `self.last`."""
    for name in source.every(cst.Name, target):
        if is_attribute_name(source, name):
            yield f".{name.value}"
        elif name.value != "self":
            yield name.value


def _holds(source: Source, expression: cst.BaseExpression, half: set[str]) -> bool:
    """Whether an expression may have the format of one of the variables."""
    for name in source.every(cst.Name, expression):
        above = _read(source, name, half)
        while above is not None and not _is_other(source, above):
            if above is expression:
                return True
            above = source.parent(above)
    return False


def _read(source: Source, name: cst.Name, half: set[str]) -> cst.CSTNode | None:
    """The variable, the attribute, or the call of a function that a name stands in, where it has the format."""
    parent = source.parent(name)
    attribute = is_attribute_name(source, name)
    node = parent if attribute else name
    call = source.parent(node) if node is not None else None
    if isinstance(call, cst.Call) and call.func is node and f"{name.value}()" in half:
        return call
    if isinstance(parent, cst.Arg) and parent.keyword is name:
        return None
    return node if (f".{name.value}" if attribute else name.value) in half else None


def _is_other(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression has a format of its own, whatever it is made of."""
    if isinstance(node, cst.Comparison):
        return True
    if isinstance(node, cst.Attribute):
        return node.attr.value in _NO_VALUES
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Call) and call_name(node.value) in _WITH_INDICES:
        return source.code(node.slice[0]).strip("[]") == "1"
    if not isinstance(node, cst.Call):
        return False
    if call_name(node) in {"to", "type"}:
        return any(source.code(arg.value).rpartition(".")[2] in _FULL for arg in node.args)
    return call_name(node) in _OTHER_FORMAT


def _parameters(source: Source, call: cst.Call, function: cst.FunctionDef, half: set[str]) -> set[str]:
    """The parameters that get a value of the format."""
    listed = [each.name.value for each in function.params.params]
    listed = listed[1:] if listed[:1] == ["self"] else listed
    found: set[str] = set()
    for position, arg in enumerate(call.args):
        if _holds(source, arg.value, half):
            if arg.keyword is not None:
                found.add(arg.keyword.value)
            elif position < len(listed):
                found.add(listed[position])
    return found
