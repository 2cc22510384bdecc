"""The title of a run: its program, its device, its ranks and the length of its steps."""

from __future__ import annotations

from diagnose.model import Diagnosis
from diagnose.report.style.vocabulary import FOUND_BY, named_count
from diagnose.session import State
from diagnose.units import format_ns

_UNEVEN = 0.10  # steps whose mean is further from their median: what is said of the mean step would not fit the median
_SAME = 0.01
"""A step whose length differs by less from the mean of the traced ones is that mean. Without the profiler it is
shorter, and where steps outside the recording are longer, so is it; chosen, not measured."""
CPU_ONLY = "CPU only"


def identity(state: State) -> list[str]:
    """Return the parts of a run's title: program, device, ranks, step time, number of steps, how they were found."""
    parts = []
    if state.started is not None:
        parts.append(state.started.program.removeprefix("-- "))
    diagnosis = state.diagnosis
    if diagnosis is None:
        return parts
    if not parts:
        parts.append(sources(diagnosis))
    if diagnosis.ranks or diagnosis.has_device:
        parts += [device(state), named_count(diagnosis.ranks, "rank")]
    steps = diagnosis.steps
    median_of = f"median of {named_count(steps.count, 'step')}"
    if steps.median_ns is not None and is_of_median(diagnosis):
        parts += [f"{format_ns(steps.median_ns)} per step", median_of]
        if steps.mean_ns and abs(steps.mean_ns / steps.median_ns - 1) > _UNEVEN:
            parts.append(f"{format_ns(steps.mean_ns)} on average")
    elif steps.median_ns is not None and diagnosis.step_ns is not None:
        step, median = format_ns(diagnosis.step_ns), format_ns(steps.median_ns)
        as_traced = steps.mean_ns and abs(diagnosis.step_ns / steps.mean_ns - 1) < _SAME
        parts += [f"{step} per traced step on average" if as_traced else f"{step} per step"]
        parts += [f"{median} {median_of}" if as_traced else f"{median} as traced, {median_of}"]
    if steps.found_by in FOUND_BY:
        parts.append(FOUND_BY[steps.found_by])
    return [part for part in parts if part]


def is_one_piece(diagnosis: Diagnosis) -> bool:
    """Whether nothing repeats in a recording, so that all of it counts as one step."""
    return diagnosis.steps.found_by == "whole trace"


def is_of_median(diagnosis: Diagnosis) -> bool:
    """Whether the step that shares are of reads like the median step as traced, so that one figure names both."""
    median_ns, step_ns = diagnosis.steps.median_ns, diagnosis.step_ns
    return step_ns is None or median_ns is None or format_ns(step_ns) == format_ns(median_ns)


def accounting_title(diagnosis: Diagnosis) -> str:
    """Return the title of an accounting: the step it is of, where that is not the one that shares refer to."""
    if is_one_piece(diagnosis):
        return f"Where the recording's {format_ns(diagnosis.accounting.total_ns)} go"
    traced = "" if is_of_median(diagnosis) else "traced "
    return f"Where a {traced}step's {format_ns(diagnosis.accounting.total_ns)} go"


def of_rank(state: State) -> str:
    """Return ` of rank 3`: the rank whose steps the timeline and the tables show; empty for a job of one rank."""
    rank = state.profile.rank if state.profile is not None else None
    several = state.diagnosis is not None and state.diagnosis.ranks > 1
    return f" of rank {rank}" if several and rank is not None else ""


def sources(diagnosis: Diagnosis) -> str:
    """The recordings, the first by name and how many more; one may hold several ranks."""
    if not diagnosis.source:
        return ""
    first, *others = dict.fromkeys(diagnosis.source)
    return f"{first} and {len(others)} more" if others else first


def device(state: State) -> str:
    """The device's name; without one, whether it worked unnamed, was seen not to be there, or was just not recorded."""
    diagnosis = state.diagnosis
    named = [diagnosis.device if diagnosis else None, *(facts.device_name for facts in state.facts.values())]
    if diagnosis and diagnosis.has_device:
        return next(filter(None, named), "a device of unknown name")
    if holds_only_memory(diagnosis):
        return next(filter(None, named), "memory snapshot")
    return next(filter(None, named), CPU_ONLY if state.facts else "no device recorded")


def holds_only_memory(diagnosis: Diagnosis | None) -> bool:
    """Whether a recording says what holds the memory and nothing else, as a snapshot of the allocator does."""
    return diagnosis is not None and diagnosis.memory is not None and not (diagnosis.steps.count or diagnosis.findings)
