"""Statements that take a value read from the device, put off until somebody looks at what they fill.

`history[task].append(loss.item())` becomes `history_pending.append((loss.detach().clone(), task))`; where the program
uses `history`, in its log branch or after the loop, the statement runs for each of them, with its value read then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.exit_paths import seen_after_failure, seen_elsewhere
from diagnose.source.dataflow.flow import (
    Loop,
    Uses,
    Variable,
    asks_nothing,
    gate,
    is_after,
    is_variable,
    scope_of,
    updates,
    uses_of,
    within,
)
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.device.device_reads import is_read, tensor_of
from diagnose.source.device.meter_updates import does_more_than_fill, hands_itself_on
from diagnose.source.device.value_kinds import is_number
from diagnose.source.tree.edits import call_name, free_name, insert_above, insert_after, insert_before
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source, Splice

_FILLS = frozenset({"append", "update", "add"})
_MOST_ALIASES = 8
_CONTAINERS = frozenset({"list", "dict", "set", "defaultdict", "OrderedDict", "deque", "Counter"})
_NAMES_PARTS = frozenset({"len", "range", "format", "zip", "enumerate", "str", "int", "float"})
_OF_NUMBERS = frozenset({"builtins.max", "builtins.min", "builtins.abs", "builtins.round", "builtins.float"})


class NotPending(Exception):
    """Why a statement stays where it is."""


@dataclass
class _Call:
    """The statement taken apart: what is to be kept of the moment, and its code with names in the place of that."""

    tensor: str
    """The name of the tensor in the place of each read."""
    kept: list[cst.BaseExpression] = field(default_factory=list)
    replaced: list[tuple[cst.BaseExpression, str]] = field(default_factory=list)


def puts_off(source: Source, read: cst.Call, sums: bool = False) -> str | None:
    """The variable that the statement of a read fills, where the statement is of a kind that can be put off.

    `sums`: also that of `total += …`, which could stay on the device where its arithmetic is exact there.
    """
    statement = _statement(source, read)
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        name = statement.targets[0].target
        if isinstance(name, cst.Name) and any(each.value == name.value for each in names_in(source, statement.value)):
            return name.value if sums or updates(source, read) is None else None
    if isinstance(statement, cst.AugAssign):
        target: cst.BaseExpression = statement.target
        return _root(target) if sums or isinstance(target, cst.Subscript) else None
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        function = statement.value.func
        if isinstance(function, cst.Attribute) and function.attr.value in _FILLS:
            plain = function.attr.value == "append" and isinstance(function.value, cst.Name)
            return None if plain else _root(function.value)
    return None


def put_off_statement(source: Source, others: Sequence[Source], read: cst.Call, batch: Loop) -> list[Splice]:
    """The edits that put the statement of a read off; `others` are the program's files. Raises NotPending."""
    statement = _statement(source, read)
    name = puts_off(source, read, sums=True)
    line = source.parent(statement) if statement is not None else None
    if statement is None or name is None or not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        raise NotPending("its statement cannot be moved")
    if len({source.code(each) for each in source.every(cst.Call, statement) if is_read(each)}) > 1:
        raise NotPending("its statement reads several values")
    branches, after = _looks(source, statement, batch, name)
    _check_filled(source, others, statement, batch, name)
    call = _Call(free_name(source, "tensor"))
    for part in _parts(statement):
        _take(source, part, call, batch, name)
    key = _part_filled(statement)
    pending = free_name(source, re.sub(r"\W", "_", f"{name}_pending" if key is None else f"{name}_{key}_pending"))
    tensor = tensor_of(source, read, "kept")
    entry = f"({', '.join([tensor, *map(source.code, call.kept)])})" if call.kept else tensor
    flush = _flush(source, statement, call, pending)
    splices = [
        insert_above(source, batch, [f"{pending} = []"]),
        Splice(*source.span(statement), f"{pending}.append({entry})"),
    ]
    for branch in branches:
        first = branch.body.body[0] if isinstance(branch.body, cst.IndentedBlock) else None
        if first is None:
            raise NotPending(f"`{name}` is used in a branch of one line")
        splices.append(insert_before(source, first, flush))
    if after:
        splices.append(insert_after(source, batch, flush))
    return splices


