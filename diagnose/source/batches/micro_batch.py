"""The size of a micro-batch and the number of micro-steps, where a program that accumulates gradients sets them.

In its own loop, or in the arguments of a library that holds the loop. Where the two cannot be changed against each
other without changing more, the reason is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import libcst as cst

from diagnose.model import Scalar, Site
from diagnose.source.batches.accumulation import Accumulation, Count, accumulation, count_of
from diagnose.source.batches.batch_counts import derived_from_length, derived_from_size, takes_in_part
from diagnose.source.batches.loader import Loader
from diagnose.source.batches.loader_lifetime import names_holding
from diagnose.source.batches.loaders import LoadersFound
from diagnose.source.batches.micro_step_effects import effect_of_micro_step, mixes_samples
from diagnose.source.batches.rng_in_step import draws_in_step
from diagnose.source.dataflow.flow import within
from diagnose.source.settings.executed_configs import executes_files, is_undecided, set_by_file
from diagnose.source.settings.options import CallOptions
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.trainers import Trainer
from diagnose.source.training.batch_statistics import normalises_batches, sums_losses
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.literals import literal
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source, Splice

_BATCH_OF_THE_TRAINER = 8
"""What Hugging Face's Trainer takes where nothing is said."""
_COUNTS_BATCHES = re.compile(r"limit_train_batches|val_check_interval|overfit_batches|batch_idx\s*[%+/]|split_batches")
_BATCH = re.compile(r"^(?:micro_?|device_?|per_device_?|train_?)?(?:batch(?:_size)?|bs|bsz)$", re.IGNORECASE)
_RATE = re.compile(r"(?:^|[._])(?:lr|learning_rate)(?:$|_)", re.IGNORECASE)
Edited = Sequence[tuple[str, Sequence[Splice]]]


class Program(Protocol):
    """The facts needed of the program; a fixer's request provides them."""

    @property
    def sources(self) -> Mapping[str, str]: ...
    @property
    def sites(self) -> Sequence[Site]: ...
    @property
    def entry(self) -> str | None: ...
    @property
    def words(self) -> Sequence[str]: ...

    def loaders(self) -> LoadersFound: ...
    def trainers(self) -> tuple[Trainer, ...]: ...
    def set_by(
        self, value: cst.BaseExpression, path: str, source: Source, recorded: Scalar = None, *, switch: bool = False
    ) -> Setting | None: ...


@dataclass(frozen=True)
class MicroBatch:
    """Both numbers, and how to set them."""

    size: int
    steps: int
    exact: bool
    """The mean over micro-steps is that over all samples: they are a loop of their own within the step, all of one
    size, the loss leaves no target out, and nothing is drawn for each sample. Else they are those of a loader, hold
    what a loss may ignore, or get other random numbers in another group."""
    _set: Callable[[int, int], Edited | str] = field(repr=False)

    def edits(self, size: int, steps: int) -> Edited | str:
        """The edits with which the program takes these; or why there are none."""
        return self._set(size, steps)


def microbatch(program: Program, least_steps: int = 2) -> MicroBatch | str | None:
    """Return how the program accumulates; why that is left to people; or None where there is nothing to say.

    `least_steps`: with fewer micro-steps there is nothing to do.
    """
    for trainer in program.trainers():
        steps = trainer.options.value("micro_steps")
        if isinstance(steps, int) and steps > 1:
            return _in_library(program, trainer, steps)
    return _in_loop(program, least_steps)


def _of_the_batch(program: Program) -> str | None:
    """Return what makes the loss depend on which samples are computed together."""
    return normalises_batches(program.sources) or sums_losses(program.sources)


