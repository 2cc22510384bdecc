"""Reads of the device put off: sums, lists and single values that stay on the device until they are used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.edit import call_name, free_name, insert_above, insert_after, insert_before, replace
from diagnose.source.flow import (
    STEADY_UPDATES,
    Loop,
    Uses,
    asks_nothing,
    binds,
    gate,
    is_after,
    is_append,
    scope_of,
    updates,
    uses_of,
    within,
)
from diagnose.source.pure import only_computes
from diagnose.source.reaching import names_in
from diagnose.source.steps.pending import NotPending, put_off_statement, puts_off
from diagnose.source.steps.reads import is_read, log_branch, outcome, tensor_of
from diagnose.source.syntax import Source, Splice

__all__ = ["Deferred", "LeftAlone", "filled_by", "keep_on_device", "put_off", "read_at_once"]

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_CHANGES = re.compile(r"backward\(|\.step\(|\bparameters\(|named_parameters\(|\b(break|return|yield)\b")
_COUNTS = re.compile(r"==|!=|\.(?:eq|ne|gt|lt|ge|le|count_nonzero)\(")
_MEASURES = re.compile(r"loss|norm|mean|error|entropy|criterion|mse|nll|accuracy", re.IGNORECASE)


class LeftAlone(Exception):
    """Why a read stays where it is."""


@dataclass
class Deferred:
    """The edits of one file while they are found."""

    source: Source
    splices: list[Splice] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """What was deferred, for the summary."""
    reasons: list[str] = field(default_factory=list)
    torch: str = "torch"
    taken: set[str] = field(default_factory=set)
    """New names so far."""


def put_off(plan: Deferred, read: cst.Call, batch: Loop) -> None:
    """Run the statement that takes the value when somebody looks at what it fills."""
    try:
        plan.splices += put_off_statement(plan.source, read, batch, plan.torch)
    except NotPending as reason:
        raise LeftAlone(str(reason)) from reason
    plan.moved.append(f"`{puts_off(plan.source, read)}`")


def filled_by(source: Source, read: cst.Call) -> str:
    """The variable that a read goes to. Raises LeftAlone where it goes elsewhere."""
    for above in source.ancestors(read):
        if isinstance(above, cst.AugAssign) and isinstance(above.target, cst.Name):
            return above.target.value
        if isinstance(above, cst.Assign) and len(above.targets) == 1:
            target = above.targets[0].target
            if isinstance(target, cst.Name):
                return target.value
        if is_append(above) and isinstance(above, cst.Call):
            assert isinstance(above.func, cst.Attribute)
            return source.code(above.func.value)
        if isinstance(above, cst.If | cst.While | cst.IfExp | cst.Comparison | cst.Assert | cst.Return):
            raise LeftAlone("its value steers the program")
        if isinstance(above, cst.Call) and source.code(above.func) == "print":
            raise LeftAlone("it is printed in every step; print every n-th step only")
        if isinstance(above, cst.BaseSmallStatement):
            break
    raise LeftAlone("where its value goes is not understood")


def keep_on_device(plan: Deferred, read: cst.Call, batch: Loop, name: str) -> None:
    """Let a variable of the training loop hold tensors, and read it where it is used."""
    source = plan.source
    uses = uses_of(source, scope_of(source, read), name)
    if uses.lost:
        raise LeftAlone(f"`{name}` {uses.lost}")
    for use in uses.reads:
        if within(source, use, batch) and not asks_nothing(source, use) and gate(source, use, batch) is None:
            raise LeftAlone(f"`{name}` is used in every step, in line {source.lines_of(use)[0]}")
        if not within(source, use, batch) and not is_after(source, use, batch) and not asks_nothing(source, use):
            raise LeftAlone(f"`{name}` is used before the loop, in line {source.lines_of(use)[0]}")
        part = source.inside(use, cst.FormattedStringExpression)
        if part is not None and part.equal is not None:
            raise LeftAlone(f"`{name}` is printed with its own source text, in line {source.lines_of(use)[0]}")
    if any(isinstance(value, cst.List) for _, value in uses.assigned):
        _keep_list(plan, name, uses)
    elif len(uses.assigned) == 1 and not uses.augmented and uses.assigned[0][1] is read:
        plan.splices.append(replace(source, read, tensor_of(source, read, "kept")))
        plan.splices += [replace(source, use, f"{name}.item()") for use in uses.reads]
    else:
        _keep_sum(plan, name, uses)
    plan.moved.append(f"`{name}`")


def _keep_sum(plan: Deferred, name: str, uses: Uses) -> None:
    """A sum or a moving average: float64 on the device, as Python's own floats are; counts stay integers."""
    source = plan.source
    values = [value for _, value in uses.assigned] + [statement.value for _, statement in uses.augmented]
    reads: list[cst.Call] = []
    for value in values:
        found = [call for call in source.every(cst.Call, value) if is_read(call)]
        reads += found
        if any(updates(source, call) != name for call in found):
            raise LeftAlone(f"`{name}` is computed in a way that is not followed, in line {source.lines_of(value)[0]}")
        plain = isinstance(value, cst.Integer | cst.Float) or source.code(value) == "None"
        own = any(use.value == name for use in source.every(cst.Name, value))
        if not found and not plain and not own and not any(value is each.value for _, each in uses.augmented):
            raise LeftAlone(f"`{name}` gets a value from elsewhere, in line {source.lines_of(value)[0]}")
    code = " ".join(source.code(call) for call in reads)
    operators = [statement.operator for _, statement in uses.augmented]
    starts = [value for _, value in uses.assigned if isinstance(value, cst.Integer)]
    counts = bool(starts) and bool(_COUNTS.search(code))
    if not all(isinstance(each, cst.AddAssign if counts else STEADY_UPDATES) for each in operators):
        raise LeftAlone(f"`{name}` is computed in a way that is not followed")
    measured = _MEASURES.search(name) or all(_MEASURES.search(outcome(source, call)) for call in reads)
    if starts and not counts and not measured:
        raise LeftAlone(f"whether `{name}` is a count or a measure cannot be told from its start at an integer")
    plan.splices += [replace(source, call, tensor_of(source, call, "" if counts else "added")) for call in reads]
    into = "int" if counts else "float"
    for use in uses.reads:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        converted = isinstance(above, cst.Call) and source.code(above.func) in {"float", "int"}
        if not converted and not asks_nothing(source, use):
            plan.splices.append(replace(source, use, f"{into}({name})"))


