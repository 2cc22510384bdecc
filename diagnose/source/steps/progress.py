"""Progress bars that show a value read from the device: shown in every tenth turn."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.edit import call_name
from diagnose.source.flow import Loop, within
from diagnose.source.steps.every_step import counter_of
from diagnose.source.syntax import Source, Splice

__all__ = ["does_more", "on_progress_bar", "show_less_often", "shown_at"]

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


def show_less_often(source: Source, statement: cst.Expr, batch: Loop) -> list[Splice] | None:
    """Guard the statement by a count of turns; None where there is no count or the statement shares its line."""
    line = source.parent(statement)
    count = counter_of(source, batch) or _bar_count(source, statement, batch)
    if count is None or not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        return None
    if not within(source, statement, batch):
        return None
    start, end = source.span(statement)
    more = source.indentation
    rows = source.text[start:end].split("\n")
    moved = "\n".join([rows[0], *(more + row if row.strip() else row for row in rows[1:])])
    guard = f"if {count} % {EVERY} == 0:{source.newline}{source.indent(line)}{more}"
    return [Splice(start, end, guard + moved)]


def _bar_count(source: Source, statement: cst.Expr, batch: Loop) -> str | None:
    """`bar.n`, where the loop goes over the bar itself."""
    assert isinstance(statement.value, cst.Call)
    function = statement.value.func
    if isinstance(function, cst.Attribute) and isinstance(batch, cst.For):
        bar = source.code(function.value)
        return f"{bar}.n" if source.code(batch.iter) == bar else None
    return None