def _in_library(program: Program, trainer: Trainer, steps: int) -> MicroBatch | str:
    """Both numbers where a library is told them."""
    counts = _COUNTS_BATCHES.search("\n".join(program.sources.values()))
    coupled = _of_the_batch(program) or (counts[0] if counts is not None else None)
    loaders = [loader.options for loader in program.loaders().loaders]
    told = trainer.options if trainer.knows("batch_size") else loaders[0] if len(loaders) == 1 else None
    size = told.value("batch_size") if told is not None else None
    if trainer.library == "transformers" and not trainer.is_given("batch_size"):
        size = _BATCH_OF_THE_TRAINER
    if coupled is not None or trainer.library == "accelerate" or told is None or not isinstance(size, int):
        why = f"`{coupled}` counts on how samples are grouped" if coupled else "what else counts batches is not known"
        name = trainer.options.its("micro_steps")
        return (
            f"{trainer.where} accumulates: change the size of batches, and {name} against it. No edit is made: {why}."
        )
    return MicroBatch(size, steps, False, lambda size, steps: _placed(told, trainer.options, size, steps))


def _placed(told: CallOptions, options: CallOptions, size: int, steps: int) -> Edited | str:
    placed = [told.place("batch_size", size), options.place("micro_steps", steps)]
    reasons = [each.reason for each in placed if each.reason]
    return " ".join(reasons) if reasons else [edit for each in placed for edit in each.edits.items()]


def _in_loop(program: Program, least_steps: int) -> MicroBatch | str | None:
    """Return what sets the two numbers of the program's own loop."""
    steps = training_steps(program.sources, program.sites)
    steps = tuple(step for step in steps if step.path == program.entry) or steps
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
    if (coupled := _of_the_batch(program)) is not None:
        return f"{where} accumulates, but `{coupled}` makes the loss depend on how samples are grouped."
    mixed = mixes_samples(program.sources, step)
    if mixed is not None:
        return f"{where} accumulates, but {mixed}: the loss depends on how samples are grouped."
    if not way.counted and _counts_micro_steps(step):
        return f"{where} accumulates, but its loop counts micro-steps for other ends too: change both numbers by hand."
    if (effect := effect_of_micro_step(step, way)) is not None:
        return f"{where} accumulates, but {step.path}:{effect}: change both numbers by hand."
    if (rate := _rate_of_batch(step.source, step.source.code(way.steps))) is not None:
        return f"{where} accumulates, but `{rate}` hangs on the size of its micro-batch: change the three by hand."
    if literal(way.steps) is not None:
        return f"{where} accumulates, but says its number of micro-steps more than once: change both numbers by hand."
    size = _size(program, step)
    number = _set_at(program, step.path, step.source, way.steps, divisor=True)
    if (derived := _derived(program, step, way)) is not None:
        return f"{where} accumulates, but {derived}: change both numbers by hand."
    if size is None or number is None or number.value < least_steps:
        names = (_size_name(step.source), step.source.code(way.steps))
        told = [f"`{word}`" for name in names for word in _words_of(program, name)]
        why = f"{'micro-batch' if size is None else 'number of micro-steps'} not found"
        why = f"the command line says {' and '.join(told)}" if told else why
        return f"{where} accumulates: let its micro-batch be larger and its micro-steps fewer ({why})."
    sources = parse_all(program.sources).values()
    ignores = any("ignore_index" in text for text in program.sources.values())
    alike = not ignores and draws_in_step(sources, step.source.code(step.turn)) is None
    return _of_counts(way.counted and alike, size, number)


def _of_counts(exact: bool, size: Count, number: Count) -> MicroBatch:
    def edits(to: int, steps: int) -> Edited:
        return [(size.path, [size.to(to)]), (number.path, [number.to(steps)])]

    return MicroBatch(size.value, number.value, exact, edits)


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