def _keep_list(plan: Deferred, name: str, uses: Uses) -> None:
    """A list of values: it holds tensors, and each use reads those that it needs at once."""
    source = plan.source
    added = [each.value for _, statement in uses.augmented for each in _added(statement)]
    grows = all(isinstance(value, cst.List) and not value.elements for _, value in uses.assigned)
    if not grows or not all(any(_added(statement)) for _, statement in uses.augmented):
        raise LeftAlone(f"`{name}` does not only grow by one value after the other")
    for value in added:
        if not isinstance(value, cst.Call) or not is_read(value):
            raise LeftAlone(f"`{name}` also takes other values, in line {source.lines_of(value)[0]}")
        plan.splices.append(replace(source, value, tensor_of(source, value, "kept")))
    for use in uses.reads:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        if isinstance(above, cst.Call) and is_append(above) and isinstance(parent, cst.Attribute):
            value = above.args[0].value
            if not isinstance(value, cst.Call) or not is_read(value):
                raise LeftAlone(f"`{name}` also takes other values, in line {source.lines_of(use)[0]}")
            plan.splices.append(replace(source, value, tensor_of(source, value, "kept")))
        elif asks_nothing(source, use):
            continue
        elif isinstance(parent, cst.Subscript) and parent.value is use:
            plan.splices.append(_read_part(plan, parent))
        else:
            plan.splices.append(replace(source, use, f"({plan.torch}.stack({name}).tolist() if {name} else [])"))


def _added(statement: cst.AugAssign) -> Sequence[cst.BaseElement]:
    """The elements of `name += [value, …]`; none of another update."""
    written = isinstance(statement.operator, cst.AddAssign) and isinstance(statement.value, cst.List)
    return statement.value.elements if written and isinstance(statement.value, cst.List) else ()


def _read_part(plan: Deferred, part: cst.Subscript) -> Splice:
    code = plan.source.code(part)
    sliced = isinstance(part.slice[0].slice, cst.Slice)
    return replace(plan.source, part, f"{plan.torch}.stack({code}).tolist()" if sliced else f"{code}.item()")


