"""Objects that a function makes for the time of one call: attributes such as `self.size = x.shape`, which nothing else
reads, and variables whose objects nobody else gets before they are returned."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.flow import within
from diagnose.source.samples.object_identity import FACTS, local_names
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source, only_statement

_NEW = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)

_MAKE = (
    *(f"builtins.{name}" for name in ("list", "dict", "set", "bytearray")),
    *(f"collections.{name}" for name in ("defaultdict", "OrderedDict", "Counter", "deque")),
    *(f"{module}.{name}" for module in ("torch", "numpy") for name in ("zeros", "ones", "empty", "full", "arange")),
    *(f"{module}.{name}_like" for module in ("torch", "numpy") for name in ("zeros", "ones", "empty", "full")),
    *(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "tensor", "stack", "cat")),
    *("numpy.array", "numpy.stack", "numpy.concatenate"),
)
"""Whose results are new objects, which nobody else has."""
_PURE_READS = (
    *(f"builtins.{name}" for name in ("len", "print", "isinstance", "bool", "int", "float", "str")),
    *("numpy.array", "numpy.stack", "numpy.concatenate", "torch.tensor", "torch.stack", "torch.cat"),
)
"""Functions that keep nothing of what they are given and return nothing of it."""
_ENDS = (
    cst.AssignTarget,
    cst.Del,
    cst.If,
    cst.While,
    cst.Assert,
    cst.Comparison,
    cst.BinaryOperation,
    cst.UnaryOperation,
    cst.Return,
    cst.FormattedStringExpression,
)
"""Code that binds, tests or returns a value, or computes another, and hands it on to nobody else."""
_PURE_METHODS = frozenset({"item", "append", "extend", "add", "update", "fill_", "zero_", "mul_", "add_", "div_"})
"""Methods that keep nothing of what they are called on and return nothing of it where a statement calls them."""


def is_temporary(
    code: SampleCode, source: Source, target: cst.BaseExpression, function: cst.FunctionDef | cst.Lambda
) -> bool:
    """Whether a target is an attribute of `self` that each call of the method gives a value before it reads it, and
    that no other code reads.

    What is changed in place, `self.parts.append(x)`, must be a new object of the call.
    """
    node = target
    while isinstance(node, cst.Subscript):
        node = node.value
    owner = source.inside(function, cst.ClassDef)
    if not isinstance(node, cst.Attribute) or source.code(node.value) != "self" or owner is None:
        return False
    name = node.attr.value
    made = _assignment(source, function, source.code(node)) if isinstance(function, cst.FunctionDef) else None
    binds = node is target and isinstance(source.parent(target), cst.AssignTarget | cst.Element)
    if made is None or not (binds or isinstance(made.value, _NEW)):
        return False
    family = _family(code.sources.values(), owner.name.value)
    for each in code.sources.values():
        if f'"{name}"' in each.text or f"'{name}'" in each.text:
            return False
        for use in each.attributes_named(name):
            if each is source and within(source, use, function):
                early = source.span(use)[0] < source.span(made)[1] and not within(source, use, made.targets[0])
            else:
                around = each.inside(use, cst.ClassDef)
                of_other = each.code(use.value) == "self" and around is not None and around.name.value not in family
                early = not of_other and each.inside(use, (cst.Import, cst.ImportFrom)) is None
            if early:
                return False
    return True


def _assignment(source: Source, function: cst.FunctionDef, code: str) -> cst.Assign | None:
    """The first statement of the function's own body that gives some code a value."""
    for line in function.body.body:
        small = only_statement(line)
        target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
        parts = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        if isinstance(small, cst.Assign) and any(part and source.code(part) == code for part in parts):
            return small
    return None


def _family(sources: Iterable[Source], name: str) -> set[str]:
    """The names of a class and of all that it is related to by bases which the program defines."""
    classes = [(each, made) for each in sources for made in each.classes_named(*each.defined_names)]
    defined = {made.name.value for _, made in classes}
    related = [
        defined & {made.name.value, *(each.code(base.value).rpartition(".")[2] for base in made.bases)}
        for each, made in classes
    ]
    family, before = {name}, 0
    while before < len(family):
        before = len(family)
        family = family.union(*(each for each in related if not each.isdisjoint(family)))
    return family


@per_source
def is_made_within(source: Source, name: cst.Name) -> bool:
    """Whether a variable of a function is only what that function makes, and nobody gets before it is returned."""
    return _is_own(source, name, source.named(name.value, source.inside(name, cst.FunctionDef)))


@per_source
def is_not_yet_handed_on(source: Source, name: cst.Name) -> bool:
    """Whether a variable of a function is only what that function makes, and nobody has yet where it stands:
    `kwargs["size"] = 8; Images(**kwargs)`.
    """
    uses = source.named(name.value, source.inside(name, cst.FunctionDef))
    return _is_own(source, name, [each for each in uses if not _is_later(source, each, name)])


def _is_own(source: Source, name: cst.Name, uses: Iterable[cst.Name | cst.Attribute]) -> bool:
    """Whether a variable of a function is only what that function makes, and these uses hand it on to nobody."""
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
        and all(_is_kept_within(source, each, function) for each in uses)
    )


def _is_later(source: Source, use: cst.CSTNode, name: cst.Name) -> bool:
    """Whether a use of a variable runs after another one alone: no loop goes from it back to that."""
    if source.span(use)[0] <= source.span(name)[0]:
        return False
    loops = (each for each in source.ancestors(name) if isinstance(each, cst.For | cst.While))
    return not any(within(source, use, loop) for loop in loops)


def _is_new(source: Source, value: cst.CSTNode) -> bool:
    if isinstance(value, cst.Call):
        aliases = argument(value, "out") or argument(value, "copy")
        return source.is_called(value.func, *_MAKE) and aliases is None
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
        if isinstance(above, cst.Attribute) and above.value is below and above.attr.value in FACTS:
            return not isinstance(source.parent(above), cst.Call)
        if isinstance(above, cst.AugAssign):
            return above.target is below
        if isinstance(above, _ENDS):
            return True
        if not isinstance(above, cst.Attribute | cst.Subscript | cst.Element | cst.Tuple | cst.ComparisonTarget):
            return False
        below = above
    return False
