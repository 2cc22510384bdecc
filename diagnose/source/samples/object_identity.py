"""Which expressions stand for objects that a dataset or the program keeps, or for parts of what a function is given.

A part of a list, a view of a tensor and what a function of the program's hands back of its own are the objects
themselves; what an operation computes is another object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, is_plain
from diagnose.source.dataflow.flow import within
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

SAME_MEMORY = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "transpose", "permute", "expand", "float", "double"}
    | {"long", "int", "half", "to", "type", "contiguous", "numpy", "detach", "cpu", "from_numpy", "as_tensor", "ravel"}
    | {"asarray", "narrow", "select", "unfold", "get", "setdefault", "swapaxes", "movedim", "items", "values"}
)
"""Calls whose result may lie in the memory of what they are called on."""
_MODULES = frozenset({"np", "numpy", "torch"})
_UNLESS_COPIED = frozenset({"astype", "array"})
"""Calls whose result is the memory itself where they are told not to copy."""
_GATHER = frozenset({"tuple", "list", "dict", "zip", "sorted", "reversed", "enumerate", "iter", "next", "filter"})
"""Builtins whose results hold the objects that they are given."""
_FACTS = frozenset({"shape", "dtype", "device", "ndim", "size", "width", "height", "mode", "name"})
"""Attributes that tell of an object and are no part of it."""
_KEPT = frozenset({"functools.lru_cache", "functools.cache"})


def root_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """`x` of `x.a[0].b`, of `x.view(2)` and of `torch.from_numpy(x)`: what the memory or the object is reached by."""
    while True:
        if isinstance(node, cst.Subscript | cst.Attribute):
            node = node.value
            continue
        inner = _same_memory(node) if isinstance(node, cst.Call) else None
        if inner is None:
            return node
        node = inner


def _same_memory(call: cst.Call) -> cst.BaseExpression | None:
    """Return what the result of a call may lie in the memory of; None where it is another object."""
    filled = argument(call, "out")
    if filled is not None:
        return filled.value
    copies = argument(call, "copy")
    uncopied = copies is not None and isinstance(copies.value, cst.Name) and copies.value.value == "False"
    if call_name(call) not in SAME_MEMORY and not (uncopied and call_name(call) in _UNLESS_COPIED):
        return None
    function = call.func
    if isinstance(function, cst.Attribute) and not (
        isinstance(function.value, cst.Name) and function.value.value in _MODULES
    ):
        return function.value
    taken = isinstance(function, cst.Attribute) or call_name(call) in {"from_numpy", "as_tensor", "asarray"}
    return call.args[0].value if call.args and taken else None


_WITH_A_TARGET = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)
_BINDING = (*_WITH_A_TARGET, cst.AsName, cst.FunctionDef, cst.ClassDef)


@per_source
def local_names(source: Source, function: cst.CSTNode) -> frozenset[str]:
    """The variables of a function and of those in it: parameters, and what it binds without declaring it another's."""
    named = {each.name.value for each in source.every(cst.Param, function) if isinstance(each.name, cst.Name)}
    for node in source.walk(function, *_BINDING):
        targets: list[cst.CSTNode] = []
        if isinstance(node, _WITH_A_TARGET):
            targets = [node.target]
        elif isinstance(node, cst.AsName) or (
            isinstance(node, cst.FunctionDef | cst.ClassDef) and node is not function
        ):
            targets = [node.name]
        for target in targets:
            if isinstance(target, cst.Name):
                named.add(target.value)
            elif isinstance(target, cst.Tuple | cst.List):
                named |= {each.value for each in source.every(cst.Name, target) if _binds(source, each, target)}
    declared = {item.name.value for item in source.every(cst.NameItem, function)}
    return frozenset(named - declared)


