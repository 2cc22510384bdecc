"""Reads of the device put off: sums, lists and single values that stay on the device until they are used."""

from __future__ import annotations

import dataclasses

import libcst as cst

from diagnose.source.dataflow.exception_handlers import may_catch
from diagnose.source.dataflow.exit_paths import seen_after_failure, seen_elsewhere
from diagnose.source.dataflow.flow import (
    Loop,
    Uses,
    Variable,
    asks_nothing,
    binds,
    gate,
    is_after,
    is_append,
    loops_around,
    scope_of,
    uses_of,
    within,
)
from diagnose.source.dataflow.purity import only_computes
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.device.class_attributes import uses_of_attribute
from diagnose.source.device.deferral import Deferred, LeftAlone
from diagnose.source.device.deferred_writes import NotPending, on_one_line, put_off_statement, puts_off
from diagnose.source.device.device_reads import is_read, log_branch, tensor_of
from diagnose.source.device.kept_values import keep_list, keep_sum
from diagnose.source.tree.edits import call_name, free_name, insert_above, insert_after, insert_before, replace
from diagnose.source.tree.syntax import Source, Splice

__all__ = ["Deferred", "LeftAlone", "filled_by", "keep_on_device", "put_off", "read_at_once"]

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_CHANGES = _PARAMETERS | {"backward", "step"}
_LEAVES = cst.Break | cst.Return | cst.Yield | cst.Raise


def put_off(plan: Deferred, read: cst.Call, batch: Loop) -> None:
    """Run the statement that takes the value when somebody looks at what it fills."""
    try:
        plan.splices += put_off_statement(plan.source, plan.others, read, batch)
    except NotPending as reason:
        raise LeftAlone(str(reason)) from reason
    plan.moved.append(f"`{puts_off(plan.source, read, sums=True)}`")


def filled_by(source: Source, read: cst.Call) -> str:
    """The variable, or attribute of the object, that a read goes to. Raises LeftAlone where it goes elsewhere."""
    for above in source.ancestors(read):
        if isinstance(above, cst.AugAssign) and isinstance(above.target, Variable):
            return source.code(above.target)
        if isinstance(above, cst.Assign) and len(above.targets) == 1:
            target = above.targets[0].target
            if isinstance(target, Variable):
                return source.code(target)
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
    """Let a variable of the training loop hold tensors, and read it where it is used. Raises LeftAlone."""
    source = plan.source
    uses = _followed(plan, read, name)
    if uses.lost:
        raise LeftAlone(f"`{name}` {uses.lost}")
    uses = _until_another_value(source, uses, batch)
    for use in uses.reads:
        here = scope_of(source, use) is scope_of(source, batch)
        if within(source, use, batch) and not asks_nothing(source, use) and gate(source, use, batch) is None:
            raise LeftAlone(f"`{name}` is used in every step, in line {source.lines_of(use)[0]}")
        early = here and not within(source, use, batch) and not is_after(source, use, batch)
        if early and not asks_nothing(source, use):
            raise LeftAlone(f"`{name}` is used before the loop, in line {source.lines_of(use)[0]}")
        part = source.inside(use, cst.FormattedStringExpression)
        if part is not None and part.equal is not None:
            raise LeftAlone(f"`{name}` is printed with its own source text, in line {source.lines_of(use)[0]}")
    if any(isinstance(value, cst.List) for _, value in uses.assigned):
        keep_list(plan, name, uses, batch)
    elif len(uses.assigned) == 1 and not uses.augmented and uses.assigned[0][1] is read:
        plan.splices.append(replace(source, read, tensor_of(source, read, "kept")))
        plan.splices += [replace(source, use, f"{name}.item()") for use in uses.reads]
    else:
        keep_sum(plan, name, uses, batch)
    plan.moved.append(f"`{name}`")


