"""Computes more samples at once and accumulates over fewer micro-steps.

What it changes
    In a program that accumulates gradients, the size of the micro-batch is multiplied and the number of micro-steps
    divided by the same factor, each where the program sets it (for Hugging Face's Trainer and for Lightning in their
    arguments). What one step of the optimizer sees stays the same.

Why it helps
    A kernel on few samples leaves multiprocessors empty, and every micro-step costs the launches of a whole forward and
    backward pass. Half as many micro-steps of twice the size do the same arithmetic in fuller kernels.

Fix safety
    Rounding, where the loss is a mean over micro-batches of one size: the mean of means is the mean of all. Training,
    where the samples of an epoch are what is split, since its last batch may be smaller. Left alone: BatchNorm, whose
    statistics are those of a micro-batch; sums and weighted losses; schedules that count micro-steps. Without
    accumulation, a larger batch changes the training, and is advice. Activations take as many times the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import (
    Accumulation,
    Advice,
    Answer,
    Count,
    Edits,
    Example,
    Fixer,
    Gate,
    Request,
    Scalar,
    Source,
    Splice,
    Trainer,
    TrainingStep,
    accumulation,
    count_of,
    example_request,
    training_steps,
    within,
)

_FACTORS = (2, 4, 8)
_BATCH_OF_THE_TRAINER = 8
"""What Hugging Face's Trainer takes where nothing is said."""
_COUNTS_BATCHES = re.compile(r"limit_train_batches|val_check_interval|overfit_batches|batch_idx\s*[%+/]|split_batches")
_BATCH = re.compile(r"^(?:micro_?|device_?|per_device_?|train_?)?(?:batch(?:_size)?|bs|bsz)$", re.IGNORECASE)
_OF_THE_BATCH = re.compile(r"BatchNorm|batch_norm|torchvision\.models|\btimm\b|reduction\s*=\s*[\"']sum|ignore_index")


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Factors that divide the number of micro-steps."""
    trainer = _accumulates(request)
    found = _found(request) if trainer is None else None
    steps = trainer.options.value("micro_steps") if trainer is not None else None
    if isinstance(found, tuple):
        steps = found[2].value
    return [{"factor": factor} for factor in _FACTORS if isinstance(steps, int) and steps % factor == 0] or ({},)


def rewrite(request: Request) -> Answer:
    """Multiply the micro-batch, divide the micro-steps."""
    trainer = _accumulates(request)
    if trainer is not None:
        return _through(request, trainer)
    found = _found(request)
    if found is None:
        return None
    if isinstance(found, str):
        return Advice(found)
    way, batch, steps = found
    factor = request.setting.get("factor", next((each for each in _FACTORS if steps.value % each == 0), None))
    if not isinstance(factor, int) or steps.value % factor:
        return None
    edits: list[tuple[str, list[Splice]]] = [
        (batch.path, [batch.to(batch.value * factor)]),
        (steps.path, [steps.to(steps.value // factor)]),
    ]
    summary = f"compute {batch.value * factor} samples at once, in {steps.value // factor} micro-steps"
    return Edits(request.edited(edits), summary, Gate.ROUNDING if way.counted else Gate.TRAINING)


def _accumulates(request: Request) -> Trainer | None:
    """The library that accumulates gradients for the program."""
    for trainer in request.trainers():
        steps = trainer.options.value("micro_steps")
        if isinstance(steps, int) and steps > 1:
            return trainer
    return None


def _through(request: Request, trainer: Trainer) -> Answer:
    """Both numbers, where the library is told them."""
    steps, name = trainer.options.value("micro_steps"), trainer.options.its("micro_steps")
    assert isinstance(steps, int)  # it accumulates
    factor = request.setting.get("factor", next((each for each in _FACTORS if steps % each == 0), None))
    text = "\n".join(request.sources.values())
    counted = _OF_THE_BATCH.search(text.replace("ignore_index", "")) or _COUNTS_BATCHES.search(text)
    loaders = [loader.options for loader in request.loaders().loaders]
    told = trainer.options if trainer.knows("batch_size") else loaders[0] if len(loaders) == 1 else None
    batch = told.value("batch_size") if told is not None else None
    if trainer.library == "transformers" and not trainer.is_given("batch_size"):
        batch = _BATCH_OF_THE_TRAINER
    if not isinstance(factor, int) or steps % factor:
        return None
    if counted is not None or trainer.library == "accelerate" or told is None or not isinstance(batch, int):
        why = (
            f"`{counted[0]}` counts on how samples are grouped" if counted else "what else counts batches is not known"
        )
        return Advice(f"{trainer.where} accumulates: let batches be larger and {name} smaller. Not by us: {why}.")
    placed = [told.place("batch_size", batch * factor), trainer.options.place("micro_steps", steps // factor)]
    reasons = [each.reason for each in placed if each.reason]
    if reasons:
        return Advice(" ".join(reasons))
    edits = [edit for each in placed for edit in each.edits.items()]
    summary = f"compute {batch * factor} samples at once, in {steps // factor} micro-steps"
    return Edits(request.edited(edits), summary, Gate.TRAINING)


def _found(request: Request) -> tuple[Accumulation, Count, Count] | str | None:
    """The accumulation with what sets its two numbers; or why it is left to people; or nothing to say."""
    steps = training_steps(request.sources, request.sites)
    steps = tuple(step for step in steps if step.path == request.entry) or steps
    if not steps:
        return None
    ways = [(step, way) for step in steps if (way := accumulation(step)) is not None]
    if len(ways) != 1:
        return (
            "A larger batch would fill the device better, but changes the training: raise the batch size, and the "
            "learning rate with it, if your task allows; or accumulate over fewer micro-steps if you do."
        )
    step, way = ways[0]
    where = f"{step.path}:{step.source.lines_of(step.backward)[0]}"
    text = "\n".join(request.sources.values())
    coupled = _OF_THE_BATCH.search(text)
    if coupled is not None:
        return f"{where} accumulates, but `{coupled[0]}` makes the loss depend on how samples are grouped."
    if not way.counted and _counts_micro_steps(step):
        return f"{where} accumulates, but its loop counts micro-steps for other ends too: change both numbers by hand."
    batch, number = _batch(request, step.source), _set(request, step.path, step.source, way.steps, divisor=True)
    if batch is None or number is None or number.value < 2:
        what = "micro-batch" if batch is None else "number of micro-steps"
        return f"{where} accumulates: let its micro-batch be larger and its micro-steps fewer ({what} not found)."
    return way, batch, number


def _counts_micro_steps(step: TrainingStep) -> bool:
    """Whether a schedule, or the end of the training, hangs on the number of micro-steps."""
    source, loop = step.source, step.loop
    if not isinstance(loop, cst.For) or "range(" in source.code(loop.iter):
        return True
    branches = {source.inside(call, cst.If) for call in step.optimizer_steps} - {None}
    for call in source.every(cst.Call, loop):
        scheduler = (
            isinstance(call.func, cst.Attribute) and call.func.attr.value == "step" and "sched" in source.code(call)
        )
        if scheduler and not any(branch is not None and within(source, call, branch) for branch in branches):
            return True
    return any(isinstance(node, cst.Break) for node in source.walk(loop.body))


def _batch(request: Request, source: Source) -> Count | None:
    loaders = request.loaders().loaders
    for loader in loaders:
        given = loader.options.given("batch_size")
        if given is not None:
            found = _set(request, loader.options.path, loader.options.source, given)
            recorded = loader.site.arguments.get("batch_size") if loader.site is not None else None
            return found if found is not None and recorded in (None, found.value) else None
    names = {
        source.code(assign.targets[0].target)
        for assign in source.every(cst.Assign)
        if _BATCH.match(source.code(assign.targets[0].target))
    }
    name = names.pop() if len(names) == 1 else ""
    return count_of(source, request.entry or "", name) if name and not _from_outside(request, source, name) else None


def _from_outside(request: Request, source: Source, name: str) -> bool:
    """Whether the command line, or a file of settings that it names and the program executes, has the last word."""
    executed = "exec(" in source.text and any(
        word.endswith(".py") and not (request.entry or "").endswith(word) for word in request.words
    )
    return executed or any(word.lstrip("-").partition("=")[0].replace("-", "_") == name for word in request.words)


def _set(
    request: Request, path: str, source: Source, value: cst.BaseExpression, *, divisor: bool = False
) -> Count | None:
    """Where a number is set; None where the command line has it."""
    code = source.code(value)
    if _from_outside(request, source, code):
        return None
    if isinstance(value, cst.Name):
        return count_of(source, path, code, divisor=divisor)
    setting = request.set_by(value, path, source)
    if setting is None or not isinstance(setting.value, int) or isinstance(setting.value, bool):
        return None
    edit = setting.to(setting.value)
    return Count(setting.path, edit.start, edit.end, setting.value)


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
        Example(_COUNTED.format(numbers="batch_size = 12\naccumulate = 3"), None, _recorded),
        Example(
            _COUNTED.format(numbers="batch_size = 12\naccumulate = 4\nsteps_per_epoch = len(data) // batch_size"),
            None,
            _recorded,
        ),
        Example(_COUNTED.format(numbers="batch_size, accumulate = 4, 4"), None, _recorded),
        Example(
            _COUNTED.replace(" / accumulate", "").format(numbers="batch_size = 4\naccumulate = 4"), None, _recorded
        ),
        Example(_BY_LOADER.format(batch=8, accumulate=4) + "norm = torch.nn.BatchNorm2d(3)\n", None, _recorded),
        Example(_BY_LOADER.format(batch=8, accumulate=4) + "    scheduler.step()\n", None, _recorded),
    ),
)
