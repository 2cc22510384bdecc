"""Reduces accumulated gradients over the ranks once, with the last micro-step.

What it changes
    Puts forward and backward pass of a micro-step, or the call of the method that makes both, below
    `with contextlib.nullcontext() if last else model.no_sync():`; for models sharded with `fully_shard`, a line before
    them, `model.set_requires_gradient_sync(last)`. `last` is the program's own condition for the optimizer's step, or
    the last turn of a loop over counts or over the parts of a batch.

Why it helps
    The optimizer needs the sum over micro-steps and ranks. Reduced in each of k micro-steps, k times the bytes travel.

Fix safety
    Rounding: ranks are added up after micro-steps instead of before. With `fully_shard`, whole gradients stay on every
    rank until the last micro-step, which takes memory. It changes the training where batches are normalised and buffers
    are sent between ranks: the other ranks get rank 0's running statistics only with the micro-step that reduces. Left
    alone: programs that do either already, and, with advice, those whose condition is not known before the forward
    pass, steps that call several models with gradients, of which a critic's turn trains one, and wrappers with
    `static_graph`, beside which `no_sync()` fails.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.batches.micro_step_methods import called_micro_step
from diagnose.source.batches.micro_steps import LastMicroStep, last_micro_step
from diagnose.source.dataflow.flow import is_without_gradients, loops_around, scope_of, within
from diagnose.source.distributed.data_parallel import DataParallel, wrapper_of
from diagnose.source.distributed.fsdp import sharded_blocks
from diagnose.source.rewrite.with_blocks import block_of, wrap_statements
from diagnose.source.training.batch_statistics import normalises_batches
from diagnose.source.training.forward_region import ForwardRegion, forward_region
from diagnose.source.training.model_calls import is_model
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.edits import Splice, call_name, ensure_import, insert_above
from diagnose.source.tree.text_lines import any_matches

_DONE = re.compile(r"\bno_sync\(|require_backward_grad_sync|set_requires_gradient_sync\(|\.accumulate\(")

_WRAPS = re.compile(r"\bDistributedDataParallel\b|\bfully_shard\(")
_UNTOLD = (
    "Gradients are reduced in every micro-step. Run forward and backward pass of all but the last one of a step within "
    "`with model.no_sync():` (of `fully_shard`: after `model.set_requires_gradient_sync(False)`). No edit is made: "
    "where a micro-step is told to be the last was not found."
)


def rewrite(request: Request) -> Answer:
    """Let all micro-steps but the last keep their gradients to themselves."""
    if any_matches(_DONE, request.sources.values()) or request.trainers():
        return None
    shards = [one for one in sharded_blocks(request.sources) if one.loop is None]
    reasons: list[str] = []
    for step in training_steps(request.sources, request.sites):
        wrapper = wrapper_of(step, request.sources, request.sites)
        called = called_micro_step(step) if wrapper is not None else None
        last = last_micro_step(step) if called is None else last_micro_step(called, adds_only=True)
        step = called or step
        if last is None or step.model is None or not (wrapper or shards):
            continue
        where = f"{step.path}:{step.source.lines_of(step.backward)[0]}"
        if isinstance(last, str):
            reasons.append(
                f"{where} reduces in every micro-step: use `{step.model}.no_sync()` but for the last one. "
                f"No edit is made: {last}."
            )
            continue
        if len(_learning(step)) > 1:
            reasons.append(f"{where} reduces in every micro-step: use `no_sync()` of each model that learns there.")
            continue
        if wrapper is not None and _is_static(wrapper):
            reasons.append(f"{where} reduces in every micro-step: `no_sync()` fails beside `static_graph`.")
            continue
        region = forward_region(step) if called is None else _whole(called)
        if isinstance(region, str):
            reasons.append(f"{where} reduces in every micro-step: use `{step.model}.no_sync()` but for the last one.")
            continue
        if wrapper is not None:
            splices = _silenced(step, region, last.condition, wrapper)
        elif any(one.is_conditional for one in shards) or _may_drop_some(step, last):
            reasons.append(f"{where} reduces in every micro-step: use `{step.model}.set_requires_gradient_sync`.")
            continue
        else:
            splices = _told(step, region, last.condition)
        files = request.edited([(step.path, [*last.edits, *splices])])
        summary = "reduce gradients over the ranks with the last micro-step alone"
        own = normalises_batches(request.sources) if wrapper is not None and _sends_buffers(wrapper) else None
        if own is not None:
            return Edits(files, summary, Gate.TRAINING, f"ranks also keep apart what `{own}` counts until then")
        return Edits(files, summary)
    if not reasons and _is_untold(request):
        return Advice(_UNTOLD)
    return Advice(" ".join(reasons)) if reasons else None


def _learning(step: TrainingStep) -> set[str]:
    """The models that a step calls with gradients: which of them learn there, as a critic does, others may decide."""
    source = step.source
    called = [call for call in step.forward if not is_without_gradients(source, call)]
    return {source.code(call.func) for call in called if is_model(source, source.code(call.func))}


def _is_static(wrapper: DataParallel) -> bool:
    """Whether a wrapper may be told that each step has the same graph."""
    if wrapper.open:
        return wrapper.value("static_graph") is not False
    return wrapper.code("static_graph") not in {None, "False"}


def _sends_buffers(wrapper: DataParallel) -> bool:
    """Whether rank 0's buffers are sent to the others before a forward pass; not after one without reducing."""
    return wrapper.value("broadcast_buffers") is not False and not wrapper.keeps_own_buffers


