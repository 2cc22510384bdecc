"""Keeps values that are only logged on the device until they are logged.

What it changes
    Values that a training loop reads from the device in every step, only to log them, stay on the device until they
    are logged. `running += loss.item()` becomes `running += loss.detach().double()`, and `float(running)` stands
    where the program uses it, in its own `if step % n == 0:` or after the loop. A list of losses holds tensors and
    is read at once where it is used. A loop that calls `.item()` for every parameter collects its tensors and reads
    them in one go, in the log branch if that is where the result is used.

Why it helps
    `.item()` makes the host wait until the device has done all that was asked of it. Until the host has caught up
    again, the device has nothing to do. A value that nobody looks at in this step is not worth that.

Fix safety
    Bitwise: loss, gradients and parameters do not depend on what is logged. Logged values are the same too: they
    are added up in float64, as Python does, and collected values go through the very statement that they went
    through before. A value that steers the program (a condition, a return value, an index, an argument of a
    scheduler) is left alone, and so is one that is printed in every step, and every variable of which some use is
    not understood. As the host no longer waits, it runs ahead of the device, which can raise peak memory; a list
    holds one small tensor for each entry until it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import (
    STEADY_UPDATES,
    Advice,
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    Loop,
    Request,
    Source,
    Splice,
    Uses,
    asks_nothing,
    binds,
    ensure_import,
    example_request,
    free_name,
    gate,
    insert_after,
    insert_before,
    is_after,
    is_append,
    is_read,
    log_branch,
    loops_around,
    outcome,
    parse,
    replace,
    scope_of,
    splice,
    tensor_of,
    training_reads,
    trains,
    trains_within,
    updates,
    uses_of,
    within,
)

_COUNTS = re.compile(r"==|!=|\.(?:eq|ne|gt|lt|ge|le|count_nonzero)\(")
_MEASURES = re.compile(r"loss|norm|mean|error|entropy|criterion|mse|nll|accuracy", re.IGNORECASE)


class _LeftAlone(Exception):
    """Why a read stays where it is."""


@dataclass
class _Plan:
    """The edits of one file while they are found."""

    source: Source
    splices: list[Splice] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """What was deferred, for the summary."""
    reasons: list[str] = field(default_factory=list)
    torch: str = "torch"
    taken: set[str] = field(default_factory=set)
    """New names so far."""


def rewrite(request: Request) -> Answer:
    """Defer every read of the training loop whose value is only logged."""
    files: dict[str, str] = {}
    moved: list[str] = []
    reasons: list[str] = []
    places = [place for place in request.finding.where if place.file in request.sources]
    for path in dict.fromkeys([*(place.file for place in places), *([request.entry] if request.entry else [])]):
        source = parse(request.sources.get(path, ""))
        if source is None:
            continue
        plan = _Plan(source)
        plan.torch, imports = ensure_import(source, "torch")
        _plan(plan, {place.line for place in places if place.file == path})
        if any(f"{plan.torch}." in edit.text for edit in plan.splices):
            plan.splices += imports
        if plan.splices:
            files[path] = splice(source.text, plan.splices)
        moved += plan.moved
        reasons += [f"{path}:{reason}" for reason in plan.reasons]
    if files:
        return Edits(
            files, f"read {', '.join(dict.fromkeys(moved))} from the device where it is logged, not in each step"
        )
    return Advice("; ".join(reasons)) if reasons else None


def _plan(plan: _Plan, lines: set[int]) -> None:
    source = plan.source
    done: set[tuple[cst.CSTNode, str]] = set()
    for read in training_reads(source, lines):
        loops = loops_around(source, read)
        inner = [loop for loop in loops if isinstance(loop, cst.For) and not trains(source, loop)]
        batch = next((loop for loop in loops if trains(source, loop)), None)
        before = len(plan.splices)
        try:
            if inner and (batch is None or inner[-1] is not batch):
                _read_at_once(plan, read, inner[-1])
            elif batch is not None and not trains_within(source, batch) and gate(source, read, batch) is None:
                name = _variable(source, read)
                key = (scope_of(source, read), name)
                if key not in done:
                    done.add(key)
                    _keep_on_device(plan, read, batch, name)
        except _LeftAlone as reason:
            del plan.splices[before:]
            plan.reasons.append(f"{source.lines_of(read)[0]} is left alone: {reason}")


def _variable(source: Source, read: cst.Call) -> str:
    """The variable that a read goes to. Raises _LeftAlone where it goes elsewhere."""
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
            raise _LeftAlone("its value steers the program")
        if isinstance(above, cst.Call) and source.code(above.func) == "print":
            raise _LeftAlone("it is printed in every step; print every n-th step only")
        if isinstance(above, cst.BaseSmallStatement):
            break
    raise _LeftAlone("where its value goes is not understood")


def _keep_on_device(plan: _Plan, read: cst.Call, batch: Loop, name: str) -> None:
    """Let a variable of the training loop hold tensors, and read it where it is used."""
    source = plan.source
    uses = uses_of(source, scope_of(source, read), name)
    if uses.lost:
        raise _LeftAlone(f"`{name}` {uses.lost}")
    for use in uses.reads:
        if within(source, use, batch) and not asks_nothing(source, use) and gate(source, use, batch) is None:
            raise _LeftAlone(f"`{name}` is used in every step, in line {source.lines_of(use)[0]}")
        if not within(source, use, batch) and not is_after(source, use, batch) and not asks_nothing(source, use):
            raise _LeftAlone(f"`{name}` is used before the loop, in line {source.lines_of(use)[0]}")
        part = source.inside(use, cst.FormattedStringExpression)
        if part is not None and part.equal is not None:
            raise _LeftAlone(f"`{name}` is printed with its own source text, in line {source.lines_of(use)[0]}")
    if any(isinstance(value, cst.List) for _, value in uses.assigned):
        _keep_list(plan, name, uses)
    elif len(uses.assigned) == 1 and not uses.augmented and uses.assigned[0][1] is read:
        plan.splices.append(replace(source, read, tensor_of(source, read, "kept")))
        plan.splices += [replace(source, use, f"{name}.item()") for use in uses.reads]
    else:
        _keep_sum(plan, name, uses)
    plan.moved.append(f"`{name}`")


def _keep_sum(plan: _Plan, name: str, uses: Uses) -> None:
    """A sum or a moving average: float64 on the device, as Python's own floats are; counts stay integers."""
    source = plan.source
    values = [value for _, value in uses.assigned] + [statement.value for _, statement in uses.augmented]
    reads: list[cst.Call] = []
    for value in values:
        found = [call for call in source.every(cst.Call, value) if is_read(call)]
        reads += found
        if any(updates(source, call) != name for call in found):
            raise _LeftAlone(f"`{name}` is computed in a way that is not followed, in line {source.lines_of(value)[0]}")
        plain = isinstance(value, cst.Integer | cst.Float) or source.code(value) == "None"
        own = any(use.value == name for use in source.every(cst.Name, value))
        if not found and not plain and not own and not any(value is each.value for _, each in uses.augmented):
            raise _LeftAlone(f"`{name}` gets a value from elsewhere, in line {source.lines_of(value)[0]}")
    code = " ".join(source.code(call) for call in reads)
    operators = [statement.operator for _, statement in uses.augmented]
    starts = [value for _, value in uses.assigned if isinstance(value, cst.Integer)]
    counts = bool(starts) and bool(_COUNTS.search(code))
    if not all(isinstance(each, cst.AddAssign if counts else STEADY_UPDATES) for each in operators):
        raise _LeftAlone(f"`{name}` is computed in a way that is not followed")
    measured = _MEASURES.search(name) or all(_MEASURES.search(outcome(source, call)) for call in reads)
    if starts and not counts and not measured:
        raise _LeftAlone(f"whether `{name}` is a count or a measure cannot be told from its start at an integer")
    plan.splices += [replace(source, call, tensor_of(source, call, "" if counts else "added")) for call in reads]
    into = "int" if counts else "float"
    for use in uses.reads:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        converted = isinstance(above, cst.Call) and source.code(above.func) in {"float", "int"}
        if not converted and not asks_nothing(source, use):
            plan.splices.append(replace(source, use, f"{into}({name})"))