def _check_filled(
    source: Source, others: Sequence[Source], statement: cst.BaseSmallStatement, batch: Loop, name: str
) -> None:
    """Refuse what may be looked at before it is filled, and what does more than to fill. Raises NotPending."""
    scope = scope_of(source, batch)
    if any(scope_of(source, node) is scope for node in source.every(cst.Yield, scope)):
        raise NotPending("the function is a generator, which may be closed while values wait")
    seen = seen_elsewhere(source, others, scope, name)
    failed = seen_after_failure(source, batch, [name, *_aliases(source, scope, name, batch)])
    if seen is not None or failed is not None:
        raise NotPending(f"`{name}` {seen}" if seen is not None else str(failed))
    method = ""
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        method = call_name(statement.value)
    made = [value for _, value in uses_of(source, scope, name).assigned if not within(source, value, statement)]
    if not made:
        raise NotPending(f"`{name}` is not made in this function, and others may look at it")
    classes = {each.name.value: each for one in others for each in one.every(cst.ClassDef)}
    where = {each.name.value: one for one in others for each in one.every(cst.ClassDef)}
    for value in made:
        called = [call_name(call) for call in source.every(cst.Call, value)]
        own = [each for each in called if each in classes]
        if any(each not in _CONTAINERS and each not in classes and each not in _NAMES_PARTS for each in called):
            raise NotPending(f"what `{name}` is made by is not seen in these files")
        for each in own:
            if hands_itself_on(where[each], classes[each]):
                raise NotPending(f"`{each}` hands its objects on, and others may look at them")
            reason = does_more_than_fill(where[each], classes[each], method)
            if method and reason is not None:
                raise NotPending(f"`{each}.{method}` {reason}")


def _statement(source: Source, read: cst.Call) -> cst.BaseSmallStatement | None:
    return next((above for above in source.ancestors(read) if isinstance(above, cst.BaseSmallStatement)), None)


def _root(node: cst.BaseExpression) -> str | None:
    while isinstance(node, cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def _looks(source: Source, statement: cst.CSTNode, batch: Loop, name: str) -> tuple[list[cst.If], bool]:
    """The branches of the loop that look at what a variable holds, and whether anything does so after the loop."""
    scope = scope_of(source, batch)
    branches: dict[cst.If, None] = {}
    after, part = False, _part_filled(statement)
    for alias in _aliases(source, scope, name, batch):
        uses = uses_of(source, scope, alias)
        if uses.lost:
            raise NotPending(f"`{alias}` {uses.lost}")
        bound = [target for target, _ in (*uses.assigned, *uses.augmented)]
        for use in (*uses.reads, *(target for target in bound if within(source, target, batch))):
            if within(source, use, statement):
                continue
            if within(source, use, batch):
                branch = gate(source, use, batch)
                if branch is None:
                    if asks_nothing(source, use) and alias != name:
                        continue
                    if alias == name and part is not None and _is_of_another_part(source, use, part, uses):
                        continue
                    if isinstance(batch, cst.For) and within(source, use, batch.iter):
                        raise NotPending(
                            f"`{alias}` hands out the batches and shows what it holds by itself: let its meters keep "
                            "tensors, detached, and read them where it shows them"
                        )
                    raise NotPending(f"`{alias}` is used in every step, in line {source.lines_of(use)[0]}")
                branches[branch] = None
                after = after or (_in_loop_around(source, use, batch) and not _is_made_anew(source, uses, batch))
            elif is_after(source, use, batch) or _in_loop_around(source, use, batch):
                after = True
            elif alias == name and _is_handed_on(source, use):
                raise NotPending(f"`{name}` is handed on, in line {source.lines_of(use)[0]}")
    if after and any(source.every(cst.Return, batch)):
        raise NotPending("the loop may be left by a return")
    outer = [branch for branch in branches if not any(within(source, branch, other) for other in branches)]
    return outer, after


def _part_filled(statement: cst.CSTNode) -> str | None:
    """The key of the part that a statement fills: `loss` of `log["loss"].append(x)` and of `log["loss"] += x`."""
    filled: cst.BaseExpression | None = statement.target if isinstance(statement, cst.AugAssign) else None
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        filled = statement.value.func.value if isinstance(statement.value.func, cst.Attribute) else None
    return _key(filled)


def _key(node: cst.CSTNode | None) -> str | None:
    index = node.slice[0].slice if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) else None
    return string(index.value) if isinstance(index, cst.Index) else None


