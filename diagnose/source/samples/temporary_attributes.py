"""Attributes that hold a value for the time of one call, such as `self.size = x.shape`, and that nothing else reads."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.syntax import Source, only_statement

_NEW = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)


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
