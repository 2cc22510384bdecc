"""Finds objects of a dataset that code which changes them in place gets without a copy: transforms, a collate function,
training.

Where samples are made in the training process, what is changed is the dataset's own, and the next epoch finds it so. A
worker process changes a copy that it has of the dataset, sends its samples to the training process, and pinning copies
them once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.iteration import NUMBERS
from diagnose.source.dataflow.mutations import writes_to_input, written_in_place
from diagnose.source.samples.object_identity import (
    GATHER,
    bound_names,
    changes_object,
    is_alias,
    is_kept,
    is_made_anew,
    is_own,
    is_part,
    parameters,
    parts_of,
    root_of,
)
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace, changed_by, changes_element, gathered
from diagnose.source.samples.sample_names import is_of_model
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import attribute_values, pairs
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

Function = cst.FunctionDef | cst.Lambda
Changers = Mapping[Function, set[str]]
"""Functions that change in place what they get for some of their parameters, with the names of those."""
_MAKE_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})
"""Methods of a dataset that return its samples to the loader."""
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
            entries = (each for each in mapping.elements if isinstance(each, cst.DictElement))
            sizes += [each.value for each in entries if string(each.key) == "batch_size"]
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


def changed_on_the_way(code: SampleCode, collating: Sequence[tuple[str, Function]] | None) -> Iterator[Trace]:
    """Yield objects that are kept and that code for samples gets as they are and changes in place.

    `collating`: the functions that put samples together, with their files; None where it is not seen which those are.
    """
    changers = _changers(code)
    if not changers and not _has_library_changer(code):
        return
    for node, path in code.sampling.items():
        yield from (_handed(code, path, each, "code that") for each in _given_to(code, path, node, changers))
        yield from (_handed(code, path, each, "code that") for each in _given_to_library(code, path, node))
    for path, alias, inside in returned(code):
        level = 2 if inside else 0  # a batch is a list of samples
        if collating is None or any(
            _changes(code, file, each, changers, parameters(code.sources[file], each), level)
            for file, each in collating
        ):
            yield _handed(code, path, alias, "code that")


def handed_to_training(code: SampleCode) -> Iterator[Trace]:
    """Yield objects that are kept and that samples consist of, where a loader hands on samples as they are."""
    yield from (_handed(code, path, alias, "training, which") for path, alias, _ in returned(code))


def _handed(code: SampleCode, path: str, node: cst.BaseExpression, to: str) -> Trace:
    source = code.sources[path]
    rows = "rows of " if isinstance(node, cst.Call) and _makes_rows(source, node) else ""
    may = "may change" if to.startswith("training") else "changes"
    words = f"hands on {rows}`{source.code(node)}` itself, no copy, to {to} {may} it in place"
    return Trace(words, path, source.lines_of(node)[0])


def returned(code: SampleCode) -> Iterator[tuple[str, cst.BaseExpression, bool]]:
    """Yield what datasets return to the loader as it is kept, with its file, and whether it is gathered in what they
    return.

    Of a dataset of torch's own, whose samples are views of tensors, that is the call that makes it.
    """
    for function, path in code.sampling.items():
        if not isinstance(function, cst.FunctionDef) or function.name.value not in _MAKE_SAMPLES:
            continue
        for node in code.sources[path].walk(function, cst.Return, cst.Yield):
            if isinstance(node, cst.Return | cst.Yield) and isinstance(node.value, cst.BaseExpression):
                yield from ((path, *each) for each in _kept(code, path, function, node.value))
    for made, path in code.building.items():
        yield from ((path, call, True) for call in code.calls(path, made) if _makes_rows(code.sources[path], call))


def _makes_rows(source: Source, call: cst.Call) -> bool:
    return "torch.utils.data.TensorDataset" in source.names(call.func)


def _kept(
    code: SampleCode, path: str, function: Function, node: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield an expression if it is an object that is kept, and such as it gathers; with whether it gathers them."""
    source = code.sources[path]
    if is_kept(code, path, function, node):
        yield node, False
    elif isinstance(node, cst.Tuple | cst.List | cst.Dict):
        for element in node.elements:
            yield from ((each, True) for each, _ in _kept(code, path, function, element.value))
    elif isinstance(node, cst.Call) and _gathers(code, node):
        for arg in node.args:
            yield from ((each, True) for each, _ in _kept(code, path, function, arg.value))
    elif isinstance(node, cst.ListComp | cst.GeneratorExp):
        yield from ((each, True) for each, _ in _kept(code, path, function, node.elt))
    elif isinstance(node, cst.Name):
        found = [*gathered(source, function, node.value)]
        for assign in source.every(cst.Assign, function):
            for target, value, _ in pairs(assign):
                named = isinstance(target, cst.Name) and target.value == node.value
                if named and isinstance(value, cst.Call) and _gathers(code, value):
                    found += [arg.value for arg in value.args]
        yield from ((each, True) for each in found if is_kept(code, path, function, each))