def _is_of_another_part(source: Source, use: Variable, part: str, uses: Uses) -> bool:
    """Whether a use looks at another part of a dictionary, which is made of empty lists and numbers by their keys."""
    key = _key(source.parent(use))
    return (
        key not in {None, part}
        and bool(uses.assigned)
        and all(
            isinstance(value, cst.Dict)
            and {key, part} <= {string(each.key) for each in value.elements if isinstance(each, cst.DictElement)}
            and all(_is_empty(each.value) for each in value.elements)
            for _, value in uses.assigned
        )
    )


def _is_empty(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.BaseNumber) or (isinstance(value, cst.List) and not value.elements)


def _aliases(source: Source, scope: cst.CSTNode, name: str, batch: Loop) -> list[str]:
    """The name, and names of what was made from it before the loop: a progress meter that was given it, say."""
    found = [name]
    for known in found:
        for assign in source.every(cst.Assign, scope):
            target = assign.targets[0].target
            mentions = any(
                use.value == known and is_variable(source, use) for use in source.every(cst.Name, assign.value)
            )
            gated = within(source, assign, batch) and gate(source, assign, batch) is not None
            later = is_after(source, assign, batch)
            if mentions and isinstance(target, cst.Name) and target.value not in found and not gated and not later:
                found.append(target.value)
        if len(found) > _MOST_ALIASES:
            raise NotPending(f"`{name}` goes into too many others")
    return found


def _in_loop_around(source: Source, use: cst.CSTNode, batch: Loop) -> bool:
    """Whether a use before the loop, or within it, comes again after it, in the next turn of a loop around both."""
    around = [above for above in source.ancestors(batch) if isinstance(above, cst.For | cst.While)]
    return any(within(source, use, loop) for loop in around)


def _is_made_anew(source: Source, uses: Uses, batch: Loop) -> bool:
    """Whether the block that holds the loop gives a variable a new value before each run of the loop."""
    block, start = source.parent(batch), source.span(batch)[0]
    made = [source.inside(target, cst.SimpleStatementLine) for target, _ in uses.assigned]
    return any(line and source.parent(line) is block and source.span(line)[0] < start for line in made)


def _is_handed_on(source: Source, use: Variable) -> bool:
    """Whether a statement that binds nothing passes a variable to a call."""
    for above in source.ancestors(use):
        if isinstance(above, cst.Arg):
            return isinstance(source.parent(source.parent(above) or above), cst.Expr)
        if isinstance(above, cst.BaseSmallStatement):
            return isinstance(above, cst.Return)
    return False


def _parts(statement: cst.BaseSmallStatement) -> Iterator[cst.BaseExpression]:
    """The expressions that a statement is made of, but for what it fills."""
    filled: cst.BaseExpression | None = None
    if isinstance(statement, cst.AugAssign):
        filled = statement.target
        yield statement.value
    elif isinstance(statement, cst.Assign):
        yield statement.value
    elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        yield from (arg.value for arg in statement.value.args)
        filled = statement.value.func.value if isinstance(statement.value.func, cst.Attribute) else None
    while isinstance(filled, cst.Subscript):
        for element in filled.slice:
            if not isinstance(element.slice, cst.Index):
                raise NotPending("it fills a slice")
            yield element.slice.value
        filled = filled.value