_MAKE = (
    *(f"builtins.{name}" for name in ("list", "dict", "set", "bytearray")),
    *(f"collections.{name}" for name in ("defaultdict", "OrderedDict", "Counter", "deque")),
    *(f"{module}.{name}" for module in ("torch", "numpy") for name in ("zeros", "ones", "empty", "full", "arange")),
    *(f"{module}.{name}_like" for module in ("torch", "numpy") for name in ("zeros", "ones", "empty", "full")),
    *(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "tensor")),
)
"""Whose results are new objects, which nobody else has."""
_PURE_READS = tuple(f"builtins.{name}" for name in ("len", "print", "isinstance", "bool", "int", "float", "str"))
"""Functions that keep nothing of what they are given and return nothing of it."""
_ENDS = (
    cst.AssignTarget,
    cst.Del,
    cst.If,
    cst.While,
    cst.Assert,
    cst.Comparison,
    cst.Return,
    cst.FormattedStringExpression,
)
"""What binds, tests or returns a value, and hands it on to nobody else."""
_PURE_METHODS = frozenset({"item", "append", "extend", "add", "update", "fill_", "zero_", "mul_", "add_", "div_"})
"""Methods that keep nothing of what they are called on and return nothing of it where a statement calls them."""


@per_source
def is_made_within(source: Source, name: cst.Name) -> bool:
    """Whether a variable of a function is only what that function makes, and nobody gets before it is returned."""
    function = source.inside(name, (cst.FunctionDef, cst.Lambda))
    if not isinstance(function, cst.FunctionDef) or any(source.every(cst.Yield, function)):
        return False
    made = bound_to(source, name) if name.value in local_names(source, function) else []
    part = source.parent(name)
    inner = isinstance(part, cst.Subscript) and isinstance(source.parent(part), cst.Subscript | cst.Attribute)
    if inner and not all(
        isinstance(each, cst.Call) and source.is_called(each.func, "torch.", "numpy.") for each in made
    ):
        return False  # an object in a list, which may be another's
    return (
        bool(made)
        and all(_is_new(source, value) for value in made)
        and all(_is_kept_within(source, each, function) for each in source.named(name.value, function))
    )


def _is_new(source: Source, value: cst.CSTNode) -> bool:
    if isinstance(value, cst.Call):
        return source.is_called(value.func, *_MAKE) and argument(value, "out") is None
    return isinstance(value, cst.List | cst.Dict | cst.Set | cst.ListComp | cst.DictComp | cst.SetComp)


def _is_kept_within(source: Source, use: cst.Name | cst.Attribute, function: cst.FunctionDef) -> bool:
    """Whether a use of a variable binds it, reads it, changes it or returns it."""
    parent = source.parent(use)
    if is_attribute_name(source, use):
        return True  # another's attribute of this name
    if source.inside(use, (cst.FunctionDef, cst.Lambda)) is not function:
        return False
    if isinstance(parent, cst.Arg) and parent.keyword is use:
        return True
    return _ends_within(source, use)


def _ends_within(source: Source, use: cst.CSTNode) -> bool:
    """Whether what an expression around a use hands on is lost in the function, but for what that returns."""
    below = use
    for above in source.ancestors(use):
        if isinstance(above, cst.Arg):
            call = source.parent(above)
            return isinstance(call, cst.Call) and source.is_called(call.func, *_PURE_READS)
        if isinstance(above, cst.Call):
            called = above.func is below and isinstance(below, cst.Attribute) and below.attr.value in _PURE_METHODS
            return called and (call_name(above) == "item" or isinstance(source.parent(above), cst.Expr))
        if isinstance(above, cst.Attribute) and above.value is below and above.attr.value in _FACTS:
            return not isinstance(source.parent(above), cst.Call)
        if isinstance(above, cst.AugAssign):
            return above.target is below
        if isinstance(above, _ENDS):
            return True
        if not isinstance(above, cst.Attribute | cst.Subscript | cst.Element | cst.Tuple | cst.ComparisonTarget):
            return False
        below = above
    return False


