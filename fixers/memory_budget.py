"""Has a step hold less: compiled regions under a budget of activations, or smaller micro-batches, more of them.

What it changes
    Where the program compiles its model, `torch._functorch.config.activation_memory_budget = 0.5` after the imports:
    of what a compiled region would keep for its backward pass, that share is kept, and the rest computed again. Where
    it accumulates gradients, the size of a micro-batch is divided and the number of micro-steps multiplied by the same
    factor: the largest micro-batch that fits and pays, by trial.

Why it helps
    The compiler knows for every intermediate result how many bytes it takes and how much arithmetic makes it again,
    and gives up the cheapest first. What is held does not fall evenly with the budget, so that several are tried.
    The activations of half a micro-batch take half the memory, and what one step of the optimizer sees stays the same.

Fix safety
    Rounding: compiled code computes some results in another order than before, and the mean of means is the mean of
    all where micro-batches are of one size. Training, where the samples of an epoch are what is split, since its last
    batch may be smaller. Left alone: programs that set the budget themselves; losses that depend on how samples are
    grouped; loops that count micro-steps for other ends. A program that neither compiles nor accumulates is left to
    `checkpoint-blocks`, with advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.batches.micro_batch import MicroBatch, microbatch
from diagnose.source.models.compilation import compilations
from diagnose.source.tree.edits import insert_after, parse, splice, top_of_program

_BUDGETS = (0.7, 0.5, 0.3, 0.15)
_FACTORS = (2, 4, 8)
_MODULE = "torch._functorch.config"
_NAME = "activation_memory_budget"
_BY_HAND = (
    "A smaller micro-batch holds less: accumulate the gradients of several (`(loss / n).backward()` n times before "
    "`optimizer.step()`), as many as make up the batch of today. No edit is made: the program does not accumulate yet."
)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Budgets where the program compiles, else sizes of the micro-batch; what takes the least time first."""
    if compilations(request.sources):
        return [{"budget": budget} for budget in _BUDGETS]
    found = microbatch(request, least_steps=1)
    if not isinstance(found, MicroBatch):
        return ({},)
    return [{"micro_batch": found.size // factor} for factor in _FACTORS if found.size % factor == 0] or ({},)


def rewrite(request: Request) -> Answer:
    """Set the budget, or divide the micro-batch."""
    if any(_NAME in text for text in request.sources.values()):
        return None
    if compilations(request.sources):
        return _compiled(request)
    found = microbatch(request, least_steps=1)
    if not isinstance(found, MicroBatch):
        return Advice(_BY_HAND)
    size = request.setting.get("micro_batch")
    if not isinstance(size, int) or size <= 0 or found.size % size or size == found.size:
        return None
    steps = found.steps * (found.size // size)
    edits = found.edits(size, steps)
    if isinstance(edits, str):
        return Advice(edits)
    summary = f"compute {size} samples at once, in {steps} micro-steps"
    return Edits(request.edited(edits), summary, Gate.ROUNDING if found.exact else Gate.TRAINING)


def _compiled(request: Request) -> Answer:
    """The budget of compiled regions, in the script that is started or else where it compiles."""
    budget = request.setting.get("budget", _BUDGETS[0])
    path = request.entry if request.entry in request.sources else compilations(request.sources)[0].path
    source = parse(request.sources[path]) if path is not None else None
    anchor = top_of_program(source) if source is not None else None
    if path is None or source is None or anchor is None:
        return Advice(f"`{_MODULE}.{_NAME} = {budget}` before anything is compiled makes regions hold less.")
    lines = [f"import {_MODULE}", "", f"{_MODULE}.{_NAME} = {budget}"]
    summary = f"keep {budget:.0%} of the activations of compiled regions, and compute the rest again"
    return Edits({path: splice(source.text, [insert_after(source, anchor, lines)])}, summary)


def _budgeted(text: str) -> Request:
    return example_request("memory-pressure", text, setting={"budget": 0.5})


def _divided(text: str) -> Request:
    return example_request("memory-pressure", text, setting={"micro_batch": 6})


_COMPILES = "import torch\n{line}\nmodel = torch.compile(Net())\n"
_COUNTED = """import torch
batch_size = {size}
accumulate = {steps}
for step in range(100):
    for micro_step in range(accumulate):
        x, y = get_batch(batch_size)
        loss = model(x, y) / accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FIXER = Fixer(
    name="memory-budget",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="idle.allocator",
    settings=settings,
    order=70,
    conflicts=("bigger-microbatch",),
    after=("checkpoint-blocks",),
    examples=(
        Example(
            _COMPILES.format(line=""),
            _COMPILES.format(
                line="import torch._functorch.config\n\ntorch._functorch.config.activation_memory_budget = 0.5\n"
            ),
            _budgeted,
        ),
        Example(_COUNTED.format(size=12, steps=4), _COUNTED.format(size=6, steps=8), _divided),
        Example(_COUNTED.format(size=8, steps=4), None, _divided),
        Example(_COUNTED.format(size=12, steps=4) + "norm = torch.nn.BatchNorm1d(3)\n", None, _divided),
        Example("import torch\nmodel = Net()\n", None, _budgeted),
    ),
)