def _take(source: Source, part: cst.BaseExpression, call: _Call, batch: Loop, name: str) -> None:
    """Note what of an expression is kept of the moment; what it reads of the variable itself is there in its turn."""
    names = {each.value for each in names_in(source, part)} - {"None", "True", "False"}
    if isinstance(part, cst.Call) and is_read(part):
        call.replaced.append((part, call.tensor))
    elif names == {name} and not any(map(is_read, source.every(cst.Call, part))):
        return
    elif name in names or any(map(is_read, source.every(cst.Call, part))):
        for inner in _computed_from(source, part):
            _take(source, inner, call, batch, name)
    elif not isinstance(part, cst.Integer | cst.Float | cst.SimpleString):
        written = any(is_written(source, each.value, batch) for each in source.every(cst.Name, part))
        if written and not is_number(source, part):
            raise NotPending(f"`{source.code(part)}` may be changed before it is used")
        if _is_chosen(source, part) and not _is_there(source, part, batch):
            raise NotPending(f"`{source.code(part)}` is computed in some turns only")
        known = {source.code(each): name for each, name in call.replaced}
        name_then = f"{part.value}_then" if isinstance(part, cst.Name) else "argument"
        kept = known.get(source.code(part)) or free_name(source, name_then, set(known.values()))
        call.kept += [part] if source.code(part) not in known else []
        call.replaced.append((part, kept))


def _is_chosen(source: Source, part: cst.BaseExpression) -> bool:
    """Whether a condition beside a read decides whether a part of its statement is computed."""
    below: cst.CSTNode = part
    for above in source.ancestors(part):
        if isinstance(above, cst.IfExp) and above.test is not below:
            return True
        if isinstance(above, cst.BaseSmallStatement):
            break
        below = above
    return False


def _is_there(source: Source, part: cst.BaseExpression, batch: Loop) -> bool:
    """Whether an expression can be computed in each turn: sums and products of what is bound before the loop."""
    if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Add | cst.Subtract | cst.Multiply):
        return _is_there(source, part.left, batch) and _is_there(source, part.right, batch)
    if not isinstance(part, cst.Name):
        return isinstance(part, cst.Integer | cst.Float)
    values = bound_to(source, part)
    return not values or not all(within(source, value, batch) for value in values)


def _computed_from(source: Source, part: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    """Return the operands of an expression that gives the same value of them later. Raises NotPending for another."""
    if isinstance(part, cst.BinaryOperation):
        return part.left, part.right
    if isinstance(part, cst.IfExp):
        return part.test, part.body, part.orelse
    if isinstance(part, cst.Call) and source.names(part.func) & _OF_NUMBERS:
        return [arg.value for arg in part.args]
    raise NotPending("where its value goes is not understood")


def _flush(source: Source, statement: cst.CSTNode, call: _Call, pending: str) -> list[str]:
    """The lines that run the statement for all that is pending."""
    start, end = source.span(statement)
    code, at = "", start
    for part, name in sorted(call.replaced, key=lambda each: source.wide_span(each[0])[0]):
        begin, finish = source.wide_span(part)
        code += source.text[at:begin] + (f"{name}.item()" if name == call.tensor else name)
        at = finish
    code += source.text[at:end]
    names = dict.fromkeys([call.tensor, *(name for _, name in call.replaced)])
    return [f"for {', '.join(names)} in {pending}:", f"{source.indentation}{on_one_line(code)}", f"{pending}.clear()"]


def on_one_line(code: str) -> str:
    """Code of a statement without the ends of lines within its parentheses; as it is where they may mean more."""
    if any(mark in code for mark in "#\"'\\"):
        return code
    return re.sub(r"(?<=[(\[{]) | (?=[)\]}])", "", re.sub(r"\s*\n\s*", " ", code))
