"""The families of programs, one a module."""

from __future__ import annotations

from functools import cache

from adversarial.families import (
    checkpoints,
    datasets,
    deferred_reads,
    distributed,
    everyday,
    images,
    indirection,
    model_math,
    processes,
    recipes,
    training_loops,
)
from adversarial.program import Program, unique

FAMILIES = (
    *(deferred_reads, datasets, checkpoints, model_math, training_loops),
    *(distributed, everyday, processes, images, recipes, indirection),
)


@cache
def suite() -> tuple[Program, ...]:
    """All programs of the suite."""
    return tuple(unique(program for family in FAMILIES for program in family.programs()))
