"""Keeps values that are only logged on the device until they are logged.

What it changes
    Values that a training loop reads from the device in every step, only to log them, stay on the device until they
    are logged. `running += loss.item()` becomes `running += loss.detach().double()`, and `float(running)` stands
    where the program uses it, in its own `if step % n == 0:` or after the loop; `self.running` is treated alike. A
    list of losses, `self.losses` too, holds tensors until it is used. A statement that fills a dictionary, or a meter
    of the program's own, is put off until somebody looks at what it fills; so is a choice, `best = min(best,
    loss.item())`, and a sum whose arithmetic a device may round otherwise.
    A progress bar shows every tenth value, and the last of each loop. A loop that calls `.item()` for every parameter
    collects its tensors and reads them in one go, in the log branch if that is where the result is used, and ahead of
    the loop where it is used in the same turn. What a Lightning module logs goes to its `log` as a tensor.

Why it helps
    `.item()` makes the host wait until the device has done all that was asked of it. Until the host has caught up
    again, the device has nothing to do. A value that nobody looks at in this step is not worth that.

Fix safety
    Bitwise: loss, gradients and parameters do not depend on what is logged. Logged values are the same too: they
    are added up in float64, as Python does, and collected values go through the very statement that they went
    through before. A value that steers the program (a condition, a return value, an index, an argument of a
    scheduler) is left alone, and so is one that is printed in every step, and every variable of which some use is
    not understood, or that may be looked at after an exception before its values are read. Where one read of a step
    stays, so do the others: the step waits all the same. A loop that is interrupted leaves its progress bar at a value
    up to nine steps old. As the host no longer waits, it runs ahead of the device, which can raise peak memory; a list
    holds one small tensor for each entry until it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request, lines_with
from diagnose.source.dataflow.flow import Loop, gate, loops_around, scope_of
from diagnose.source.device.deferral import Deferred, LeftAlone
from diagnose.source.device.deferred_reads import filled_by, keep_on_device, put_off, read_at_once
from diagnose.source.device.deferred_writes import puts_off
from diagnose.source.device.device_reads import has_training_loops, is_read, training_reads, trains, trains_within
from diagnose.source.device.progress_bars import does_more, on_progress_bar, show_less_often, shown_at
from diagnose.source.device.value_kinds import number_kind
from diagnose.source.models.lightning import logged_reads
from diagnose.source.training.every_step import batch_loops
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import, parse, replace, splice
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import overlaps

_DEPENDS = frozenset({"nonzero", "masked_select", "unique"})


def rewrite(request: Request) -> Answer:
    """Defer every read of the training loop whose value is only logged."""
    files: dict[str, str] = {}
    moved: list[str] = []
    reasons: list[str] = []
    places = [place for place in request.finding.where if place.file in request.sources]
    for path, text in request.sources.items():
        lines = {place.line for place in places if place.file == path}
        source = parse(text) if ".item()" in text or lines else None
        if source is None or not (lines or has_training_loops(source) or any(logged_reads(source))):
            continue
        plan = Deferred(source, list(parse_all(request.sources).values()))
        plan.torch, imports = ensure_import(source, "torch")
        _plan(plan, lines)
        if any(f"{plan.torch}." in edit.text for edit in plan.splices):
            plan.splices += imports
        if plan.splices:
            files[path] = splice(source.text, plan.splices)
        moved += plan.moved
        reasons += [f"{path}:{reason}" for reason in plan.reasons]
        reasons += [] if plan.splices else [f"{path}:{reason}" for reason in _returned(source, lines)]
    if files:
        return Edits(
            files, f"read {', '.join(dict.fromkeys(moved))} from the device where it is logged, not in each step"
        )
    reasons += list(_shapes(request))
    return Advice("; ".join(dict.fromkeys(reasons))) if reasons else None


def _returned(source: Source, lines: set[int]) -> Iterator[str]:
    """Lines of the finding that hand a number to whoever calls them in each step."""
    for statement in source.every(cst.Return):
        value = statement.value
        if source.lines_of(statement)[0] in lines and isinstance(value, cst.Call) and call_name(value) == "item":
            yield (
                f"{source.lines_of(statement)[0]} returns a number to every step: let it return the tensor, detached, "
                "and read that where it is shown"
            )


def _shapes(request: Request) -> Iterator[str]:
    """Lines that read the device without saying so: the size of their result depends on its values."""
    for path, text in request.sources.items():
        lines = {place.line for place in request.finding.where if place.file == path}
        source = parse(text) if lines else None
        if source is None:
            continue
        told = dict.fromkeys(
            source.lines_of(node)[0]
            for node in source.walk(None, cst.Call, cst.Subscript)
            if source.lines_of(node)[0] in lines and _depends(source, node)
        )
        for line in told:
            yield (
                f"{path}:{line} may read how large its result is: what it picks depends on values of the "
                "device. With torch.where, or with the mask as a weight (loss of all × mask, divided by mask.sum()), "
                "sizes stay the same and nobody waits"
            )


def _depends(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression in a line that was seen to wait may pick by values: with a mask, or a table of them."""
    if isinstance(node, cst.Call):
        return call_name(node) in _DEPENDS
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return False
    index = node.slice[0].slice
    if not isinstance(index, cst.Index) or not isinstance(index.value, cst.Name | cst.Subscript | cst.Comparison):
        return False
    return number_kind(source, index.value) is None