def _keep_list(plan: _Plan, name: str, uses: Uses) -> None:
    """A list of values: it holds tensors, and each use reads those that it needs at once."""
    source = plan.source
    if uses.augmented or any(not isinstance(value, cst.List) or value.elements for _, value in uses.assigned):
        raise _LeftAlone(f"`{name}` does not only grow by append")
    for use in uses.reads:
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        if isinstance(above, cst.Call) and is_append(above) and isinstance(parent, cst.Attribute):
            value = above.args[0].value
            if not isinstance(value, cst.Call) or not is_read(value):
                raise _LeftAlone(f"`{name}` also takes other values, in line {source.lines_of(use)[0]}")
            plan.splices.append(replace(source, value, tensor_of(source, value, "kept")))
        elif asks_nothing(source, use):
            continue
        elif isinstance(parent, cst.Subscript) and parent.value is use:
            plan.splices.append(_read_part(plan, parent))
        else:
            plan.splices.append(replace(source, use, f"({plan.torch}.stack({name}).tolist() if {name} else [])"))


def _read_part(plan: _Plan, part: cst.Subscript) -> Splice:
    code = plan.source.code(part)
    sliced = isinstance(part.slice[0].slice, cst.Slice)
    return replace(plan.source, part, f"{plan.torch}.stack({code}).tolist()" if sliced else f"{code}.item()")


