"""What names and attributes in code that makes samples may stand for, as far as one file tells."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, bound_to
from diagnose.source.dataflow.flow import is_variable
from diagnose.source.dataflow.reaching_definitions import is_list
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_DEEPEST = 3
_OF_MODELS = (
    *(".parameters(", ".named_parameters(", ".modules(", ".named_modules(", ".buffers("),
    *(".param_groups", "['params']", '["params"]'),
)
"""Words in what a loop goes through that say it is a model's parts or an optimizer's parameters."""
_GIVES_TENSORS = ("torch.", "torch.nn.functional.", "numpy.")
_GIVES_OTHERS = frozenset({"load", "device", "dtype", "compile", "Generator"})
"""Functions of these modules that return no tensor."""


def is_read(source: Source, name: cst.Name) -> bool:
    """Whether a name is that of a variable, and of no parameter and no import."""
    parent = source.parent(name)
    declares = isinstance(parent, cst.Param) and parent.default is not name
    above = parent
    while isinstance(above, cst.Attribute):  # `from data.loading import crop`
        above = source.parent(above)
    imports = isinstance(parent, cst.AsName) or isinstance(above, cst.ImportFrom | cst.ImportAlias)
    return is_variable(source, name) and not declares and not imports


def module_of(path: str) -> str:
    """The last part of the name of a file's module."""
    parts = path.replace("\\", "/").removesuffix(".py").removesuffix("/__init__").split("/")
    return parts[-1]


def imported_as(source: Source, name: cst.Name) -> str:
    """Return what an imported name is called in its module: `build` after `from .coco import build as build_coco`."""
    imported = source.imported(name)
    return next(iter(imported)).rpartition(".")[2] if len(imported) == 1 else ""


def is_of_object(source: Source, node: cst.Attribute) -> bool:
    """Whether a node is one of several attributes of an object, `config.data.train`, and is of no module."""
    root: cst.BaseExpression = node.value
    while isinstance(root, cst.Attribute):
        root = root.value
    several = root is not node.value or isinstance(source.parent(node), cst.Attribute)
    bound = binding_of(source, root) if isinstance(root, cst.Name) and several else None
    return bound is not None and bound.imported is None and "import_module" not in source.words


def place_in(source: Source, value: cst.BaseExpression, name: str) -> tuple[int, int] | None:
    """The place at which `a, name = value` takes a variable out of a value, and how many it takes out of it."""
    assign = source.parent(value)
    if not isinstance(assign, cst.Assign) or assign.value is not value or len(assign.targets) != 1:
        return None
    target = assign.targets[0].target
    if not isinstance(target, cst.Tuple | cst.List):
        return None
    elements = [each.value for each in target.elements if isinstance(each, cst.Element)]
    at = [number for number, each in enumerate(elements) if isinstance(each, cst.Name) and each.value == name]
    return (at[0], len(elements)) if len(at) == 1 and len(elements) == len(target.elements) else None


def returned_at(source: Source, function: cst.FunctionDef, place: tuple[int, int]) -> Sequence[cst.BaseExpression]:
    """Return the values at one place of the tuples that a function returns; empty where it may return something else,
    or does more with it than to bind it, read it and hand on what it was given.
    """
    at, count = place
    inner = list(source.walk(function, cst.Return, cst.Yield))
    own = [each for each in inner if source.inside(each, (cst.FunctionDef, cst.Lambda)) is function]
    found: list[cst.BaseExpression] = []
    for each in own:
        elements = each.value.elements if isinstance(each, cst.Return) and isinstance(each.value, cst.Tuple) else ()
        part = elements[at].value if len(elements) == count else None
        if part is None or any(isinstance(one, cst.StarredElement) for one in elements):
            return []
        if isinstance(part, cst.Name) and not _is_only_read(source, function, part):
            return []
        found.append(part)
    return found