def _plan(plan: Deferred, lines: set[int]) -> None:
    source = plan.source
    for read, tensor in logged_reads(source):
        plan.splices.append(replace(source, read, source.code(tensor)))
        plan.moved.append("what Lightning logs")
    done: set[tuple[cst.CSTNode, str]] = set()
    steps = batch_loops(source)
    planned: dict[Loop, list[tuple[list[Splice], list[str]]]] = {}
    waits: set[Loop] = set()
    for read in training_reads(source, lines):
        edits, moved = len(plan.splices), len(plan.moved)
        batch = _step_of(source, read, steps)
        try:
            _plan_read(plan, read, steps, done)
        except LeftAlone as reason:
            del plan.splices[edits:]
            plan.reasons.append(f"{source.lines_of(read)[0]} is left alone: {reason}")
            waits |= {batch} if batch is not None else set()
        others = [edit for each in planned.values() for splices, _ in each for edit in splices]
        if any(overlaps(edit, one) for edit in plan.splices[edits:] for one in [*plan.splices[:edits], *others]):
            del plan.splices[edits:], plan.moved[moved:]  # the variable of an earlier read takes this value too
        if batch is not None and loops_around(source, read)[0] is batch:
            planned.setdefault(batch, []).append((plan.splices[edits:], plan.moved[moved:]))
            del plan.splices[edits:], plan.moved[moved:]
    for batch, each in planned.items():
        if batch in waits:
            continue  # the step waits for the device all the same, once for all that it reads
        plan.splices += [edit for splices, _ in each for edit in splices]
        plan.moved += [name for _, names in each for name in names]
    for statement in shown_at(source, lines):
        batch = next((loop for loop in loops_around(source, statement) if loop in steps), None)
        reads = any(is_read(call) for call in source.every(cst.Call, statement))
        if batch is None or batch in waits or reads or gate(source, statement, batch) is not None:
            continue
        try:
            _show_less_often(plan, statement, batch)
        except LeftAlone as reason:
            plan.reasons.append(f"{source.lines_of(statement)[0]} is left alone: {reason}")


def _plan_read(plan: Deferred, read: cst.Call, steps: set[Loop], done: set[tuple[cst.CSTNode, str]]) -> None:
    """Put one read off, or leave it where it is; what the lists in `done` collect stays on the device already.

    Raises LeftAlone.
    """
    source = plan.source
    loops = loops_around(source, read)
    inner = [loop for loop in loops if isinstance(loop, cst.For) and not trains(source, loop)]
    batch = _batch_of(source, loops, steps)
    rare = _step_of(source, read, steps) is None
    shown = on_progress_bar(source, read)
    if batch is not None and not rare and shown is not None:
        _show_less_often(plan, shown, batch)
    elif batch is not None and (filled := puts_off(source, read)):
        key = (scope_of(source, read), f"{filled} {source.lines_of(read)[0]}")
        if not rare and key not in done:
            done.add(key)  # it may read its value more than once
            put_off(plan, read, batch)
    elif inner and (batch is None or inner[-1] is not batch):
        read_at_once(plan, read, inner[-1])
    elif batch is not None and not rare:
        name = filled_by(source, read)
        key = (scope_of(source, read), name)
        if key not in done:
            done.add(key)
            _keep(plan, read, batch, name)


def _batch_of(source: Source, loops: Sequence[Loop], steps: set[Loop]) -> Loop | None:
    batch = next((loop for loop in loops if loop in steps), None)
    return batch or next((loop for loop in loops if trains(source, loop)), None)


def _step_of(source: Source, read: cst.Call, steps: set[Loop]) -> Loop | None:
    """The loop that comes to a read in every step; None where that is done now and then, or beside training."""
    batch = _batch_of(source, loops_around(source, read), steps)
    if batch is None or (batch not in steps and trains_within(source, batch)):
        return None
    return batch if gate(source, read, batch) is None else None


def _keep(plan: Deferred, read: cst.Call, batch: Loop, name: str) -> None:
    """Keep a variable on the device; where that would compute it otherwise, put its statement off. Raises LeftAlone."""
    before = len(plan.splices)
    try:
        keep_on_device(plan, read, batch, name)
    except LeftAlone as reason:
        del plan.splices[before:]
        if puts_off(plan.source, read, sums=True) is None:
            raise
        try:
            put_off(plan, read, batch)
        except LeftAlone as second:
            del plan.splices[before:]
            raise LeftAlone("; ".join(dict.fromkeys([str(reason), str(second)]))) from second