def _until_another_value(source: Source, uses: Uses, batch: Loop) -> Uses:
    """The uses of a list that the loop fills, where the block around gives its name away: `losses = mean(losses)`."""
    if len(uses.assigned) != 2 or not isinstance(uses.assigned[0][1], cst.List):
        return uses
    (start, _), (again, value) = uses.assigned
    statements = [source.inside(each, cst.SimpleStatementLine) for each in (start, again)]
    blocks = {source.parent(each) for each in (*statements, batch) if each is not None}
    after = source.span(batch)[1] < source.span(again)[0] and source.span(start)[0] < source.span(batch)[0]
    if not after or len(blocks) != 1 or any(map(is_read, source.every(cst.Call, value))):
        return uses
    end = source.span(value)[1]
    if any(source.span(each)[0] > end for each, _ in uses.augmented):
        return uses
    reads = tuple(each for each in uses.reads if source.span(each)[0] < end)
    return dataclasses.replace(uses, assigned=uses.assigned[:1], reads=reads)


def _followed(plan: Deferred, read: cst.Call, name: str) -> Uses:
    """Every use of the variable. Raises LeftAlone where the read itself may fail, or code sees it without its name."""
    source, scope = plan.source, scope_of(plan.source, read)
    for above in source.ancestors(read):
        if above is scope:
            break
        if may_catch({"": source}, source, above, None) and loops_around(source, above):
            raise LeftAlone("what reading it raises is caught")
        if isinstance(above, cst.With) and any("inference_mode" in source.code(item.item) for item in above.items):
            raise LeftAlone("it is read in inference mode, whose tensors cannot be added to outside of it")
    target = next((each for each in source.every(cst.Attribute, scope) if source.code(each) == name), None)
    if target is not None and "." in name:
        return uses_of_attribute(source, plan.others, target)
    seen = seen_elsewhere(source, plan.others, scope, name)
    if seen is not None:
        raise LeftAlone(f"`{name}` {seen}")
    return uses_of(source, scope, name)


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
    uses = uses_of(source, scope_of(source, loop), name)
    if uses.lost or not uses.assigned:
        raise LeftAlone(f"`{name}` {uses.lost or 'is not made in this function'}")
    failed = seen_after_failure(source, loop, [name])
    if failed is not None or any(source.every(cst.Return, loop)) or any(source.every(cst.Yield, loop)):
        raise LeftAlone(failed or "the loop may be left while its values wait")
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
    indent = _indent(source)
    flush = [
        f"if {kept}:",
        f"{indent}for {value} in {_read_all(plan, kept)}:",
        f"{indent}{indent}{on_one_line(again)}",
    ]
    plan.splices.append(insert_above(source, loop, [f"{kept} = []"]))
    plan.splices.append(Splice(begin, finish, f"{kept}.append({tensor_of(source, read, 'kept')})"))
    logged = log_branch(source, loop, name) if not others else None
    if logged is None:
        plan.splices.append(insert_after(source, loop, flush))
    else:
        plan.splices.append(insert_before(source, logged, flush))
    plan.moved.append(f"`{name}`")


def _read_all(plan: Deferred, kept: str) -> str:
    """Code for the numbers of a list of tensors of one entry each, which may lie on several devices."""
    return f"{plan.torch}.cat([each.view(1).to({kept}[0].device) for each in {kept}]).tolist()"


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
    if not all(_skips(row) for row in before) or _changes(source, loop):
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
        f"if {kept}:",
        f"{indent}{kept} = {_read_all(plan, kept)}",
        f"{kept} = iter({kept})",
    ]
    plan.splices += [insert_above(source, loop, lines), replace(source, read, f"next({kept})")]
    plan.moved.append(f"`{name}`")
    return True


def _changes(source: Source, loop: cst.For) -> bool:
    """Whether a loop may be left early, or changes what its later turns read."""
    if any(isinstance(node, _LEAVES) for node in source.walk(loop.body)):
        return True
    return any(call_name(call) in _CHANGES for call in source.every(cst.Call, loop.body))


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
