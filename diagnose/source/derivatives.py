"""Whether a program takes derivatives of derivatives, which fused kernels do not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.built_classes import Classes, in_class_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.syntax import Source

_TRANSFORMS = ("torch.func.", "functorch.", "torch.autograd.functional.", "torch.autograd.forward_ad.")
_PLAIN = frozenset({"torch.func.functional_call", "torch.func.stack_module_state"})
_SECOND_ORDER = frozenset({"Adahessian"})
"""Classes of timm's optimizers that ask for gradients of gradients."""
_HINTS = ("create_graph", "torch.func", "functorch", "autograd.functional", "forward_ad")


def second_derivative(
    sources: Mapping[str, str], unused: Classes = frozenset(), optimizers: Collection[str] = ()
) -> str | None:
    """The file and line of the first call that asks for gradients of gradients, or transforms a function for others.

    What `unused` classes do does not count. `optimizers` are the names of the classes of all optimizers of a run: what
    is asked for where an optimizer wants it does not count unless one of them does.
    """
    wanted = not optimizers or not _SECOND_ORDER.isdisjoint(optimizers)
    for path, source in files_with(sources, *_HINTS):
        for call in source.every(cst.Call):
            asked = argument(call, "create_graph")
            keeps = asked is not None and not _is_never(asked.value, source, sources, wanted)
            names = source.names(call.func) - _PLAIN
            asks = keeps or any(name.startswith(_TRANSFORMS) for name in names)
            if asks and not in_class_of(source, call, path, unused):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def _is_never(
    value: cst.BaseExpression,
    source: Source,
    sources: Mapping[str, str],
    wanted: bool,
    seen: frozenset[cst.CSTNode] = frozenset(),
) -> bool:
    """Whether an expression is False, or a parameter that is False by default and that no call gives another value.

    `wanted` is whether an optimizer may ask for it. `seen` are the parameters on the way: a function that hands its own
    on to itself tells nothing new.
    """
    bound = binding_of(source, value) if isinstance(value, cst.Name) else None
    given = bound.value if bound is not None and bound.value is not None else value
    if source.code(given) == "False" or _is_unknown_attribute(given, source, sources, wanted):
        return True
    parameter, function = (bound.parameter, bound.scope) if bound is not None else (None, None)
    if parameter is None or not isinstance(function, cst.FunctionDef):
        return False
    if parameter in seen:
        return True
    if parameter.default is None or source.code(parameter.default) != "False":
        return False
    parsed = parse_all(sources)
    names = {function.name.value}
    if names == {"__call__"} and (owner := source.inside(function, cst.ClassDef)) is not None:
        names = set(_instances(owner.name.value, parsed))
    calls = [passed_to(function, parameter, name, parsed) for name in names]
    return all(
        rows is not None
        and all(
            given is None or _is_never(given, parsed[path], sources, wanted, seen | {parameter}) for path, given in rows
        )
        for rows in calls
    )


def _is_unknown_attribute(value: cst.BaseExpression, source: Source, sources: Mapping[str, str], wanted: bool) -> bool:
    """Whether an expression is `hasattr(optimizer, "name") and optimizer.name`, of a name that no optimizer has.

    timm's AdaHessian has one, to ask for gradients of gradients; torch's optimizers have none.
    """
    if not isinstance(value, cst.BooleanOperation) or not isinstance(value.left, cst.Call):
        return False
    asked = (
        string(value.left.args[1].value) if call_name(value.left) == "hasattr" and len(value.left.args) == 2 else None
    )
    right = value.right
    if asked is None or not isinstance(value.operator, cst.And) or not isinstance(right, cst.Attribute):
        return False
    if source.code(right) != f"{source.code(value.left.args[0].value)}.{asked}":
        return False
    parsed = [one for _, one in files_with(sources, asked, "timm")]
    return not any((wanted and _imports_optimizers(one)) or _defines(one, asked) for one in parsed)


def _imports_optimizers(source: Source) -> bool:
    """Whether a file has timm's optimizers: `from timm import optim`, `import timm.optim`, or `timm.optim` by name."""
    used = (name for each in source.attributes_named("optim") for name in source.names(each))
    made = (name for each in source.walk(None, cst.Import, cst.ImportFrom) for name in _imported(source, each))
    return any(f"{name}.".startswith(("timm.optim.", "timm.*.")) for names in (used, made) for name in names)


def _imported(source: Source, statement: cst.CSTNode) -> Iterator[str]:
    """The full names of what a statement imports."""
    assert isinstance(statement, cst.Import | cst.ImportFrom)
    before = f"{source.code(statement.module)}." if isinstance(statement, cst.ImportFrom) and statement.module else ""
    names = () if isinstance(statement.names, cst.ImportStar) else statement.names
    yield from (before + source.code(each.name) for each in names)
    if isinstance(statement.names, cst.ImportStar):
        yield f"{before}*"


def _defines(source: Source, attribute: str) -> bool:
    """Whether a file gives objects, or a class, an attribute of this name."""
    for node in source.named(attribute):
        above = source.parent(node)
        if isinstance(above, cst.FunctionDef) or (
            isinstance(above, cst.Attribute) and isinstance(source.parent(above), cst.AssignTarget)
        ):
            return True
        if isinstance(above, cst.AssignTarget) and isinstance(
            source.inside(above, (cst.FunctionDef, cst.ClassDef)), cst.ClassDef
        ):
            return True
    return False


def _instances(owner: str, sources: Mapping[str, Source]) -> Iterator[str]:
    """The names that the program gives to instances of a class."""
    for source in sources.values():
        for assign in source.every(cst.Assign):
            if isinstance(assign.value, cst.Call) and call_name(assign.value) == owner:
                yield from (source.code(each.target).rpartition(".")[2] for each in assign.targets)