def _gathers(code: SampleCode, call: cst.Call) -> bool:
    """Whether a call makes an object that holds what it is given: a list, or one of a class of the program's."""
    name = call_name(call)
    builtin = isinstance(call.func, cst.Name) and name in GATHER
    return builtin or any(isinstance(each, cst.ClassDef) for _, each in code.defined.named(name))


def _changers(code: SampleCode) -> Changers:
    """The functions for samples that change in place what they are given, or give it to one that does."""
    found: dict[Function, set[str]] = {}
    grows = True
    while grows:
        grows = False
        for node, path in code.sampling.items():
            for name in parameters(code.sources[path], node) - found.get(node, set()):
                if _changes(code, path, node, found, {name}):
                    found.setdefault(node, set()).add(name)
                    grows = True
    return found


def _changes(
    code: SampleCode, path: str, function: Function, changers: Changers, given: set[str], level: int = 0, hops: int = 2
) -> bool:
    """Whether a function changes in place what it gets for some of its parameters.

    `level`: 0 counts any change; 1, those of objects that these hold, and not of which objects they hold; 2, those of
    objects that samples hold, where these are lists of samples. Calls are followed as many times as there are `hops`.
    """
    source = code.sources[path]
    parts = parts_of(source, function, given)
    holders = {*(given if level else ()), *(_gone_through(source, function, given) if level == 2 else ())}
    for target in changed_by(source, function):
        root = root_of(target)
        if not isinstance(root, cst.Name) or root.value not in parts or orders_a_batch(source, function, target):
            continue
        if root.value in holders and not changes_element(source, target):
            continue
        if is_made_anew(source, function, root, lambda value: is_part(value, parts)):
            continue
        if root is not target or changes_object(source, root):
            return True
    for call in _calls_of_changers(code, path, function, changers):
        for arg in call.args:
            same = hops > 0 and isinstance(arg.value, cst.Name) and arg.value.value in given
            if is_part(arg.value, parts) and _is_changed_by(code, call, arg, changers, level if same else 0, hops - 1):
                return True
    return any(is_part(arg.value, parts) for call in _calls_of_kept(code, path, function) for arg in call.args)


def _gone_through(source: Source, function: Function, names: set[str]) -> set[str]:
    """The variables of loops over objects of these names, one variable each: `for sample in samples`."""
    return {
        loop.target.value
        for loop in source.walk(function, cst.For, cst.CompFor)
        if isinstance(loop, cst.For | cst.CompFor)
        and isinstance(loop.target, cst.Name)
        and isinstance(loop.iter, cst.Name)
        and loop.iter.value in names
    }


def _given_to(code: SampleCode, path: str, function: Function, changers: Changers) -> Iterator[cst.BaseExpression]:
    """Yield what a function gives functions that change it, as far as it is an object that is kept."""
    for call in _calls_of_changers(code, path, function, changers):
        passed = any(_names_changer(arg, changers) for arg in call.args)  # `map` gives it the elements
        for arg in call.args:
            for each, inside in () if _names_changer(arg, changers) else _kept(code, path, function, arg.value):
                if _is_changed_by(code, call, arg, changers, int(inside and not passed)):
                    yield each


