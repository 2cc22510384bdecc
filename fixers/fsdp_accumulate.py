"""Keeps gathered parameters from one micro-step to the next, since they do not change before the optimizer's step.

What it changes
    Adds `model.set_reshard_after_backward(last)` before the forward pass of a micro-step, for models sharded with
    `fully_shard`. `last` is the program's own condition for the optimizer's step.

Why it helps
    Parameters that are dropped after each backward pass are gathered again in the next micro-step, though none has
    changed: of k micro-steps, k-1 gather for nothing.

Fix safety
    Bitwise: the same parameters. Memory holds all of them whole on every rank until the last micro-step: what does not
    fit ends the trial and is not kept. Left alone: programs that decide this themselves.
"""

from __future__ import annotations

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.batches.micro_steps import last_micro_step
from diagnose.source.distributed.fsdp import sharded
from diagnose.source.training.forward_region import forward_region
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.edits import insert_above


def rewrite(request: Request) -> Answer:
    """Drop parameters after the last micro-step alone."""
    if any("set_reshard_after_backward" in text for text in request.sources.values()) or request.trainers():
        return None
    whole = [one for one in sharded(request.sources) if one.whole]
    if not whole or any(one.is_conditional for one in whole):
        return None
    for step in training_steps(request.sources, request.sites):
        last = last_micro_step(step)
        region = forward_region(step)
        if last is None or isinstance(last, str) or isinstance(region, str) or step.model is None:
            continue
        first = region.statements[0] if region.statements else region.backward
        added = insert_above(step.source, first, [f"{step.model}.set_reshard_after_backward({last.condition})"])
        files = request.edited([(step.path, [*last.edits, added])])
        return Edits(files, "keep gathered parameters from one micro-step to the next")
    return None


def _recorded(text: str) -> Request:
    return example_request("regathering-parameters", text)


_BEFORE = """from torch.distributed.fsdp import fully_shard

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
for step in range(100):
    for micro_step in range(steps):
        loss = model(next(batches)).mean() / steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FIXER = Fixer(
    name="fsdp-accumulate",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    order=80,
    after=("no-sync", "fsdp-keep"),
    examples=(
        Example(
            _BEFORE,
            _BEFORE.replace(
                "        loss = model(",
                "        model.set_reshard_after_backward(micro_step == steps - 1)\n        loss = model(",
            ),
            _recorded,
        ),
        Example(_BEFORE.replace("    for micro_step in range(steps):", "    if True:"), None, _recorded),
        Example("model.set_reshard_after_backward(False)\n" + _BEFORE, None, _recorded),
    ),
)