def _read_at_once(plan: _Plan, read: cst.Call, loop: cst.For) -> None:
    """Collect the tensors of a loop, and run the statement that wanted their values afterwards."""
    source = plan.source
    statement = source.statement(read)
    assert statement is not None  # an expression lies in a statement
    name = _variable(source, read)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1 or loop.orelse is not None:
        raise _LeftAlone("its statement cannot be moved")
    first = statement.body[0]
    if not (isinstance(first, cst.AugAssign) or (isinstance(first, cst.Expr) and is_append(first.value))):
        raise _LeftAlone(f"`{name}` is set anew for each turn of the loop")
    for node in source.every(cst.Name, loop):
        if node.value == name and not within(source, node, statement):
            raise _LeftAlone(f"`{name}` is used within the loop, in line {source.lines_of(node)[0]}")
    outside = [
        node for node in source.every(cst.Name, first) if not any(above is read for above in source.ancestors(node))
    ]
    others = {node.value for node in outside} - {name}
    if (
        any(binds(source, loop, other) for other in others)
        or len(list(filter(is_read, source.every(cst.Call, first)))) > 1
    ):
        raise _LeftAlone("its statement needs more than this one value from the loop")
    kept, value = free_name(source, f"{name}_values", plan.taken), free_name(source, "value")
    plan.taken.add(kept)
    start, end = source.span(read)
    begin, finish = source.span(first)
    again = source.text[begin:start] + value + source.text[end:finish]
    flush = [f"for {value} in {plan.torch}.stack({kept}).tolist() if {kept} else []:", f"{_indent(source)}{again}"]
    plan.splices.append(insert_before(source, loop, [f"{kept} = []"]))
    plan.splices.append(Splice(begin, finish, f"{kept}.append({tensor_of(source, read, 'kept')})"))
    logged = log_branch(source, loop, name) if not others else None
    if logged is None:
        plan.splices.append(insert_after(source, loop, flush))
    else:
        plan.splices.append(insert_before(source, logged, flush))
    plan.moved.append(f"`{name}`")


def _indent(source: Source) -> str:
    return source.module.default_indent


def _program(before_loop: str, in_step: str, after: str = "") -> str:
    """A training program with lines of its own before its loop, in each step, and after it."""
    step = in_step.replace("\n", "\n    ")
    return (
        "import torch\nmodel = torch.nn.Linear(4, 4)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"{before_loop}\nfor i in range(20):\n    opt.zero_grad()\n"
        f"    loss = model(torch.ones(2, 4) * i / 20).square().mean()\n"
        f"    loss.backward()\n    opt.step()\n    {step}\n{after}"
    )