def _show_less_often(plan: Deferred, shown: cst.Expr, batch: Loop) -> None:
    if does_more(plan.source, shown):
        raise LeftAlone("what it shows is made by a call that may do more; show every n-th step only")
    splices = show_less_often(plan.source, shown, batch)
    if isinstance(splices, str):
        raise LeftAlone(f"it is shown in every step, and {splices}; show every n-th only")
    plan.splices += [edit for edit in splices if edit not in plan.splices]
    plan.moved.append("what the progress bar shows")


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
    lines = lines_with(text, ".item()")
    return example_request("host-sync", text, lines=lines)


def _deferred(before: tuple[str, ...], after: tuple[str, ...]) -> Example:
    return Example(_program(*before), _program(*after), _recorded)


def _left_alone(*parts: str) -> Example:
    return Example(_program(*parts), None, _recorded)


_LOG = "if i % 5 == 0:\n    print(f'{running / 5:.4f}')\n    running = 0.0"
_LOG_AFTER = _LOG.replace("{running", "{float(running)")
_NORMS = "total = 0.0\n{}for p in model.parameters():\n    {}\n"
_READ = "torch.cat([each.view(1).to({0}[0].device) for each in {0}]).tolist()"

FIXER = Fixer(
    name="defer-item",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="sync_calls",
    order=20,
    after=("foreach-clip", "weigh-masked"),
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
                "correct = int(correct)\nprint(correct, correct / 20)\n",
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
                "if i % 5 == 0:\n    print(losses[-1].item(), sum([value.item() for value in losses[-3:]]))",
                "losses = [value.item() for value in losses]\nprint(losses)\n",
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
                + "if i % 5 == 0:\n    if total_values:\n"
                f"        for value in {_READ.format('total_values')}:\n"
                "            total += value ** 2\n    print(total ** 0.5)",
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
                + f"if total_values:\n    for value in {_READ.format('total_values')}:\n"
                "        total += value ** 2\nnorms.append(total)",
                "print(norms)\n",
            ),
        ),
        _deferred(
            (
                "import collections\nhistory = collections.defaultdict(list)",
                "for task in range(2):\n    history[task].append((loss + task).item())\n"
                "if i % 5 == 0:\n    print(history[0][-1], history[1][-1])",
            ),
            (
                "import collections\nhistory = collections.defaultdict(list)\nhistory_pending = []",
                "for task in range(2):\n    history_pending.append(((loss + task).detach(), task))\n"
                "if i % 5 == 0:\n    for tensor, task_then in history_pending:\n"
                "        history[task_then].append(tensor.item())\n    history_pending.clear()\n"
                "    print(history[0][-1], history[1][-1])",
            ),
        ),
        _deferred(
            ("sums = {'loss': 0.0}", "sums['loss'] += loss.item()", "print(sums['loss'] / 20)\n"),
            (
                "sums = {'loss': 0.0}\nsums_loss_pending = []",
                "sums_loss_pending.append(loss.detach().clone())",
                "for tensor in sums_loss_pending:\n    sums['loss'] += tensor.item()\nsums_loss_pending.clear()\n"
                "print(sums['loss'] / 20)\n",
            ),
        ),
        _deferred(
            ("best = 9.0", "best = min(best, loss.item())", "print(best)\n"),
            (
                "best = 9.0\nbest_pending = []",
                "best_pending.append(loss.detach().clone())",
                "for tensor in best_pending:\n    best = min(best, tensor.item())\nbest_pending.clear()\nprint(best)\n",
            ),
        ),
        _deferred(
            (
                "norms = {}",
                "for n, p in model.named_parameters():\n    if p.grad is None:\n        continue\n"
                "    norm = p.grad.norm().item()\n    norms[n] = 0.9 * norms.get(n, norm) + 0.1 * norm",
                "print(norms)\n",
            ),
            (
                "norms = {}",
                "norm_values = []\nfor n, p in model.named_parameters():\n    if p.grad is None:\n"
                "        continue\n    norm_values.append(p.grad.norm().detach())\n"
                f"if norm_values:\n    norm_values = {_READ.format('norm_values')}\n"
                "norm_values = iter(norm_values)\n"
                "for n, p in model.named_parameters():\n    if p.grad is None:\n        continue\n"
                "    norm = next(norm_values)\n    norms[n] = 0.9 * norms.get(n, norm) + 0.1 * norm",
                "print(norms)\n",
            ),
        ),
        _left_alone("history = {0: []}", "history[0].append(loss.item())\nprint(history[0][-1])"),
        _left_alone("", "if loss.item() > 10:\n    break"),
        _left_alone("", "print(i, loss.item())"),
        _left_alone("", "if i % 5 == 0:\n    print(loss.item())"),
        _left_alone("running = 0.0", "running += loss.item()\nif running > 3:\n    break"),
        _left_alone("running = 0.0", "running += loss.item()\nprint(running)"),
        _left_alone(
            "", "total = 0.0\nfor p in model.parameters():\n    total += p.grad.norm().item()\n    print(total)"
        ),
    ),
)