def _binds(source: Source, name: cst.Name, target: cst.CSTNode) -> bool:
    for above in source.ancestors(name):
        if above is target:
            return True
        if isinstance(above, cst.Attribute | cst.Subscript | cst.Call):
            return False
    return False


def is_alias(code: SampleCode, path: str, function: cst.CSTNode, node: cst.BaseExpression, depth: int = 4) -> bool:
    """Whether an expression may be an object that the dataset or the program keeps, and no copy of it."""
    source = code.sources[path]
    if isinstance(node, cst.IfExp):
        return any(is_alias(code, path, function, each, depth) for each in (node.body, node.orelse))
    root = root_of(node)
    if isinstance(root, cst.Call) and depth > 0:
        return _hands_out(code, path, function, root, depth - 1)
    if not isinstance(root, cst.Name) or depth == 0:
        return False
    if is_own(source, root):
        return root is not node and (source.inside(node, cst.ClassDef) in code.lasting)
    if root.value not in local_names(source, function):
        known = not source.names(root) & {"builtins." + root.value} and _is_global(source, root)
        return known and (root is not node or not is_plain(source, root))
    values = [
        assign.value
        for assign in source.every(cst.Assign, function)
        if any(root.value == getattr(each.target, "value", None) for each in assign.targets)
    ]
    for assign in source.every(cst.Assign, function):
        for each in assign.targets:
            if isinstance(each.target, cst.Tuple) and any(
                isinstance(one.value, cst.Name) and one.value.value == root.value for one in each.target.elements
            ):
                whole = assign.value
                pairs = isinstance(whole, cst.Tuple) and len(whole.elements) == len(each.target.elements)
                values += [
                    whole.elements[at].value if pairs and isinstance(whole, cst.Tuple) else whole
                    for at, one in enumerate(each.target.elements)
                    if isinstance(one.value, cst.Name) and one.value.value == root.value
                ]
    values += [
        loop.iter
        for loop in source.walk(function, cst.For, cst.CompFor)
        if isinstance(loop, cst.For | cst.CompFor)
        and any(each.value == root.value for each in source.every(cst.Name, loop.target))
    ]
    return any(not within(source, root, value) and is_alias(code, path, function, value, depth - 1) for value in values)


def _hands_out(code: SampleCode, path: str, function: cst.CSTNode, call: cst.Call, depth: int) -> bool:
    """Whether a call of a function of the program's may return an object that is kept, or that it is given."""
    if isinstance(call.func, cst.Attribute):
        made = [*attribute_values(code.sources, call.func)]
    else:
        made = [*code.values(path, call.func)] if isinstance(call.func, cst.Name) else []
    if any(_is_keeping(code.sources[file], value) for file, value in made):
        return True
    for file, found in code.defined.named(call_name(call)):
        its = code.sources[file]
        if not isinstance(found, cst.FunctionDef) or found is function:
            continue
        if any(_is_keeping(its, each.decorator) for each in found.decorators):
            return True
        returned = [each.value for each in its.every(cst.Return, found) if each.value is not None]
        if any(is_alias(code, file, found, value, depth) for value in returned):
            return True
        given = any(is_alias(code, path, function, arg.value, depth) for arg in call.args)
        if given and hands_on(its, found):
            return True
    return False