def _is_untold(request: Request) -> bool:
    """Whether the finding stands, and no loop of the program is known to update in every turn."""
    wraps = any_matches(_WRAPS, request.sources.values())
    if not wraps or request.finding.rule != "syncing-every-microstep":
        return False
    return not any(_updates_each_turn(step) for step in training_steps(request.sources, request.sites))


def _updates_each_turn(step: TrainingStep) -> bool:
    source = step.source
    around = loops_around(source, step.backward)
    inside = [call for call in step.optimizer_steps if around and within(source, call, around[0])]
    branches = [above for call in inside for above in source.ancestors(call) if isinstance(above, cst.If)]
    return bool(inside) and all(source.code(branch.test) == "True" for branch in branches)


def _whole(step: TrainingStep) -> ForwardRegion | str:
    """The statement that calls a micro-step's method, forward and backward pass in one."""
    statement = step.source.statement(step.backward)
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return ForwardRegion((), statement)
    return "its call shares a line with more"


def _may_drop_some(step: TrainingStep, last: LastMicroStep) -> bool:
    """Whether an epoch may end between two steps, and its gradients be dropped before the next.

    Those that `fully_shard` has not reduced yet are not among those that `zero_grad` finds.
    """
    loop = step.loop
    return not last.always and any(loop is None or not within(step.source, call, loop) for call in step.zero_grads)


def _silenced(step: TrainingStep, region: ForwardRegion, last: str, wrapper: DataParallel) -> list[Splice]:
    contextlib, imports = ensure_import(step.source, "contextlib")
    alone = _unless_wrapped(step, wrapper)
    header = f"with {contextlib}.nullcontext() if {alone}{last} else {step.model}.no_sync():"
    return [*imports, *wrap_statements(step.source, [*region.statements, region.backward], header)]


def _unless_wrapped(step: TrainingStep, wrapper: DataParallel) -> str:
    """Return what to ask first where the model is wrapped only under a condition: without it there is no `no_sync`."""
    branch = wrapper.source.inside(wrapper.call, cst.If)
    if wrapper.source.inside(wrapper.call, cst.IfExp) is not None or _is_given_the_model(step):
        return f'not hasattr({step.model}, "no_sync") or '
    if branch is None or "__name__" in wrapper.source.code(branch.test):
        return ""
    asked = wrapper.source.code(branch.test)
    same = wrapper.source is step.source and scope_of(wrapper.source, wrapper.call) is step.scope
    if same and isinstance(branch.test, cst.Name) and within(wrapper.source, wrapper.call, branch.body):
        return f"not {asked} or "
    return f'not hasattr({step.model}, "no_sync") or '


