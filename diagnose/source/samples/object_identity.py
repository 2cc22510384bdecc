"""Which expressions stand for objects that a dataset or the program keeps, or for parts of what a function is given.

A part of a list, a view of a tensor and what a function of the program's hands back of its own are the objects
themselves; what an operation computes is another object.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, is_plain
from diagnose.source.dataflow.flow import within
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import attribute_values, elements, leaves, pairs
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

SAME_MEMORY = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "transpose", "permute", "expand", "float", "double"}
    | {"long", "int", "half", "to", "type", "contiguous", "numpy", "detach", "cpu", "from_numpy", "as_tensor", "ravel"}
    | {"asarray", "narrow", "select", "unfold", "get", "setdefault", "swapaxes", "movedim", "items", "values"}
    | {"unbind", "chunk", "tensor_split", "diagonal", "view_as", "expand_as"}
)
"""Calls whose result may lie in the memory of what they are called on."""
_ATTRIBUTES = frozenset({"getattr", "vars"})
"""Builtins that hand out attributes of what they are given."""
_MODULES = frozenset({"np", "numpy", "torch"})
_UNLESS_COPIED = frozenset({"astype", "array"})
"""Calls whose result is the memory itself where they are told not to copy."""
GATHER = frozenset({"tuple", "list", "dict", "zip", "sorted", "reversed", "enumerate", "iter", "next", "filter"})
"""Builtins whose results hold the objects that they are given."""
FACTS = frozenset({"shape", "dtype", "device", "ndim", "size", "width", "height", "mode", "name"})
"""Attributes that tell of an object and are no part of it."""
_KEPT = frozenset({"functools.lru_cache", "functools.cache"})
_DATASETS_OF_IMAGES = (
    *(f"torchvision.datasets.{name}" for name in ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "EMNIST")),
    *(f"torchvision.datasets.{name}" for name in ("SVHN", "STL10", "ImageNet", "ImageFolder", "DatasetFolder")),
)
"""Datasets that make a new image for each sample, and a number beside it."""
_PARTS_OF_DATASETS = ("torch.utils.data.Subset", "torch.utils.data.random_split")


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
    if isinstance(call.func, cst.Name) and call.func.value in _ATTRIBUTES and call.args:
        return call.args[0].value
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


def _binds(source: Source, name: cst.Name, target: cst.CSTNode) -> bool:
    for above in source.ancestors(name):
        if above is target:
            return True
        if isinstance(above, cst.Attribute | cst.Subscript | cst.Call):
            return False
    return False


def is_alias(
    code: SampleCode, path: str, function: cst.CSTNode, node: cst.BaseExpression, depth: int = 4, at: int | None = None
) -> bool:
    """Whether an expression may be an object that the dataset or the program keeps, and no copy of it.

    `at`: which of the results is meant, where it has several.
    """
    source = code.sources[path]
    if isinstance(node, cst.IfExp):
        return any(is_alias(code, path, function, each, depth, at) for each in (node.body, node.orelse))
    root = root_of(node)
    if isinstance(root, cst.Call) and depth > 0:
        return _hands_out(code, path, function, root, depth - 1, at if root is node else None)
    if not isinstance(root, cst.Name) or depth == 0:
        return False
    if is_own(source, root):
        lasts = root is not node and (source.inside(node, cst.ClassDef) in code.lasting)
        return lasts and not _is_new_sample(code, node, at)
    if root.value not in local_names(source, function):
        known = not source.names(root) & {"builtins." + root.value} and _is_global(source, root)
        return known and (root is not node or not is_plain(source, root))
    values = [
        (value, of)
        for assign in source.every(cst.Assign, function)
        for target, value, of in pairs(assign)
        if isinstance(target, cst.Name) and target.value == root.value
    ]
    values += [
        (loop.iter, None)
        for loop in source.walk(function, cst.For, cst.CompFor)
        if isinstance(loop, cst.For | cst.CompFor)
        and any(each.value == root.value for each in source.every(cst.Name, loop.target))
    ]
    return any(
        not within(source, root, value) and is_alias(code, path, function, value, depth - 1, of) for value, of in values
    )


def is_made_anew(
    source: Source, function: cst.FunctionDef | cst.Lambda, name: cst.Name, keeps: Callable[[cst.BaseExpression], bool]
) -> bool:
    """Whether a statement of the function's own body binds a name before it is met, to a value that `keeps` no object
    from before: `x = x / 2`.
    """
    if isinstance(function, cst.Lambda):
        return False
    bound = [
        (source.span(each)[1], source.statement(each), any(map(keeps, (value, *elements(value)))))
        for each in source.every(cst.Assign, function)
        for target, value, _ in pairs(each)
        if any(one.value == name.value for one in bound_names(target))
    ]
    last_kept = max((end for end, _, kept in bound if kept), default=0)
    before, outermost = source.span(name)[0], {*function.body.body}
    return any(statement in outermost and last_kept <= end <= before and not kept for end, statement, kept in bound)


def is_kept(
    code: SampleCode, path: str, function: cst.FunctionDef | cst.Lambda, node: cst.BaseExpression, depth: int = 4
) -> bool:
    """Whether an expression may be an object that is kept, and no variable that is given a new one before."""

    def is_one(value: cst.BaseExpression) -> bool:
        return is_alias(code, path, function, value, depth)

    root = root_of(node)
    anew = isinstance(root, cst.Name) and is_made_anew(code.sources[path], function, root, is_one)
    return not anew and is_one(node)


def _is_new_sample(code: SampleCode, node: cst.BaseExpression, at: int | None) -> bool:
    """Whether an expression is a sample, or a part of one, of another dataset that hands out no object of its own."""
    owner = node
    while isinstance(owner, cst.Subscript):
        owner = owner.value
    values = [*attribute_values(code.sources, owner)] if owner is not node else []
    at = at if isinstance(node, cst.Subscript) and node.value is owner else None
    return bool(values) and all(_makes_samples(code, path, value, at) for path, value in values)


def _makes_samples(code: SampleCode, path: str, node: cst.BaseExpression, at: int | None, depth: int = 8) -> bool:
    """Whether an expression is a dataset, or holds some, whose samples, or the part `at` of them, are new objects."""
    source = code.sources[path]
    if isinstance(node, cst.Subscript):
        return _makes_samples(code, path, node.value, at, depth)
    if isinstance(node, cst.Name) and depth > 0:
        values = [*code.values(path, node)]
        return bool(values) and all(_makes_samples(code, file, value, at, depth - 1) for file, value in values)
    if not isinstance(node, cst.Call):
        return False
    if source.is_called(node.func, *_PARTS_OF_DATASETS):
        return bool(node.args) and _makes_samples(code, path, node.args[0].value, at, depth)
    if source.is_called(node.func, *_DATASETS_OF_IMAGES):
        return True
    items = [
        (file, method)
        for file, made in code.defined.named(call_name(node))
        if isinstance(made, cst.ClassDef)
        for method in code.sources[file].every(cst.FunctionDef, made)
        if method.name.value == "__getitem__"
    ]
    for file, method in items:
        if (method, at) not in code.handing_out:
            code.handing_out[method, at] = True  # where it asks for itself
            code.handing_out[method, at] = _returns_alias(code, file, method, at)
    return bool(items) and not any(code.handing_out[method, at] for _, method in items)


def _returns_alias(code: SampleCode, path: str, function: cst.FunctionDef, at: int | None, depth: int = 4) -> bool:
    """Whether a function may return an object that is kept, or several things with one, of which `at` is meant."""
    pending: list[cst.BaseExpression | None]
    pending = [each.value for each in code.sources[path].every(cst.Return, function)]
    while pending:
        node = pending.pop()
        if (
            isinstance(node, cst.Tuple)
            and at is not None
            and not any(isinstance(each, cst.StarredElement) for each in node.elements)
        ):
            pending += [each.value for each in node.elements[at : at + 1]]
        elif isinstance(node, cst.Tuple | cst.List | cst.Dict):
            pending += [each.value for each in node.elements]
        elif node is not None and is_kept(code, path, function, node, depth):
            return True
    return False


def _hands_out(code: SampleCode, path: str, function: cst.CSTNode, call: cst.Call, depth: int, at: int | None) -> bool:
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
        if _returns_alias(code, file, found, at, depth):
            return True
        for place, arg in enumerate(call.args):
            passed = _passed_as(its, found, call, place)
            if is_alias(code, path, function, arg.value, depth) and hands_on(its, found, passed, at):
                return True
    return False


def _passed_as(source: Source, function: cst.FunctionDef, call: cst.Call, at: int) -> set[str]:
    """The parameters that an argument of a call of a function may be given to; `self` may come before them."""
    keyword, names = call.args[at].keyword, [param.name.value for param in function.params.params]
    if keyword is not None and keyword.value in names:
        return {keyword.value}
    listed = keyword is None and at < len(names) and not function.params.posonly_params
    if not listed or any(each.star for each in call.args[: at + 1]):
        return parameters(source, function)
    method = source.inside(function, cst.ClassDef) is not None
    return {*names[at : at + 2]} - {"self", "cls"} if method else {names[at]}


def _is_keeping(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a decorator lets a function keep results: `lru_cache`, `lru_cache(maxsize=9)`, `cache(self.load)`."""
    while isinstance(node, cst.Call):
        node = node.func
    return not source.names(node).isdisjoint(_KEPT)


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


