"""Whether anybody reads one of the things that a function returns, in all of the program's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import scope_of
from diagnose.source.dataflow.reaching_definitions import Bound, names_in, reaching, statement_of
from diagnose.source.losses.output_loss import Output
from diagnose.source.patterns.formula import integer
from diagnose.source.training.model_calls import is_model
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.syntax import Source, parse

_TRAINERS = frozenset({"Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "pipeline"})
"""What libraries name a loop that calls the model."""


def reader_of(
    sources: Mapping[str, str], path: str, source: Source, output: Output, only_with: str | None
) -> str | None:
    """Return who reads an output, or why that is not known; None where nobody does.

    `only_with`: calls that do not pass this parameter do not count.
    """
    function = source.inside(output.statement, cst.FunctionDef)
    if function is None:
        return "it is returned from no function"
    if output.position is None:
        named = _reader_of_name(sources, path, source, function, output.name)
        return named or _taken_apart(sources, function, output, only_with)
    if _has_library(sources):
        return "a library calls the model, and may read it"
    seen = 0
    for file, caller, call in _callers(sources, function, output, only_with):
        seen += 1
        if not _is_unread(caller, call, output):
            return f"{file}:{caller.lines_of(call)[0]} may read it"
    return None if seen else "no caller is seen in these files"


def _callers(
    sources: Mapping[str, str], function: cst.FunctionDef, output: Output, only_with: str | None
) -> Iterator[tuple[str, Source, cst.Call]]:
    """The calls that may be of the function, with their files."""
    for file, caller in parse_all(sources).items():
        for call in caller.every(cst.Call):
            if not _calls(caller, call, function, output):
                continue
            if _passes(call, function, only_with) or _is_partial(caller, call):
                yield file, caller, call


def _has_library(sources: Mapping[str, str]) -> bool:
    """Whether a library trains; a trainer that the program writes out itself is none, one that it derives is."""
    parsed = [source for source in map(parse, sources.values()) if source is not None]
    own = {each.name.value for source in parsed for each in source.every(cst.ClassDef) if _is_plain(source, each)}
    own |= {each.name.value for source in parsed for each in source.every(cst.FunctionDef)}
    return any(call_name(call) in _TRAINERS - own for source in parsed for call in source.every(cst.Call)) or any(
        source.code(base.value).rpartition(".")[2] in _TRAINERS - own
        for source in parsed
        for written in source.every(cst.ClassDef)
        for base in written.bases
    )


def _is_plain(source: Source, written: cst.ClassDef) -> bool:
    return all(source.code(base.value) == "object" for base in written.bases)


def _reader_of_name(
    sources: Mapping[str, str], path: str, source: Source, function: cst.FunctionDef, name: str
) -> str | None:
    """Return who asks for anything by the name of a field or a key."""
    if _has_library(sources):
        return "a library calls the model, and may read it"
    for file, other in files_with(sources, name):
        for node in other.walk():
            mine = file == path and any(above is function for above in source.ancestors(node))
            if not mine and _asks_for(other, node, name):
                return f"{file}:{other.lines_of(node)[0]} may read it"
    return None


def _asks_for(source: Source, node: cst.CSTNode, name: str) -> bool:
    """Whether a node reads an attribute of that name, or names it in a string that is no new key."""
    if isinstance(node, cst.Attribute):
        parent = source.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        return node.attr.value == name and source.code(node.value) != "self" and not called
    if isinstance(node, cst.SimpleString) and node.evaluated_value == name:
        parent = source.parent(node)
        return not (isinstance(parent, cst.DictElement) and parent.key is node)
    if isinstance(node, cst.MatchKeywordElement):
        return node.key.value == name
    return False


def _taken_apart(
    sources: Mapping[str, str], function: cst.FunctionDef, output: Output, only_with: str | None
) -> str | None:
    """Return who takes a named output apart without its names, as in `loss, logits = model(x, y)`."""
    for file, caller, call in _callers(sources, function, output, only_with):
        parent = caller.parent(call)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
        whole = list(_readers(caller, target)) if isinstance(target, cst.Name) else [call]
        if isinstance(target, cst.Tuple | cst.List) or any(_is_apart(caller, one) for one in whole):
            return f"{file}:{caller.lines_of(call)[0]} may read it"
    return None


def _is_apart(source: Source, node: cst.CSTNode) -> bool:
    """Whether something with names is unpacked, indexed by a number, gone through, or given away as a whole."""
    parent = source.parent(node)
    if isinstance(parent, cst.Subscript) and parent.value is node:
        index = parent.slice[0].slice
        return not isinstance(index, cst.Index) or not isinstance(index.value, cst.SimpleString)
    if isinstance(parent, cst.Attribute) and parent.value is node:
        return parent.attr.value in {"values", "items", "to_tuple", "_asdict"}
    if isinstance(parent, cst.Assign):
        return isinstance(parent.targets[0].target, cst.Tuple | cst.List)
    return isinstance(parent, cst.For | cst.CompFor | cst.StarredElement | cst.StarredDictElement | cst.Arg)


def _calls(source: Source, call: cst.Call, function: cst.FunctionDef, output: Output) -> bool:
    """Whether a call may be one of the function, or of the module whose `forward` it is."""
    if function.name.value != "forward":
        return call_name(call) == function.name.value
    code = source.code(call.func)
    if code in {"self", "super().forward"} or code.endswith(".forward") or is_model(source, code):
        return True
    if isinstance(call.func, cst.Name):
        bound = reaching(source, statement_of(source, call), code)
        if bound.bound is Bound.PARAMETER and _is_indexed(source, call):
            return True
        if isinstance(bound.value, cst.Name | cst.Attribute) and is_model(source, source.code(bound.value)):
            return True
    unpacked = _unpacked(source, call)
    known = source.imported(call.func) or any(name.startswith("builtins.") for name in source.names(call.func))
    return unpacked is not None and len(unpacked) == output.length and not known and code not in _defined(source)


def _is_indexed(source: Source, call: cst.Call) -> bool:
    """Whether a part of the outcome is picked by a subscript, right there or later."""
    parent = source.parent(call)
    target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
    whole: list[cst.CSTNode] = [*_readers(source, target)] if isinstance(target, cst.Name) else [call]
    return any(isinstance(above := source.parent(one), cst.Subscript) and above.value is one for one in whole)


def _defined(source: Source) -> set[str]:
    functions = {one.name.value for one in source.every(cst.FunctionDef)}
    return functions | {one.name.value for one in source.every(cst.ClassDef)}


def _passes(call: cst.Call, function: cst.FunctionDef, parameter: str | None) -> bool:
    if parameter is None or any(arg.star for arg in call.args):
        return True
    names = [each.name.value for each in function.params.params]
    at = names.index(parameter) - (names[:1] == ["self"]) if parameter in names else len(names)
    by_name = any(arg.keyword is not None and arg.keyword.value == parameter for arg in call.args)
    return by_name or sum(arg.keyword is None for arg in call.args) > at


def _is_partial(source: Source, call: cst.Call) -> bool:
    """Whether what is called has some of its arguments already: `score = partial(model, targets=y)`."""
    if not isinstance(call.func, cst.Name):
        return False
    made = reaching(source, statement_of(source, call), call.func.value).value
    return isinstance(made, cst.Call) and "functools.partial" in source.names(made.func)


def _unpacked(source: Source, call: cst.Call) -> list[cst.BaseExpression] | None:
    assign = source.parent(call)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target = assign.targets[0].target
    return [each.value for each in target.elements] if isinstance(target, cst.Tuple | cst.List) else None


def _is_unread(source: Source, call: cst.Call, output: Output) -> bool:
    assert output.position is not None  # names are looked for otherwise
    parent = source.parent(call)
    if isinstance(parent, cst.Expr):
        return True
    if isinstance(parent, cst.Subscript):
        return _picks_another(parent, output)
    unpacked = _unpacked(source, call)
    if unpacked is not None:
        target = unpacked[output.position] if len(unpacked) == output.length else None
        return isinstance(target, cst.Name) and not list(_readers(source, target))
    if isinstance(parent, cst.Assign) and isinstance(target := parent.targets[0].target, cst.Name):
        return all(
            isinstance(above := source.parent(read), cst.Subscript)
            and above.value is read
            and _picks_another(above, output)
            for read in _readers(source, target)
        )
    return False


def _picks_another(picked: cst.Subscript, output: Output) -> bool:
    index = picked.slice[0].slice if len(picked.slice) == 1 else None
    number = integer(index.value) if isinstance(index, cst.Index) else None
    return number is not None and number % output.length != output.position


def _readers(source: Source, target: cst.Name) -> Iterator[cst.Name]:
    """Every mention of a variable in its function that is no binding; whichever binding it sees."""
    scope = scope_of(source, target)
    for name in names_in(source, scope):
        parent = source.parent(name)
        bound = isinstance(parent, cst.AssignTarget | cst.Element) and source.inside(name, cst.AssignTarget) is not None
        if name.value == target.value and not bound and scope_of(source, name) is scope:
            yield name
