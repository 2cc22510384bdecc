"""Finds writes of training into what may be a batch, and what a collate function may do to the list that it is given.

A worker process sends its samples to the training process, and pinning copies them: what training then writes into a
batch no longer changes what the dataset holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.iteration import NUMBERS
from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.samples.object_identity import bound_names, parameters, parts_of, root_of
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.shared_objects import is_of_model
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_IDENTITIES = frozenset(
    {"builtins.list", "builtins.tuple", "operator.itemgetter", "torch.utils.data.default_convert"}
    | {"torch.utils.data._utils.collate.default_convert"}
)
"""Functions of libraries that hand on what they are given, or make one that does."""


def is_identity(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a function of a library hands on the samples themselves: `list`, `itemgetter(0)`."""
    while isinstance(node, cst.Call):
        node = node.func
    return not source.names(node).isdisjoint(_IDENTITIES)


def orders_a_batch(source: Source, function: cst.CSTNode, target: cst.BaseExpression) -> bool:
    """Whether a collate function sorts the list of samples that it is given, which the loader makes for each batch:
    one that does not take single samples, with which the list is what the dataset returned.
    """
    method = source.parent(target)
    if not isinstance(function, cst.FunctionDef) or not isinstance(method, cst.Attribute):
        return False
    if source.code(target) not in parameters(source, function) or method.attr.value not in {"sort", "reverse"}:
        return False
    uses = [source.parent(each) for each in source.named(function.name.value) if each is not function.name]
    return bool(uses) and all(
        isinstance(each, cst.Arg)
        and each.keyword is not None
        and each.keyword.value == "collate_fn"
        and isinstance(loader := source.parent(each), cst.Call)
        and not takes_single_samples(source, loader)
        for each in uses
    )


def takes_single_samples(source: Source, loader: cst.Call) -> bool:
    """Whether a loader is told to put no samples together: `batch_size=None`, by a variable or in a mapping too."""
    size = argument(loader, "batch_size", 1)
    sizes = [size.value] if size is not None else []
    for mapping in (each for arg in loader.args if arg.star == "**" for each in _meant(source, arg.value)):
        if isinstance(mapping, cst.Call) and (given := argument(mapping, "batch_size")) is not None:
            sizes.append(given.value)
        elif isinstance(mapping, cst.Dict):
            pairs = (each for each in mapping.elements if isinstance(each, cst.DictElement))
            sizes += [each.value for each in pairs if string(each.key) == "batch_size"]
    return any(source.code(each) == "None" for value in sizes for each in _meant(source, value))


def _meant(source: Source, node: cst.BaseExpression) -> list[cst.CSTNode]:
    """An expression, and all that it is given where it is a variable."""
    return [node, *(bound_to(source, node) if isinstance(node, cst.Name) else ())]


def written_batches(code: SampleCode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what the rest of the program writes into: loop variables, parameters, results of `next`; with its file."""
    for path, source in code.sources.items():
        for scope in (source.module, *source.every(cst.FunctionDef)):
            if scope in code.sampling or scope in code.building:
                continue
            names = parts_of(source, scope, _taken(source, scope))
            for target in written_in_place(source, scope):
                root = root_of(target)
                its = source.inside(target, cst.FunctionDef) or source.module
                if its is scope and isinstance(root, cst.Name) and root.value in names:
                    yield path, target


def _taken(source: Source, scope: cst.CSTNode) -> set[str]:
    """The variables that a function may take a batch by."""
    found: set[str] = set()
    if isinstance(scope, cst.FunctionDef):
        found |= parameters(source, scope)
    for node in source.walk(scope, cst.For, cst.Assign):
        if isinstance(node, cst.For):
            counted = isinstance(node.iter, cst.Call) and call_name(node.iter) in NUMBERS
            names = [] if counted else [each for each in bound_names(node.target) if not is_of_model(source, each)]
            found |= {each.value for each in names}
        elif isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and call_name(node.value) == "next":
            found |= {each.value for target in node.targets for each in bound_names(target.target)}
    return found