def hands_on(
    source: Source, function: cst.FunctionDef | cst.Lambda, passed: set[str] | None = None, at: int | None = None
) -> bool:
    """Whether a function returns objects of what it is given, and no copies of them.

    `passed`: the parameters that are meant. `at`: which of its results is meant, where it has several.
    """
    names = parts_of(source, function, parameters(source, function) if passed is None else passed)
    if isinstance(function, cst.Lambda):
        return is_part(function.body, names)
    returned = (each.value for each in source.every(cst.Return, function) if each.value is not None)
    return any(is_part(part, names) for value in returned for part in _results(value, at))


def _results(node: cst.BaseExpression, at: int | None) -> list[cst.BaseExpression]:
    """Return the expression as a list, or of a tuple its element `at`, as far as that is known."""
    if not isinstance(node, cst.Tuple) or at is None:
        return [node]
    starred = any(isinstance(each, cst.StarredElement) for each in node.elements)
    return [node] if starred else [each.value for each in node.elements[at : at + 1]]


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
    return [each for each in leaves(target) if isinstance(each, cst.Name)]


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
            pending += [] if each.attr.value in FACTS else [each.value]
        elif isinstance(each, cst.IfExp):
            pending += [each.body, each.orelse]
        elif isinstance(each, cst.Tuple | cst.List | cst.Dict):
            pending += [one.value for one in each.elements]
        elif isinstance(each, cst.ListComp | cst.GeneratorExp):
            pending.append(each.elt)
        elif isinstance(each, cst.DictComp):
            pending.append(each.value)
        elif isinstance(each, cst.Call) and isinstance(each.func, cst.Name) and each.func.value in GATHER:
            pending += [arg.value for arg in each.args]
        elif isinstance(each, cst.Call) and (inner := _same_memory(each)) is not None:
            pending.append(inner)
    return False


def changes_object(source: Source, target: cst.BaseExpression) -> bool:
    """Whether a statement changes the object that a name stands for, and does not bind the name."""
    return isinstance(source.parent(target), cst.AugAssign | cst.Attribute | cst.Arg | cst.Subscript)