def _given_to_library(code: SampleCode, path: str, function: Function) -> Iterator[cst.BaseExpression]:
    """Yield the objects that are kept and that a function gives what may be a library's transform that changes them."""
    for call in _calls_of_kept(code, path, function):
        yield from (each for arg in call.args for each, _ in _kept(code, path, function, arg.value))


def _calls_of_kept(code: SampleCode, path: str, function: Function) -> Iterator[cst.Call]:
    """Yield the calls of objects that are kept, where the program makes one for samples that changes its input."""
    for call in code.calls(path, function) if _has_library_changer(code) else ():
        if call.args and _is_kept_callable(code, path, function, call.func):
            yield call


def _has_library_changer(code: SampleCode) -> bool:
    """Whether a layer or a transform of a library that writes to its input is made for samples."""
    if code.makes_changer is None:
        code.makes_changer = any(
            writes_to_input(code.sources[path], each)
            for node, path in code.building.items()
            if "inplace" in code.sources[path].words or "True" in code.sources[path].words
            for each in code.sources[path].walk(node, cst.Call, cst.List)
            if isinstance(each, cst.Call | cst.List) and not _is_given_to_library(code, path, each)
        )
    return code.makes_changer


def _is_given_to_library(code: SampleCode, path: str, node: cst.CSTNode) -> bool:
    """Whether an expression is an argument, or in one, from which a function of a library makes something."""
    above = code.sources[path].inside(node, cst.Call)
    return above is not None and not any(code.named(code.sources[path], above.func))


def _is_changed_by(
    code: SampleCode, call: cst.Call, arg: cst.Arg, changers: Changers, level: int, hops: int = 2
) -> bool:
    """Whether what is called may change what it gets by an argument, or the elements of that."""
    by_name = call_name(call) in _names(changers)
    passed = any(_names_changer(each, changers) for each in call.args)
    at = None if passed or arg.keyword is not None or any(each.star for each in call.args) else call.args.index(arg)
    for node, changed in changers.items():
        if by_name and not (isinstance(node, cst.FunctionDef) and node.name.value == call_name(call)):
            continue
        listed = [each.name.value for each in node.params.params]
        listed = listed[1:] if listed[:1] in (["self"], ["cls"]) else listed
        given = {listed[at]} if at is not None and at < len(listed) else changed
        if given & changed and (level == 0 or _changes(code, code.sampling[node], node, changers, given, level, hops)):
            return True
    return False


def _names(changers: Changers) -> set[str]:
    return {node.name.value for node in changers if isinstance(node, cst.FunctionDef)}


def _calls_of_changers(code: SampleCode, path: str, function: Function, changers: Changers) -> Iterator[cst.Call]:
    """Yield the calls of these functions by name, and of objects that may be any of them, where there are any."""
    names = _names(changers)
    for call in code.calls(path, function) if changers else ():
        known = call_name(call) in names or any(_names_changer(arg, changers) for arg in call.args)
        if known or _is_kept_callable(code, path, function, call.func):
            yield call


def _names_changer(arg: cst.Arg, changers: Changers) -> bool:
    """Whether an argument is one of these functions, as in `map(self.shift, rows)`."""
    named = arg.value.attr if isinstance(arg.value, cst.Attribute) else arg.value
    return isinstance(named, cst.Name) and named.value in _names(changers)


def _is_kept_callable(code: SampleCode, path: str, function: Function, callee: cst.BaseExpression) -> bool:
    """Whether what is called is an object that the dataset or the program keeps, such as a transform."""
    source = code.sources[path]
    if isinstance(callee, cst.Attribute):
        methods = (node for node in code.sampling if isinstance(node, cst.FunctionDef))
        if any(node.name.value == callee.attr.value for node in methods):
            return False
        if not is_own(source, callee.value) and not any(attribute_values(code.sources, callee)):
            return False  # a method of a library's object
    return is_alias(code, path, function, callee)
