"""Keeps values of steps without the graphs that made them.

What it changes
    `losses.append(loss)` becomes `losses.append(loss.detach())`, and `total += loss` becomes `total += loss.detach()`,
    for losses and outputs of the model that a training loop collects. Where the program makes a number of each at the
    end, `[states[-1].mean().item() for states in history]`, the number is made at once, and it alone is kept.

Why it helps
    A tensor with a graph keeps every activation of its step alive. New memory is asked of the device in every step,
    which is slow, and in the end there is none left.

Fix safety
    Bitwise: gradients do not pass through what is only looked at. Edited only where each use of the collection ends in
    a number (`item`, `float`, a format). Left alone: collections that are used in every step, of which something is
    differentiated, printed or saved as a tensor (`print(loss)` shows `grad_fn`), and those that other functions see.
    Torch's own warning to detach what becomes a number, `float(loss)`, is no longer given: its advice is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import (
    Loop,
    Uses,
    asks_nothing,
    bindings,
    gate,
    is_append,
    is_without_gradients,
    scope_of,
    uses_of,
    within,
)
from diagnose.source.dataflow.graph_uses import shows_graph
from diagnose.source.dataflow.purity import only_computes
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import Source, Splice, call_name, replace
from diagnose.source.tree.syntax import only_statement

_METHODS = re.compile(
    r"abs|argmax|backward|cpu|cuda|detach|exp|flatten|float|item|log|log_softmax|max|mean|min|norm|numpy|permute|pow|"
    r"reshape|sigmoid|size|softmax|square|squeeze|sum|t|to|tolist|transpose|unsqueeze|view"
)
"""Methods of tensors that neither numbers nor tuples nor dictionaries have."""
_TAKES_OTHERS = re.compile(r"\w*(?:stack|cat|tensor|concat\w*|save|load\w*)|is_\w+")
"""Functions of torch that take lists, numbers or anything."""
_OF_TENSORS = re.compile(r"torch\.(?:nn\.functional\.|linalg\.|special\.)?\w+")


def rewrite(request: Request) -> Answer:
    """Cut what training loops collect from its graph."""
    edits: list[tuple[str, list[Splice]]] = []
    for step in training_steps(request.sources, request.sites):
        if step.loop is None:
            continue
        outcomes = {name for call in step.forward for name in _bound(step.source, call)}
        graphs = {step.loss} | {name for name in outcomes if _is_tensor(step.source, step.loop, name)}
        for value, kept in _collected(step.source, step.loop, graphs):
            if _has_none_already(step.source, step.loop, value):
                continue
            splices = _cut(request, step.source, step.loop, value, kept)
            edits.append((step.path, splices))
    return request.answer(edits, "keep values of steps without their graphs")


def _bound(source: Source, call: cst.Call) -> list[str]:
    """The names that the outcome of a call gets."""
    assign = source.parent(call)
    if not isinstance(assign, cst.Assign):
        return []
    return [name.value for target in assign.targets for name in source.every(cst.Name, target)]


def _is_tensor(source: Source, loop: Loop, name: str) -> bool:
    """Whether a loop uses what a model gave back as only a tensor can be; a model may give back counts and tuples."""
    for use in source.every(cst.Name, loop):
        parent = source.parent(use) if use.value == name else None
        above = source.parent(parent) if parent is not None else None
        if not isinstance(above, cst.Call):
            continue
        if isinstance(parent, cst.Attribute) and parent.value is use and _METHODS.fullmatch(parent.attr.value):
            return True
        names = source.names(above.func) if isinstance(parent, cst.Arg) else ()
        if any(_OF_TENSORS.fullmatch(each) for each in names) and not _TAKES_OTHERS.fullmatch(call_name(above)):
            return True
    return False


def _collected(source: Source, loop: Loop, graphs: set[str | None]) -> Iterator[tuple[cst.Name, str]]:
    """The tensors that a loop adds to a list or to a sum, with the name of that."""
    for call in source.every(cst.Call, loop):
        if is_append(call) and isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Name):
            value = call.args[0].value
            if isinstance(value, cst.Name) and value.value in graphs:
                yield value, call.func.value.value
    for added in source.every(cst.AugAssign, loop):
        value = added.value
        if not isinstance(added.operator, cst.AddAssign) or not isinstance(added.target, cst.Name):
            continue
        if isinstance(value, cst.Name) and value.value in graphs:
            yield value, added.target.value


def _has_none_already(source: Source, loop: Loop, value: cst.Name) -> bool:
    """Whether what a variable was given last before a use of it has no graph."""
    before = [each for each in bindings(source, loop, value.value) if source.span(each)[0] < source.span(value)[0]]
    statement = source.statement(before[-1]) if before else None
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    given = only_statement(statement)
    made = given.value if isinstance(given, cst.Assign | cst.AnnAssign) else None
    if isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute) and call_name(made) == "detach":
        return True
    return is_without_gradients(source, statement)


def _cut(request: Request, source: Source, loop: Loop, value: cst.Name, kept: str) -> list[Splice]:
    scope = scope_of(source, loop)
    uses = uses_of(source, scope, kept)
    reads = [use for use in uses.reads if not asks_nothing(source, use)]
    if not any(bindings(source, scope, kept)):  # a variable of the file, which is read there too
        named = [each for each in source.every(cst.Name) if each.value == kept and not within(source, each, scope)]
        reads += [each for each in named if not isinstance(source.parent(each), cst.AssignTarget)]
    if uses.lost or any(_steers(source, loop, use) or shows_graph(request.sources, source, use) for use in reads):
        return []
    plain = f"{value.value}.detach()"
    inner = _made_of_each(source, uses, reads)
    if inner is None or any(isinstance(above, cst.AugAssign) for above in source.ancestors(value)):
        return [replace(source, value, plain)]
    number, variable = inner
    start, end = source.wide_span(number)
    code = source.text[start:end]
    names = [name for name in source.every(cst.Name, number) if name.value == variable]
    for name in reversed([name for name in names if not is_attribute_name(source, name)]):
        first, last = source.span(name)
        code = code[: first - start] + plain + code[last - start :]
    return [replace(source, value, code), replace(source, number, variable)]


def _steers(source: Source, loop: Loop, use: cst.BaseExpression) -> bool:
    """Whether a use of a collection is more than a look at it now and then, or after the loop."""
    return within(source, use, loop) and gate(source, use, loop) is None


def _made_of_each(
    source: Source, uses: Uses, reads: Sequence[cst.BaseExpression]
) -> tuple[cst.BaseExpression, str] | None:
    """The tensor that the one use of a list reads of each entry, and its name for an entry; None where it is none."""
    each = source.parent(reads[0]) if len(reads) == 1 else None
    comprehension = source.parent(each) if isinstance(each, cst.CompFor) else None
    if not isinstance(each, cst.CompFor) or each.iter is not reads[0] or each.ifs or each.inner_for_in is not None:
        return None
    if not isinstance(comprehension, cst.ListComp) or not isinstance(each.target, cst.Name) or len(uses.assigned) != 1:
        return None
    read = comprehension.elt
    if not isinstance(read, cst.Call) or not isinstance(read.func, cst.Attribute) or read.func.attr.value != "item":
        return None
    number = read.func.value
    others = {name.value for name in source.every(cst.Name, number) if not is_attribute_name(source, name)}
    known = others == {each.target.value} and not isinstance(number, cst.Name)
    return (number, each.target.value) if known and only_computes(source, number, {}) else None


def _program(before: str, in_step: str, after: str = "") -> str:
    return (
        "import torch\nmodel = torch.nn.Linear(4, 4)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"{before}\nfor i in range(9):\n    opt.zero_grad()\n    out = model(torch.ones(2, 4))\n"
        f"    loss = out.square().mean()\n    {in_step}\n    loss.backward()\n    opt.step()\n{after}"
    )


def _recorded(text: str) -> Request:
    return example_request("leaking-memory", text)


def _example(before: tuple[str, ...], after: tuple[str, ...] | None) -> Example:
    return Example(_program(*before), _program(*after) if after is not None else None, _recorded)


FIXER = Fixer(
    name="detach-kept",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.allocator+idle.dispatch",
    order=20,
    examples=(
        _example(
            ("losses = []", "losses.append(loss)", "print(float(sum(losses)) / 9)\n"),
            ("losses = []", "losses.append(loss.detach())", "print(float(sum(losses)) / 9)\n"),
        ),
        _example(
            ("total = 0", "total += loss", "print(f'{total:.4f}')\n"),
            ("total = 0", "total += loss.detach()", "print(f'{total:.4f}')\n"),
        ),
        _example(
            ("seen = []", "seen.append(out)", "print([out[-1].abs().mean().item() for out in seen])\n"),
            ("seen = []", "seen.append(out.detach()[-1].abs().mean())", "print([out.item() for out in seen])\n"),
        ),
        _example(("losses = []", "losses.append(loss)", "print(sum(losses) / 9)\n"), None),
        _example(("losses = []", "losses.append(loss)", "last = losses[-1]\nlast.backward()\n"), None),
        _example(("losses = []", "losses.append(loss.detach())"), None),
        _example(
            (
                "seen = []",
                "with torch.no_grad():\n        out = model(out)\n    seen.append(out)",
                "print(len(seen))\n",
            ),
            None,
        ),
        _example(("losses = []", "losses.append(loss.item())"), None),
        _example(("parts = []", "parts.append(loss)\n    loss = sum(parts)"), None),
        _example(("parts = []", "parts.append(loss)", "sum(parts).backward()\n"), None),
    ),
)