def _is_keeping(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a decorator lets a function keep results: `lru_cache`, `lru_cache(maxsize=9)`, `cache(self.load)`."""
    while isinstance(node, cst.Call):
        node = node.func
    return not source.names(node).isdisjoint(_KEPT)


def attribute_values(sources: Mapping[str, Source], node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what the program binds to attributes of the name that an expression such as `self.data` ends with."""
    if not isinstance(node, cst.Attribute):
        return
    for path, source in sources.items():
        for assign in source.every(cst.Assign) if node.attr.value in source.words else ():
            targets = [each for target in assign.targets for each in _each(target.target)]
            if any(isinstance(one, cst.Attribute) and one.attr.value == node.attr.value for one in targets):
                yield path, assign.value


def _each(target: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    return [each.value for each in target.elements] if isinstance(target, cst.Tuple | cst.List) else [target]


def _is_global(source: Source, name: cst.Name) -> bool:
    """Whether a free name is an object of the program's, and no module, function or class."""
    found = bound_to(source, name)
    return any(not isinstance(each, cst.FunctionDef | cst.ClassDef) for each in found)


def is_own(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a name is that of the object whose method it stands in, or of its class: `self`, however it is called."""
    if not isinstance(node, cst.Name):
        return False
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef) and isinstance(
            source.parent(source.parent(above) or above), cst.ClassDef
        ):
            static = any(source.code(each.decorator) == "staticmethod" for each in above.decorators)
            first = next(iter((*above.params.posonly_params, *above.params.params)), None)
            return not static and first is not None and first.name.value == node.value
    return node.value in {"self", "cls"}


def hands_on(source: Source, function: cst.FunctionDef | cst.Lambda) -> bool:
    """Whether a function returns objects of what it is given, and no copies of them."""
    names = parts_of(source, function, parameters(source, function))
    if isinstance(function, cst.Lambda):
        return is_part(function.body, names)
    returned = (each.value for each in source.every(cst.Return, function))
    return any(value is not None and is_part(value, names) for value in returned)


def parameters(source: Source, function: cst.FunctionDef | cst.Lambda) -> set[str]:
    """The names of what a function is given, but for the object that it is a method of."""
    return {param.name.value for param in source.every(cst.Param, function.params)} - {"self", "cls"}


def parts_of(source: Source, scope: cst.CSTNode, names: set[str]) -> set[str]:
    """The names, and those of variables that are bound to parts of their objects."""
    found = {*names}
    before = -1
    while len(found) > before:
        before = len(found)
        for target, value in _bindings(source, scope):
            if is_part(value, found):
                found |= {each.value for each in bound_names(target)}
    return found


@per_source
def _bindings(source: Source, scope: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Targets of a scope, each with what it is bound to or goes through."""
    found: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    for node in source.walk(scope, cst.Assign, cst.For, cst.CompFor, cst.NamedExpr):
        if isinstance(node, cst.Assign):
            found += [(each.target, node.value) for each in node.targets]
        elif isinstance(node, cst.For | cst.CompFor):
            found.append((node.target, node.iter))
        elif isinstance(node, cst.NamedExpr):
            found.append((node.target, node.value))
    return found


def bound_names(target: cst.BaseExpression) -> list[cst.Name]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in bound_names(element.value)]
    return [target] if isinstance(target, cst.Name) else []


def is_part(node: cst.BaseExpression, names: set[str]) -> bool:
    """Whether an expression may be an object that one of the names holds, or gather such."""
    pending: list[cst.BaseExpression] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, cst.Name) and each.value in names:
            return True
        if isinstance(each, cst.Subscript | cst.NamedExpr):
            pending.append(each.value)
        elif isinstance(each, cst.Attribute):
            pending += [] if each.attr.value in _FACTS else [each.value]
        elif isinstance(each, cst.IfExp):
            pending += [each.body, each.orelse]
        elif isinstance(each, cst.Tuple | cst.List | cst.Dict):
            pending += [one.value for one in each.elements]
        elif isinstance(each, cst.ListComp | cst.GeneratorExp):
            pending.append(each.elt)
        elif isinstance(each, cst.DictComp):
            pending.append(each.value)
        elif isinstance(each, cst.Call) and isinstance(each.func, cst.Name) and each.func.value in _GATHER:
            pending += [arg.value for arg in each.args]
        elif isinstance(each, cst.Call) and (inner := _same_memory(each)) is not None:
            pending.append(inner)
    return False


def changes_object(source: Source, target: cst.BaseExpression) -> bool:
    """Whether a statement changes the object that a name stands for, and does not bind the name."""
    return isinstance(source.parent(target), cst.AugAssign | cst.Attribute | cst.Arg | cst.Subscript)