def _recorded(text: str) -> Request:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if ".item()" in line]
    return example_request("host-sync", text, lines=lines)


def _deferred(before: tuple[str, ...], after: tuple[str, ...]) -> Example:
    return Example(_program(*before), _program(*after), _recorded)


def _left_alone(*parts: str) -> Example:
    return Example(_program(*parts), None, _recorded)


_LOG = "if i % 5 == 0:\n    print(f'{running / 5:.4f}')\n    running = 0.0"
_LOG_AFTER = _LOG.replace("{running", "{float(running)")
_NORMS = "total = 0.0\n{}for p in model.parameters():\n    {}\n"

FIXER = Fixer(
    name="defer-item",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="sync_calls",
    order=20,
    after=("foreach-clip",),
    examples=(
        _deferred(
            ("running = 0.0", f"running += loss.item()  # for the log\n{_LOG}"),
            ("running = 0.0", f"running += loss.detach().double()  # for the log\n{_LOG_AFTER}"),
        ),
        _deferred(
            ("average = 0.0", "average = 0.9 * average + 0.1 * loss.detach().cpu().item()", "print(average)\n"),
            ("average = 0.0", "average = 0.9 * average + 0.1 * loss.detach().double()", "print(float(average))\n"),
        ),
        _deferred(
            ("correct = 0", "correct += (loss > 0.1).eq(True).sum().item()", "print(correct, correct / 20)\n"),
            (
                "correct = 0",
                "correct += (loss > 0.1).eq(True).sum().detach()",
                "print(int(correct), int(correct) / 20)\n",
            ),
        ),
        _deferred(
            (
                "losses = []",
                "losses.append(loss.item())\nif i % 5 == 0:\n    print(losses[-1], sum(losses[-3:]))",
                "print(losses)\n",
            ),
            (
                "losses = []",
                "losses.append(loss.detach().clone())\n"
                "if i % 5 == 0:\n    print(losses[-1].item(), sum(torch.stack(losses[-3:]).tolist()))",
                "print((torch.stack(losses).tolist() if losses else []))\n",
            ),
        ),
        _deferred(
            ("", "shown = loss.item()\nif i % 5 == 0:\n    print(f'{shown:.3f}')"),
            ("", "shown = loss.detach().clone()\nif i % 5 == 0:\n    print(f'{shown.item():.3f}')"),
        ),
        _deferred(
            ("", _NORMS.format("", "total += p.grad.norm().item() ** 2") + "if i % 5 == 0:\n    print(total ** 0.5)"),
            (
                "",
                _NORMS.format("total_values = []\n", "total_values.append(p.grad.norm().detach())")
                + "if i % 5 == 0:\n    for value in torch.stack(total_values).tolist() if total_values else []:\n"
                "        total += value ** 2\n    print(total ** 0.5)",
            ),
        ),
        _deferred(
            (
                "norms = []",
                _NORMS.format("", "total += p.grad.norm().item() ** 2") + "norms.append(total)",
                "print(norms)\n",
            ),
            (
                "norms = []",
                _NORMS.format("total_values = []\n", "total_values.append(p.grad.norm().detach())")
                + "for value in torch.stack(total_values).tolist() if total_values else []:\n    total += value ** 2\n"
                "norms.append(total)",
                "print(norms)\n",
            ),
        ),
        _left_alone("", "if loss.item() > 10:\n    break"),
        _left_alone("best = 9.0", "best = min(best, loss.item())", "print(best)\n"),
        _left_alone("", "print(i, loss.item())"),
        _left_alone("", "if i % 5 == 0:\n    print(loss.item())"),
        _left_alone("running = 0.0", "running += loss.item()\nif running > 3:\n    break"),
        _left_alone("running = 0.0", "running += loss.item()\nprint(running)"),
        _left_alone("seen = 0", "seen += loss.sum().argmax().item()", "print(seen)\n"),
        _left_alone(
            "", "total = 0.0\nfor p in model.parameters():\n    total += p.grad.norm().item()\n    print(total)"
        ),
    ),
)
