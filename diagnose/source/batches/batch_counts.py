"""Finds what else a program derives from the size of its micro-batches, and from how many of them an epoch has.

A schedule of learning rates over `len(loader)` steps, a printed batch size, a name of a folder: each would be another
with fewer and larger micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import libcst as cst

from diagnose.source.batches.accumulation import only_multiplied
from diagnose.source.dataflow.bindings import parameter_of
from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.iteration import OF_ALL_VALUES
from diagnose.source.settings.shown_options import shows_number, shows_options
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source


def derived_from_size(sources: Mapping[str, str], number: cst.BaseExpression, *, divisor: bool = False) -> str | None:
    """Return what would be another with micro-batches of another size or, as a `divisor`, with another number of them.

    None where nothing is seen.
    """
    last = number.attr if isinstance(number, cst.Attribute) else number
    if not isinstance(last, cst.Name):
        return None
    name = last.value
    if isinstance(number, cst.Attribute) and shows_options(sources, number):
        return f"the program shows all options, `{name}` among them"
    shown = shows_number(sources, name)
    if shown is not None:
        return f"{shown} shows `{name}`"
    divides = (path for path, source in parse_all(sources).items() if not only_multiplied(source, name, divisor))
    return next((f"{path} divides by `{name}`" for path in divides), None)


def derived_from_length(sources: Mapping[str, str], step: TrainingStep, loaders: Set[str]) -> str | None:
    """The line that counts the batches of an epoch otherwise than the loop itself does; None where none is seen.

    `loaders`: the last parts of the names of the loader. To divide a sum over the batches of an epoch by how many there
    are is to take their mean, and the loop may ask which is the last one.
    """
    for path, source in parse_all(sources).items():
        for call in source.calls_named("len"):
            held = call.args[0].value if len(call.args) == 1 else None
            last = held.attr if isinstance(held, cst.Attribute) else held
            if not isinstance(last, cst.Name) or last.value not in loaders or _is_given_elsewhere(source, last, step):
                continue
            if not _is_mean(source, call) and not _is_of_the_loop(source, call, step):
                return f"{path}:{source.lines_of(call)[0]} counts the batches of an epoch"
    return None


def _is_given_elsewhere(source: Source, name: cst.Name, step: TrainingStep) -> bool:
    """Whether a name is a parameter of another function than that of the step, which may get another loader."""
    function = source.inside(name, cst.FunctionDef)
    return function is not None and function is not step.scope and parameter_of(function, name.value) is not None


def _is_mean(source: Source, call: cst.Call) -> bool:
    around = source.parent(call)
    if not isinstance(around, cst.BinaryOperation) or not isinstance(around.operator, cst.Divide):
        return False
    total = around.left
    if around.right is not call or not isinstance(total, cst.Name | cst.Attribute):
        return False
    return any(source.code(each.target) == source.code(total) for each in source.every(cst.AugAssign))


def _is_of_the_loop(source: Source, call: cst.Call, step: TrainingStep) -> bool:
    """Whether the loop over the batches asks it for a progress bar, or in a test."""
    loop, test = step.loop, source.inside(call, cst.If)
    if source is not step.source or loop is None:
        return False
    asked = test is not None and within(source, call, test.test) and within(source, test, loop)
    return asked or (isinstance(loop, cst.For) and within(source, call, loop.iter))


def takes_in_part(step: TrainingStep) -> str | None:
    """Why the samples of a step may not be all of one loader, each once; None where they are.

    `zip` of two loaders ends with the shorter one, `islice` after a number of batches.
    """
    source, loop = step.source, step.loop
    taken = {source.code(call) for call in source.every(cst.Call, step.turn) if call_name(call) == "next"}
    if isinstance(loop, cst.For) and not _is_counted(loop):
        calls = (call_name(call) for call in source.every(cst.Call, loop.iter) if call.args)
        partly = next((name for name in calls if name not in {*OF_ALL_VALUES, "len"}), None)
        if partly is not None:
            return f"its loop may not go through the whole loader (`{partly}`)"
        taken.add("")
    return "a step takes samples of several loaders" if len(taken) > 1 else None


def _is_counted(loop: cst.For) -> bool:
    return isinstance(loop.iter, cst.Call) and call_name(loop.iter) == "range"