def read_at_once(plan: Deferred, read: cst.Call, loop: cst.For) -> None:
    """Collect the tensors of a loop, and run the statement that wanted their values afterwards."""
    source = plan.source
    statement = source.statement(read)
    assert statement is not None  # an expression lies in a statement
    name = filled_by(source, read)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1 or loop.orelse is not None:
        raise LeftAlone("its statement cannot be moved")
    first = statement.body[0]
    if not (isinstance(first, cst.AugAssign) or (isinstance(first, cst.Expr) and is_append(first.value))):
        if not _read_ahead(plan, read, loop, name):
            raise LeftAlone(f"`{name}` is set anew for each turn of the loop")
        return
    for node in source.every(cst.Name, loop):
        if node.value == name and not within(source, node, statement):
            raise LeftAlone(f"`{name}` is used within the loop, in line {source.lines_of(node)[0]}")
    outside = [
        node for node in source.every(cst.Name, first) if not any(above is read for above in source.ancestors(node))
    ]
    others = {node.value for node in outside} - {name}
    if (
        any(binds(source, loop, other) for other in others)
        or len(list(filter(is_read, source.every(cst.Call, first)))) > 1
    ):
        raise LeftAlone("its statement needs more than this one value from the loop")
    kept, value = free_name(source, f"{name}_values", plan.taken), free_name(source, "value")
    plan.taken.add(kept)
    start, end = source.span(read)
    begin, finish = source.span(first)
    again = source.text[begin:start] + value + source.text[end:finish]
    flush = [f"for {value} in {plan.torch}.stack({kept}).tolist() if {kept} else []:", f"{_indent(source)}{again}"]
    plan.splices.append(insert_above(source, loop, [f"{kept} = []"]))
    plan.splices.append(Splice(begin, finish, f"{kept}.append({tensor_of(source, read, 'kept')})"))
    logged = log_branch(source, loop, name) if not others else None
    if logged is None:
        plan.splices.append(insert_after(source, loop, flush))
    else:
        plan.splices.append(insert_before(source, logged, flush))
    plan.moved.append(f"`{name}`")


def _read_ahead(plan: Deferred, read: cst.Call, loop: cst.For, name: str) -> bool:
    """Let a loop of its own, before this one, collect the tensors of all parameters, to be read together."""
    source = plan.source
    assign = source.parent(read)
    over = loop.iter
    rows = list(loop.body.body) if isinstance(loop.body, cst.IndentedBlock) else []
    statement = source.statement(read)
    if not isinstance(over, cst.Call) or call_name(over) not in _PARAMETERS or statement not in rows:
        return False
    before = rows[: rows.index(statement)]
    own = {node.value for node in source.every(cst.Name, loop.target)}
    needed = {node.value for node in names_in(source, read)}
    if not isinstance(assign, cst.Assign) or assign.value is not read or not needed & own:
        return False
    if not all(_skips(row) for row in before) or _CHANGES.search(source.code(loop.body)):
        return False
    if any(binds(source, row, each) for row in rows for each in needed) or not only_computes(source, read, {}):
        return False
    if sum(map(is_read, source.every(cst.Call, loop))) > 1:
        return False
    kept = free_name(source, f"{name}_values", plan.taken)
    plan.taken.add(kept)
    indent = _indent(source)
    skips = [f"{indent}{line}" for row in before for line in _dedented(source, row)]
    lines = [
        f"{kept} = []",
        f"for {source.code(loop.target)} in {source.code(over)}:",
        *skips,
        f"{indent}{kept}.append({tensor_of(source, read, 'kept')})",
        f"{kept} = iter({plan.torch}.stack({kept}).flatten().tolist() if {kept} else [])",
    ]
    plan.splices += [insert_above(source, loop, lines), replace(source, read, f"next({kept})")]
    plan.moved.append(f"`{name}`")
    return True


def _skips(row: cst.CSTNode) -> bool:
    """Whether a statement is `if …: continue` and nothing else."""
    if not isinstance(row, cst.If) or row.orelse is not None or not isinstance(row.body, cst.IndentedBlock):
        return False
    inner = row.body.body
    line = inner[0] if len(inner) == 1 else None
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Continue)


def _dedented(source: Source, row: cst.CSTNode) -> list[str]:
    """The lines of a statement without the indentation of its block."""
    start, end = source.span(row)
    outer = start - source.line_start(start)
    return [
        line[outer:] if number else line for number, line in enumerate(source.text[start:end].rstrip().splitlines())
    ]


def _indent(source: Source) -> str:
    return source.indentation