def _is_given_the_model(step: TrainingStep) -> bool:
    """Whether a caller gives the step's function the model without its wrapper too, as for an evaluation."""
    function = step.scope
    if not isinstance(function, cst.FunctionDef):
        return False
    calls = [call for call in step.source.every(cst.Call) if call_name(call) == function.name.value]
    return any(step.source.code(arg.value).endswith(".module") for call in calls for arg in call.args)


def _told(step: TrainingStep, region: ForwardRegion, last: str) -> list[Splice]:
    first = region.statements[0] if region.statements else region.backward
    assert block_of(step.source, first) is not None  # or it would be no statement of a region
    return [insert_above(step.source, first, [f"{step.model}.set_requires_gradient_sync({last})"])]


def _recorded(text: str) -> Request:
    return example_request("syncing-every-microstep", text)


_COUNTED = """import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
for step in range(100):
    optimizer.zero_grad()
    for {name} in range(accumulate):
        x, y = next(batches)
        loss = criterion(model(x), y)
        (loss / accumulate).backward()
    optimizer.step()
"""
_COUNTED_AFTER = """import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
for step in range(100):
    optimizer.zero_grad()
    for micro_step in range(accumulate):
        x, y = next(batches)
        with contextlib.nullcontext() if micro_step == accumulate - 1 else model.no_sync():
            loss = criterion(model(x), y)
            (loss / accumulate).backward()
    optimizer.step()
"""
_BY_LOADER = """import contextlib
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

net = DDP(build(), device_ids=[rank])
train(net, loader, optimizer)
"""
_SHARDS = """from torch.distributed.fsdp import fully_shard

fully_shard(model)
for step in range(100):
    for micro_step in range(4):
        loss = model(next(batches)).mean() / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_ONLY_IF = """from torch.nn.parallel import DistributedDataParallel
if ddp:
    model = DistributedDataParallel(model)
while True:
    for micro_step in range(4):
        loss = model(batch).mean()
        loss.backward()
    optimizer.step()
"""

FIXER = Fixer(
    name="no-sync",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    order=80,
    examples=(
        Example(_COUNTED.format(name="micro_step"), _COUNTED_AFTER, _recorded),
        Example(_COUNTED.format(name="_"), _COUNTED_AFTER, _recorded),
        Example(
            _BY_LOADER,
            _BY_LOADER.replace(
                "        loss = criterion(model(x), y) / 4\n        loss.backward()\n",
                "        with contextlib.nullcontext() if (i + 1) % 4 == 0 else model.no_sync():\n"
                "            loss = criterion(model(x), y) / 4\n            loss.backward()\n",
            ),
            _recorded,
        ),
        Example(
            _SHARDS,
            _SHARDS.replace(
                "        loss = model(",
                "        model.set_requires_gradient_sync(micro_step == 3)\n        loss = model(",
            ),
            _recorded,
        ),
        Example(
            _ONLY_IF,
            "import contextlib\n\n"
            + _ONLY_IF.replace(
                "        loss = model(batch).mean()\n        loss.backward()\n",
                "        with contextlib.nullcontext() if not ddp or micro_step == 3 else model.no_sync():\n"
                "            loss = model(batch).mean()\n            loss.backward()\n",
            ),
            _recorded,
        ),
        Example(_COUNTED_AFTER, None, _recorded),
        Example(_COUNTED.format(name="_").replace("model(x)", "critic_model(model(x))"), None, _recorded),
        Example(
            _COUNTED.format(name="_").replace(
                ".backward()\n", ".backward()\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            ),
            None,
            _recorded,
        ),
        Example(
            _COUNTED.format(name="_").replace(
                ".backward()\n", ".backward()\n        print(next(model.parameters()).grad.norm())\n"
            ),
            None,
            _recorded,
        ),
        Example(_COUNTED.format(name="_").replace("DistributedDataParallel(model)", "model.cuda()"), None, _recorded),
        Example(_BY_LOADER.replace("        if (i", "        i = i + 1\n        if (i"), None, _recorded),
    ),
)
