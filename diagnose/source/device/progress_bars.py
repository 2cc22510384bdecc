"""Progress bars that show a value read from the device: shown in every tenth turn, and in the last."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.flow import Loop, binds, scope_of
from diagnose.source.dataflow.iteration import PROGRESS_BARS, numbered, unwrapped
from diagnose.source.tree.edits import call_name, free_name
from diagnose.source.tree.syntax import Source, Splice

_SHOWS = frozenset({"set_postfix", "set_postfix_str", "set_description", "set_description_str"})
_LIBRARIES = frozenset({"torch", "math", "numpy", "time"})
_NUMBERS = (
    "item",
    "tolist",
    "detach",
    "cpu",
    "numpy",
    "float",
    "mean",
    "norm",
    "get",
    "get_last_lr",
    "items",
    "values",
)
_BUILT_IN = (
    "int",
    "str",
    "round",
    "abs",
    "max",
    "min",
    "sum",
    "len",
    "dict",
    "sorted",
    "zip",
    "format",
    "join",
    "keys",
)
_ONLY_READS = frozenset({*_NUMBERS, *_BUILT_IN})
EVERY = 10


def on_progress_bar(source: Source, read: cst.Call) -> cst.Expr | None:
    """The statement that shows a value on a progress bar, if that is all that is done with it."""
    for above in source.ancestors(read):
        if isinstance(above, cst.Expr):
            return above if isinstance(above.value, cst.Call) and call_name(above.value) in _SHOWS else None
    return None


def shown_at(source: Source, lines: set[int]) -> Iterator[cst.Expr]:
    """The statements on any of these lines that show something on a progress bar, which formats tensors by itself."""
    for call in source.every(cst.Call):
        statement = source.parent(call)
        first, last = source.lines_of(call)
        if call_name(call) in _SHOWS and isinstance(statement, cst.Expr) and lines & {*range(first, last + 1)}:
            yield statement


def does_more(source: Source, statement: cst.Expr) -> bool:
    """Whether what it shows is bound to a name there, or made by code that may have to run each turn."""
    own = {each.name.value for each in source.every(cst.FunctionDef)}
    own |= {each.name.value for each in source.every(cst.ClassDef)}
    for call in source.every(cst.Call, statement):
        library = any(name.partition(".")[0] in _LIBRARIES for name in source.names(call.func))
        if (
            call is not statement.value
            and not library
            and (call_name(call) not in _ONLY_READS or call_name(call) in own)
        ):
            return True
    return any(source.every(cst.NamedExpr, statement))


def show_less_often(source: Source, statement: cst.Expr, batch: Loop) -> list[Splice] | str:
    """Guard the statement by a count of turns, so that it runs in every tenth and in the last; else why not."""
    line = source.parent(statement)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1 or not isinstance(batch, cst.For):
        return "nothing counts the steps"
    if source.parent(line) is not batch.body or _is_left(source, batch):
        return "which step is the last to show it is not known"
    shows = call_name(statement.value) if isinstance(statement.value, cst.Call) else ""
    if shows in source.function_names:
        return f"`{shows}` is the program's own"
    counted = _turns(source, batch)
    if counted is None:
        return "how many steps there are is not known"
    count, last, header = counted
    start, end = source.span(statement)
    more = source.indentation
    rows = source.text[start:end].split("\n")
    moved = "\n".join([rows[0], *(more + row if row.strip() else row for row in rows[1:])])
    guard = f"if {count} % {EVERY} == 0 or {count} == {last}:{source.newline}{source.indent(line)}{more}"
    return [*header, Splice(start, end, guard + moved)]


def _is_left(source: Source, batch: cst.For) -> bool:
    """Whether a turn may end before its own end: what is shown last would be another value."""
    leaves = cst.Break | cst.Continue | cst.Return | cst.Yield
    return any(isinstance(node, leaves) for node in source.walk(batch.body))


def _turns(source: Source, batch: cst.For) -> tuple[str, str, list[Splice]] | None:
    """The variable that counts the turns from 0, code of its last value, and the edit of the loop's head for both."""
    over, target = batch.iter, batch.target
    pair = numbered(batch)
    if pair is not None:
        first, size = pair.number, _size(source, pair.values) if pair.from_zero else None
        if size is None or not isinstance(first, cst.Name) or binds(source, batch.body, first.value):
            return None
        return first.value, f"{size} - 1", []
    numbers = unwrapped(over, PROGRESS_BARS)
    if isinstance(numbers, cst.Call) and call_name(numbers) in {"range", "trange"} and isinstance(target, cst.Name):
        positional = [arg for arg in numbers.args if arg.keyword is None]
        end = positional[0].value if len(positional) == 1 else None
        if not isinstance(end, cst.Integer | cst.Name) or binds(source, batch.body, target.value):
            return None
        stays = isinstance(end, cst.Integer) or not binds(source, batch.body, end.value)
        return (target.value, f"{source.code(end)} - 1", []) if stays else None
    size = _size(source, over)
    if size is None:
        return None
    count = free_name(source, "turn")
    shown = source.code(target)
    drawn = f"({shown})" if isinstance(target, cst.Tuple) and not target.lpar else shown
    head = Splice(
        source.wide_span(target)[0], source.wide_span(over)[1], f"{count}, {drawn} in enumerate({source.code(over)})"
    )
    return count, f"{size} - 1", [head]


def _size(source: Source, node: cst.BaseExpression) -> str | None:
    """Code of how many turns a loop over something has; None where that may not be known before they are over."""
    inner = unwrapped(node, PROGRESS_BARS)
    code = source.code(inner)
    if not isinstance(inner, cst.Name | cst.Attribute):
        return None
    for call in source.every(cst.Call, scope_of(source, node)):
        asked = isinstance(call.func, cst.Name) and call.func.value == "len" and len(call.args) == 1
        if asked and source.code(call.args[0].value) == code:
            return f"len({code})"
    values = bound_to(source, inner) if isinstance(inner, cst.Name) else []
    sized = [isinstance(each, cst.BaseExpression) and _is_sized(source, each) for each in values]
    return f"len({code})" if sized and all(sized) else None


def _is_sized(source: Source, value: cst.BaseExpression, seen: tuple[cst.CSTNode, ...] = ()) -> bool:
    """Whether a value is evidently a list, or a loader of a data set that has a length.

    `seen` are the names on the way to it: `loader = tqdm(loader)` does not tell what the loader was before.
    """
    value = unwrapped(value, PROGRESS_BARS)
    if isinstance(value, cst.Name):
        values = bound_to(source, value) if value not in seen else []
        made = values[0] if len(values) == 1 else None
        return isinstance(made, cst.BaseExpression) and _is_sized(source, made, (*seen, value))
    if isinstance(value, cst.Call) and call_name(value) == "DataLoader":
        named = (name.value for name in source.every(cst.Name))
        return not any("IterableDataset" in name or name == "IterDataPipe" for name in named)
    return isinstance(value, cst.List | cst.ListComp | cst.Tuple)