def _is_only_read(source: Source, function: cst.FunctionDef, name: cst.Name) -> bool:
    bound = binding_of(source, name)
    if bound is None or bound.scope is not function:
        return False
    for each in source.named(name.value, function):
        above = source.parent(each)
        holder = source.parent(above) if above is not None else None
        of_it = isinstance(above, cst.Attribute | cst.Subscript) and each is not getattr(above, "attr", None)
        if of_it and (isinstance(holder, cst.AssignTarget | cst.AugAssign) or _is_called(holder, above)):
            return False
        if isinstance(above, cst.Arg) and above.value is each and bound.parameter is None:
            return False
    return True


def _is_called(call: cst.CSTNode | None, function: cst.CSTNode | None) -> bool:
    return isinstance(call, cst.Call) and call.func is function


def is_of_library(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a value is evidently a list, a tensor or an array, which has no method of the program's."""
    if is_list(source, node):
        return True
    if isinstance(node, cst.Name) and depth < _DEEPEST:
        values = bound_to(source, node)
        return bool(values) and all(
            isinstance(each, cst.BaseExpression) and is_of_library(source, each, depth + 1) for each in values
        )
    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Attribute) and is_of_library(source, node.func.value, depth):
        return True
    modules = {name.rpartition(".")[0] + "." for name in source.imported(node.func)}
    return bool(modules) and modules.issubset(_GIVES_TENSORS) and call_name(node) not in _GIVES_OTHERS


def hands_itself_on(source: Source, name: cst.Name) -> bool:
    """Whether a name is `self`, given to what is built, which may then read of the object what it likes."""
    parent = source.parent(name)
    return name.value == "self" and isinstance(parent, cst.Arg) and parent.value is name


@per_source
def reads(source: Source, node: cst.CSTNode) -> tuple[tuple[cst.Name, frozenset[str] | None], ...]:
    """Return one place that reads each variable below a node, with the attributes that are read of it; None where one
    place takes it as a whole.
    """
    places: dict[str, cst.Name] = {}
    attributes: dict[str, set[str | None]] = {}
    for each in source.every(cst.Name, node):
        if is_read(source, each) and not _is_tested(source, each, node):
            places[each.value] = each
            attributes.setdefault(each.value, set()).add(attribute_of(source, each))
    return tuple(
        (place, None if None in attributes[name] else frozenset(each for each in attributes[name] if each is not None))
        for name, place in places.items()
    )


def _is_tested(source: Source, name: cst.Name, below: cst.CSTNode) -> bool:
    """Whether a name below an expression only decides which value that has: `"RGBA" if channels == 4 else "RGB"`."""
    inner: cst.CSTNode = name
    for above in source.ancestors(name) if isinstance(below, cst.BaseExpression) else ():
        if inner is below:
            return False
        if isinstance(above, cst.IfExp) and above.test is inner:
            return True
        inner = above
    return False


def attribute_of(source: Source, name: cst.Name) -> str | None:
    """Return what is read or set of a variable where it stands: `x` for `args.x`; None where it is taken as a whole."""
    parent = source.parent(name)
    return parent.attr.value if isinstance(parent, cst.Attribute) and parent.value is name else None


def is_of_model(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a name is the variable of a loop through a model's parameters or an optimizer's groups."""
    if not isinstance(node, cst.Name):
        return False
    loops = [
        each
        for each in source.every(cst.For)
        if any(name.value == node.value for name in source.every(cst.Name, each.target))
    ]
    through = [any(words in source.code(each.iter) for words in _OF_MODELS) for each in loops]
    return bool(through) and all(through)


def is_namespace(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is the dictionary of a module or an object, as `globals()` and `vars(data)` are."""
    if isinstance(node, cst.Call):
        return source.code(node.func) in {"globals", "vars"}
    return isinstance(node, cst.Attribute) and node.attr.value == "__dict__"


def owner_of_namespace(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The object whose names a dictionary holds; None for those of a module."""
    if isinstance(node, cst.Attribute):
        return node.value
    return node.args[0].value if isinstance(node, cst.Call) and node.args else None