def _rate_of_batch(source: Source, steps: str) -> str | None:
    """Return what sets a learning rate by the size of a micro-batch, and not by that of all of them."""
    for node in source.walk():
        if isinstance(node, cst.Assign):
            name, value = source.code(node.targets[0].target), node.value
        elif isinstance(node, cst.Arg) and node.keyword is not None:
            name, value = node.keyword.value, node.value
        else:
            continue
        names = {each.value for each in source.every(cst.Name, value)}
        if _RATE.search(name) and any(map(_BATCH.match, names)) and steps.rpartition(".")[2] not in names:
            return source.code(node)
    return None


def _derived(program: Program, step: TrainingStep, way: Accumulation) -> str | None:
    """Return what else the program derives from the two numbers, or from how many batches there are."""
    names = _names_gone_through(step)
    for loader in _feeding(program, step):
        names |= names_holding(program.sources, loader.options.source, loader.options.node)
        given = loader.options.given("batch_size")
        derived = derived_from_size(program.sources, given) if given is not None else None
        if derived is not None:
            return derived
    return (
        derived_from_size(program.sources, way.steps, divisor=True)
        or derived_from_length(program.sources, step, names)
        or takes_in_part(step)
    )


def _names_gone_through(step: TrainingStep) -> set[str]:
    loop = step.loop
    names = step.source.every(cst.Name, loop.iter) if isinstance(loop, cst.For) else ()
    return {name.value for name in names} - {"self"}


def _feeding(program: Program, step: TrainingStep) -> list[Loader]:
    """Loaders that are told a size of their batches: those that the loop names, or all where it names none of them."""
    told = [each for each in program.loaders().loaders if each.options.given("batch_size") is not None]
    names = _names_gone_through(step)
    own = [each for each in told if names & names_holding(program.sources, each.options.source, each.options.node)]
    return own or told


def _size(program: Program, step: TrainingStep) -> Count | None:
    """Return where the size of a micro-batch is set; None where it is not followed, or two loaders have different
    ones."""
    found: list[Count | None] = []
    for loader in _feeding(program, step):
        given = loader.options.given("batch_size")
        assert given is not None
        count = _set_at(program, loader.options.path, loader.options.source, given)
        recorded = loader.site.arguments.get("batch_size") if loader.site is not None else None
        found.append(count if count is not None and recorded in (None, count.value) else None)
    if found:
        return found[0] if all(each == found[0] for each in found) else None
    return _counted(program, step.path, step.source, _size_name(step.source))


def _size_name(source: Source) -> str:
    """The one variable that is called as the size of a batch is; empty where none is, or several are."""
    names = {
        source.code(assign.targets[0].target)
        for assign in source.every(cst.Assign)
        if _BATCH.match(source.code(assign.targets[0].target))
    }
    return names.pop() if len(names) == 1 else ""


def _counted(program: Program, path: str, source: Source, name: str, *, divisor: bool = False) -> Count | None:
    """Return where a variable of the script is set: there, or in a file of settings that the command line names."""
    here = count_of(source, path, name, divisor=divisor) if name and not _words_of(program, name) else None
    if here is None or not executes_files(source):
        return here
    if is_undecided(name, path, source, program.sources, program.words):
        return None
    file = set_by_file(name, path, program.sources, program.words)
    return count_of(file[1], file[0], name, divisor=divisor) if file is not None else here


def _words_of(program: Program, name: str) -> list[str]:
    """The words of the command line that set a variable or an option: they have the last word."""
    return [word for word in program.words if name and word.lstrip("-").partition("=")[0].replace("-", "_") == name]


def _set_at(
    program: Program, path: str, source: Source, value: cst.BaseExpression, *, divisor: bool = False
) -> Count | None:
    """Return where a number is set; None where the command line has it."""
    code = source.code(value)
    if _words_of(program, code):
        return None
    if isinstance(value, cst.Name):
        return _counted(program, path, source, code, divisor=divisor)
    setting = program.set_by(value, path, source)
    if setting is None or not isinstance(setting.value, int) or isinstance(setting.value, bool):
        return None
    edit = setting.to(setting.value)
    return Count(setting.path, edit.start, edit.end, setting.value)
