"""Sums and lists of a training loop that hold tensors, and are read where the program uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from diagnose.source.dataflow.exception_handlers import may_catch
from diagnose.source.dataflow.flow import (
    STEADY_UPDATES,
    Loop,
    Uses,
    Variable,
    asks_nothing,
    gate,
    is_append,
    loops_around,
    scope_of,
    updates,
    within,
)
from diagnose.source.dataflow.iteration import OF_ONE_PASS
from diagnose.source.device.deferral import Deferred, LeftAlone
from diagnose.source.device.device_reads import is_read, tensor_of, tensor_read
from diagnose.source.device.value_kinds import Kind, is_number, is_reduced, kind_of, number_kind
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import call_name, insert_after, replace
from diagnose.source.tree.syntax import Source, Splice

_EXACT = cst.Add | cst.Subtract | cst.Multiply
"""Operators that give the same float64 on every device; some divide by multiplying with the inverse."""
_MPS = re.compile(r"""["']mps\b|\.mps\b|torch\.accelerator\b""")
_CONSUMES = frozenset(
    {"print", "sum", "min", "max", "len", "sorted", "str", "float", "mean", "std", "median", "tensor"}
    | {"array", "dump", "dumps", "list", "tuple", "set"}
)
"""Functions that keep nothing of a list they are given."""


def keep_sum(plan: Deferred, name: str, uses: Uses, batch: Loop) -> None:
    """A sum or a moving average: float64 on the device, as Python's own floats are; counts stay integers."""
    source = plan.source
    values = [*(value for _, value in uses.assigned), *(each.value for _, each in uses.augmented)]
    reads = {value: [call for call in source.every(cst.Call, value) if is_read(call)] for value in values}
    for value, found in reads.items():
        _check_value(source, name, uses, batch, value, found)
    every = [call for found in reads.values() for call in found]
    starts = {number_kind(source, value) for _, value in uses.assigned if not reads[value]} - {None}
    kinds = {kind_of(source, tensor_read(call)) for call in every}
    added = {kind for value, found in reads.items() if found for kind in _number_kinds(source, value)}
    whole = starts == {Kind.WHOLE} and kinds | added == {Kind.WHOLE}
    if Kind.WHOLE in starts and not whole and not (Kind.FLOAT in kinds | added and None not in kinds):
        raise LeftAlone(f"whether `{name}` is a count or a measure cannot be told from its start at an integer")
    into = "int" if whole else "float"
    if not whole and (Kind.WHOLE in starts or None in map(_start, (value for _, value in uses.assigned))):
        _check_start(source, name, uses, batch)
    if not whole and any(_MPS.search(each.text) for each in (source, *plan.others)):
        raise LeftAlone("the program may run on an MPS device, which has no float64")
    shaped = len(every) > 1 and not all(is_reduced(source, tensor_read(call)) for call in every)
    for call in every:
        code = tensor_of(source, call, "" if whole else "added") + (".squeeze()" if shaped else "")
        copied = ".clone()" if any(value is call for _, value in uses.assigned) else ""
        plan.splices.append(replace(source, call, code + copied))
    _convert(plan, name, uses, batch, into, [value for value in values if reads[value]])


def _check_value(
    source: Source, name: str, uses: Uses, batch: Loop, value: cst.BaseExpression, found: Sequence[cst.Call]
) -> None:
    """Refuse what a sum gets where the device would compute it in another way than Python. Raises LeftAlone."""
    line = source.lines_of(value)[0]
    if not found:
        plain = isinstance(value, cst.Integer | cst.Float) or source.code(value) == "None"
        own = any(_is_variable(source, each) and source.code(each) == name for each in source.walk(value))
        augments = any(value is each.value for _, each in uses.augmented)
        if not plain and not own and not augments:
            raise LeftAlone(f"`{name}` gets a value from elsewhere, in line {line}")
        if within(source, value, batch) and gate(source, value, batch) is None and not plain:
            raise LeftAlone(f"`{name}` is used in every step, in line {line}")
        return
    if any(updates(source, call) != name for call in found):
        raise LeftAlone(f"`{name}` is computed in a way that is not followed, in line {line}")
    around = source.parent(value)
    if isinstance(around, cst.AugAssign) and not isinstance(around.operator, STEADY_UPDATES[:2]):
        raise LeftAlone(f"`{name}` is computed in a way that is not followed, in line {line}")
    for operation in source.every(cst.BinaryOperation, value):
        outside = not any(within(source, operation, call) for call in found)
        if outside and not isinstance(operation.operator, _EXACT):
            raise LeftAlone(f"what `{name}` is given is not computed alike on every device, in line {line}")
    for part in _operands(value, found):
        if source.code(part) != name and not is_number(source, part):
            raise LeftAlone(f"whether `{source.code(part)}` is a number is not seen, in line {line}")


