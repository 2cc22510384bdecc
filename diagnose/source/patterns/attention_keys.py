"""Whether attention may have more keys than queries: keys of earlier calls that a cache adds, or of another input."""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.bindings import parameter_of
from diagnose.source.dataflow.flow import scope_of
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.patterns.attention import WrittenAttention
from diagnose.source.tree.attributes import is_of_self, leaves
from diagnose.source.tree.syntax import Source

_JOINS = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack"})


def may_have_more_keys(found: WrittenAttention) -> bool:
    """Whether anything that the keys are made of is joined with more, read back from the module, or chosen by an `if`.

    A mask of one query then covers every key by broadcasting, where the kernel's own causal mask shows the first alone.
    """
    assert found.key is not None
    source, (_, assigns) = found.source, _made_of(found, found.key.node)
    return _is_joined(source, found.key.node) or any(
        _is_joined(source, each.value)
        or _is_kept(each.value)
        or _is_chosen(source, each, scope_of(source, found.product))
        for each in assigns
    )


def has_as_many_keys(found: WrittenAttention) -> bool:
    """Whether queries and keys are made of the same arguments of the function, and so are equally long.

    Where a function is handed queries and keys, or makes keys of another input, a caller may pass one query for many
    keys.
    """
    assert found.query is not None and found.key is not None
    return bool(_inputs(found, found.query.node)) and _inputs(found, found.query.node) == _inputs(found, found.key.node)


def _inputs(found: WrittenAttention, node: cst.BaseExpression) -> set[str]:
    """The function's own parameters that a value is made of, beside its object."""
    source = found.source
    scope = scope_of(source, found.product)
    if not isinstance(scope, cst.FunctionDef):
        return set()
    names, _ = _made_of(found, node)
    return {each for each in names - {"self"} if parameter_of(scope, each) is not None}


def _made_of(found: WrittenAttention, node: cst.BaseExpression) -> tuple[set[str], list[cst.Assign]]:
    """The names that a value is made of within its function, and the assignments that give them theirs."""
    source = found.source
    pending, seen, assigns = {name.value for name in names_in(source, node)}, set[str](), list[cst.Assign]()
    while pending:
        name = pending.pop()
        seen.add(name)
        for assign in source.every(cst.Assign, scope_of(source, found.product)):
            bound = (each for target in assign.targets for each in leaves(target.target))
            if any(isinstance(each, cst.Name) and each.value == name for each in bound):
                assigns.append(assign)
                pending |= {each.value for each in names_in(source, assign.value)} - seen
    return seen, assigns


def _is_joined(source: Source, value: cst.BaseExpression) -> bool:
    return any(source.names(call.func) & _JOINS for call in source.every(cst.Call, value))


def _is_kept(value: cst.BaseExpression) -> bool:
    """Whether a value is a part of something that the module keeps, `self.cache[:, :end]`."""
    while isinstance(value, cst.Subscript):
        value = value.value
    return is_of_self(value)


def _is_chosen(source: Source, assign: cst.Assign, scope: cst.CSTNode) -> bool:
    """Whether an assignment is made under an `if` of its function."""
    around = source.inside(assign, cst.If)
    return around is not None and scope_of(source, around) is scope
