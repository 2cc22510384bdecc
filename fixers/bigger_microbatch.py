"""Computes more samples at once and accumulates over fewer micro-steps.

What it changes
    In a program that accumulates gradients, the size of the micro-batch is multiplied and the number of micro-steps
    divided by the same factor, each where the program sets it (a file of settings that it executes; for Hugging Face's
    Trainer and for Lightning in their arguments). What one step of the optimizer sees stays the same.

Why it helps
    A kernel on few samples leaves multiprocessors empty, and every micro-step costs the launches of a whole forward and
    backward pass. Half as many micro-steps of twice the size do the same arithmetic in fuller kernels.

Fix safety
    Rounding, where the loss is a mean over micro-batches of one size: the mean of means is the mean of all. Training,
    where the samples of an epoch are what is split, since its last batch may be smaller, where the loss ignores some
    targets, of which micro-batches may hold unequal parts, and where the step draws random numbers for each sample
    (dropout, noise), which are others in other groups. Left alone, with the line: BatchNorm, whose statistics are
    those of a micro-batch; losses that compare samples with each other, sums and weighted losses; what is printed,
    logged, counted or kept in every micro-step, or of the last one; programs that derive more from the two numbers or
    from the batches of an epoch, such as a schedule over `len(loader)` steps, or that show them. Without accumulation,
    a larger batch changes the training, and is advice. Activations take as many times the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request, word_diffs
from diagnose.source.batches.micro_batch import MicroBatch, microbatch

_FACTORS = (2, 4, 8)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Factors that divide the number of micro-steps."""
    found = microbatch(request)
    steps = found.steps if isinstance(found, MicroBatch) else 0
    return [{"factor": factor} for factor in _FACTORS if steps and steps % factor == 0] or ({},)


def rewrite(request: Request) -> Answer:
    """Multiply the micro-batch, divide the micro-steps."""
    found = microbatch(request)
    if not isinstance(found, MicroBatch):
        return Advice(found) if found is not None else None
    factor = request.setting.get("factor", next((each for each in _FACTORS if found.steps % each == 0), None))
    if not isinstance(factor, int) or found.steps % factor:
        return None
    size, steps = found.size * factor, found.steps // factor
    edits = found.edits(size, steps)
    if isinstance(edits, str):
        return Advice(edits)
    summary = f"compute {size} samples at once, in {steps} micro-steps"
    return Edits(request.edited(edits), summary, Gate.ROUNDING if found.exact else Gate.TRAINING)


def _recorded(text: str) -> Request:
    already = re.search(r"accumulate = 2(?! \*)", text)
    return example_request("small-batch", text, setting={"factor": 4 if already else 2})


_COUNTED = """import torch
{numbers}
for step in range(100):
    for micro_step in range(accumulate):
        x, y = get_batch(batch_size)
        loss = model(x, y) / accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_BY_LOADER = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size={batch}, shuffle=True)
accumulate = {accumulate}
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    (loss / accumulate).backward()
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
"""

FIXER = Fixer(
    name="bigger-microbatch",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.python+idle.dispatch+idle.launch",
    settings=settings,
    order=70,
    examples=(
        Example(
            _COUNTED.format(numbers="batch_size = 12  # per micro-step\naccumulate = 2 * 2 # steps"),
            _COUNTED.format(numbers="batch_size = 24  # per micro-step\naccumulate = 2 # steps"),
            _recorded,
        ),
        Example(_BY_LOADER.format(batch=8, accumulate=4), _BY_LOADER.format(batch=16, accumulate=2), _recorded),
        *word_diffs(
            _recorded,
            _COUNTED.format(numbers="batch_size = 12\naccumulate = 3"),
            _COUNTED.format(numbers="batch_size = 12\naccumulate = 4\nsteps_per_epoch = len(data) // batch_size"),
            _COUNTED.format(numbers="batch_size, accumulate = 4, 4"),
            _COUNTED.replace(" / accumulate", "").format(numbers="batch_size = 4\naccumulate = 4"),
            _BY_LOADER.format(batch=8, accumulate=4) + "norm = torch.nn.BatchNorm2d(3)\n",
            _BY_LOADER.format(batch=8, accumulate=4) + "    scheduler.step()\n",
        ),
    ),
)