def _is_variable(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is a variable, and not the name of an attribute of one."""
    return isinstance(node, Variable) and not is_attribute_name(source, node)


def _operands(node: cst.BaseExpression, reads: Sequence[cst.Call]) -> Iterator[cst.BaseExpression]:
    """Yield what stands beside the reads in a formula."""
    if any(node is read for read in reads):
        return
    if isinstance(node, cst.BinaryOperation):
        yield from _operands(node.left, reads)
        yield from _operands(node.right, reads)
    elif isinstance(node, cst.UnaryOperation):
        yield from _operands(node.expression, reads)
    else:
        yield node


def _number_kinds(source: Source, value: cst.BaseExpression) -> Iterator[Kind]:
    found = [call for call in source.every(cst.Call, value) if is_read(call)]
    yield from (kind for part in _operands(value, found) if (kind := number_kind(source, part)) is not None)


def _start(value: cst.BaseExpression) -> str | None:
    return None if isinstance(value, cst.Name) and value.value == "None" else "number"


def _check_start(source: Source, name: str, uses: Uses, batch: Loop) -> None:
    """Refuse a use that may see the start itself, which is no float: `0` prints otherwise than `0.0`.

    Raises LeftAlone.
    """
    none = any(_start(value) is None for _, value in uses.assigned)
    again = any(within(source, target, batch) for target, value in uses.assigned if number_kind(source, value))
    added = [each for _, each in (*uses.augmented, *uses.assigned) if any(map(is_read, source.every(cst.Call, each)))]
    rare = any(
        source.inside(each, cst.If) is not None and within(source, source.inside(each, cst.If) or each, batch)
        for each in added
    )
    for use in uses.reads:
        inside = within(source, use, batch) and scope_of(source, use) is scope_of(source, batch)
        if inside or asks_nothing(source, use) or _is_formatted(source, use, none):
            continue
        if none or again or rare:
            raise LeftAlone(f"`{name}` may still be what it starts as, in line {source.lines_of(use)[0]}")


def _is_formatted(source: Source, use: Variable, none: bool) -> bool:
    """Whether a use shows 0 as it shows 0.0: with a format of its own, or divided."""
    parent = source.parent(use)
    if isinstance(parent, cst.FormattedStringExpression):
        return parent.format_spec is not None
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        return not none and isinstance(call, cst.Call) and source.code(call.func) == "float"
    return not none and isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Divide)


def _convert(
    plan: Deferred, name: str, uses: Uses, batch: Loop, into: str, formulas: Sequence[cst.BaseExpression]
) -> None:
    """Let every use read the value: each of its own, or one statement after the loop for all that follow."""
    source = plan.source
    own = [use for use in uses.reads if any(within(source, use, each) or use is each for each in formulas)]
    others = [use for use in uses.reads if not any(use is each for each in own) and not _asks(source, use)]
    foreign = [each for _, each in uses.augmented if not any(each.value is one for one in formulas)]
    outside = [each for each in (*others, *foreign) if not within(source, each, batch)]
    ended = all(within(source, each, batch) for each in formulas)  # no later loop makes a tensor of it again
    if ended and len(outside) > 1 and "." not in name and _is_passed(source, uses, batch):
        plan.splices.append(insert_after(source, batch, [f"{name} = {into}({name})"]))
        others = [use for use in others if within(source, use, batch)]
        foreign = [each for each in foreign if within(source, each, batch)]
    for each in foreign:
        operator = source.text[source.wide_span(each.target)[1] : source.wide_span(each.value)[0]].strip()[:-1]
        value = source.code(each.value)
        simple = isinstance(each.value, cst.Name | cst.Attribute | cst.Call | cst.Integer | cst.Float | cst.Subscript)
        value = value if simple or value.startswith("(") else f"({value})"
        plan.splices.append(Splice(*source.span(each), f"{name} = {into}({name}) {operator} {value}"))
        plan.splices = [edit for edit in plan.splices if edit is plan.splices[-1] or not _inside(source, edit, each)]
        others = [use for use in others if not within(source, use, each)]
    for use in others:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        converted = isinstance(above, cst.Call) and source.code(above.func) in {"float", "int"}
        if not (converted and source.code(above.func) == into if isinstance(above, cst.Call) else False):
            plan.splices.append(replace(source, use, f"{into}({name})"))


def _inside(source: Source, edit: Splice, node: cst.CSTNode) -> bool:
    start, end = source.span(node)
    return start <= edit.start and edit.end <= end


def _asks(source: Source, use: Variable) -> bool:
    """Whether a use asks nothing of the value; the update of the variable by itself does where Python computes it."""
    return asks_nothing(source, use) and updates(source, use) != source.code(use)


def _is_passed(source: Source, uses: Uses, batch: Loop) -> bool:
    """Whether every way from a loop to the uses beyond it leads through its end, and the variable is a number there."""
    scope = scope_of(source, batch)
    around = (above for above in source.ancestors(batch) if within(source, above, scope))
    handled = any(isinstance(above, cst.Try) or may_catch({"": source}, source, above, None) for above in around)
    return not handled and not any(_start(value) is None for _, value in uses.assigned)


def keep_list(plan: Deferred, name: str, uses: Uses, batch: Loop) -> None:
    """A list of values: it holds tensors, and each use reads those that it needs."""
    source = plan.source
    added = [each.value for _, statement in uses.augmented for each in _added(statement)]
    grows = all(isinstance(value, cst.List) and not value.elements for _, value in uses.assigned)
    if not grows or not all(any(_added(statement)) for _, statement in uses.augmented):
        raise LeftAlone(f"`{name}` does not only grow by one value after the other")
    whole: list[Variable] = []
    for use in uses.reads:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        if isinstance(above, cst.Call) and is_append(above) and isinstance(parent, cst.Attribute):
            added.append(above.args[0].value)
        elif asks_nothing(source, use):
            continue
        elif isinstance(parent, cst.Attribute):
            raise LeftAlone(
                f"`{name}` is changed, or read in a way that is not followed, in line {source.lines_of(use)[0]}"
            )
        elif isinstance(parent, cst.Subscript) and parent.value is use:
            plan.splices.append(_read_part(plan, parent, name))
        else:
            whole.append(use)
    for value in added:
        if not isinstance(value, cst.Call) or not is_read(value):
            raise LeftAlone(f"`{name}` also takes other values, in line {source.lines_of(value)[0]}")
        plan.splices.append(replace(source, value, tensor_of(source, value, "kept")))
    ended = all(within(source, value, batch) for value in added)
    _read_whole(plan, name, uses, batch, whole, ended)


def _read_whole(plan: Deferred, name: str, uses: Uses, batch: Loop, whole: Sequence[Variable], ended: bool) -> None:
    """Read the tensors of a list in each use, or once after the loop where no later one adds more (`ended`)."""
    source = plan.source
    each = "value" if name != "value" else "each"
    numbers = f"[{each}.item() for {each} in {name}]"
    outer = loops_around(source, batch)
    fresh = any(within(source, target, outer[0]) for target, _ in uses.assigned) if outer else "." not in name
    for use in whole:
        if not _is_consumed(source, use) and (within(source, use, batch) or not fresh):
            raise LeftAlone(f"`{name}` may be kept and grow further, in line {source.lines_of(use)[0]}")
    outside = [use for use in whole if not within(source, use, batch)]
    parts = [use for use in uses.reads if isinstance(source.parent(use), cst.Subscript)]
    inner = all(within(source, use, batch) for use in parts)
    named = not any(within(source, target, batch) for target, _ in uses.assigned)
    if ended and outside and inner and fresh and not outer and named and _is_passed(source, uses, batch):
        plan.splices.append(insert_after(source, batch, [f"{name} = {numbers}"]))
        whole = [use for use in whole if within(source, use, batch)]
    plan.splices += [replace(source, use, numbers) for use in whole]


def _is_consumed(source: Source, use: cst.BaseExpression) -> bool:
    """Whether nothing keeps the list itself after a use."""
    parent = source.parent(use)
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        through = isinstance(call, cst.Call) and call_name(call) in OF_ONE_PASS
        return isinstance(call, cst.Call) and (call_name(call) in _CONSUMES or (through and _is_consumed(source, call)))
    return isinstance(parent, cst.FormattedStringExpression | cst.BinaryOperation | cst.For | cst.CompFor | cst.If)


def _added(statement: cst.AugAssign) -> Sequence[cst.BaseElement]:
    """The elements of `name += [value, …]`; none of another update."""
    written = isinstance(statement.operator, cst.AddAssign) and isinstance(statement.value, cst.List)
    return statement.value.elements if written and isinstance(statement.value, cst.List) else ()


def _read_part(plan: Deferred, part: cst.Subscript, name: str) -> Splice:
    source = plan.source
    parent = source.parent(part)
    if isinstance(parent, cst.AssignTarget | cst.AugAssign | cst.Del | cst.AnnAssign | cst.Attribute):
        raise LeftAlone(f"`{name}` is changed in place, in line {source.lines_of(part)[0]}")
    code = source.code(part)
    if isinstance(part.slice[0].slice, cst.Slice):
        return replace(source, part, f"[value.item() for value in {code}]")
    return replace(source, part, f"{code}.item()")
