"""Kernels that take longer in every step than in the step before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.kernels.growing_work import growing_work
from diagnose.rule import Trace, drawn
from diagnose.trace.schema import CopyDirection

KERNELS = {"K": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>"}
GROWING = (3, 4, 5, 6, 7)


def steps(lengths: tuple[int, ...], others: int = 7, unit_ns: int = 1_000_000) -> Trace:
    """Steps of two kernels: one that is always as long, and one of the lengths given."""
    host, gpu, marks = "", "", "|"
    for length in lengths:
        host += "olol " + "s" * (others + length - 1)
        gpu += "    " + "k" * others + "K" * length
        marks += " " * (len(host) - len(marks)) + "|"
    return drawn(f"host: {host}\ngpu : {gpu}\nstep: {marks}", kernels=KERNELS, unit_ns=unit_ns)


def test_what_it_grew_by_since_the_first_step_is_told() -> None:
    found = growing_work(Measures(steps(GROWING)))
    assert found is not None
    assert (found.first_ns, found.last_ns) == (3_000_000, 7_000_000)
    assert found.left.tolist() == pytest.approx([3 / length for length in GROWING])
    assert found.longest == found.rows[-1]


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((3, 4, 5, 4, 7), id="once shorter"),
        pytest.param((3, 4, 5, 6), id="too few steps"),
        pytest.param((30, 31, 32, 33, 34), id="hardly longer, and most of the step"),
        pytest.param((7, 6, 5, 4, 3), id="shrinks"),
    ],
)
def test_other_lengths_are_no_growth(lengths: tuple[int, ...]) -> None:
    assert growing_work(Measures(steps(lengths))) is None


def test_microseconds_are_none() -> None:
    assert growing_work(Measures(steps(GROWING, unit_ns=10_000))) is None


def test_recorded_shapes_that_grow_do_not_hide_it() -> None:
    trace = steps(GROWING)
    shapes = np.arange(len(trace.ops), dtype=np.int32)
    sized = replace(trace, texts=tuple(f"[[{size}]]" for size in shapes), ops=replace(trace.ops, shapes=shapes))
    assert growing_work(Measures(sized)) is not None


def test_sequences_that_grow_are_no_growth_beside_an_optimizer_that_weighs_more() -> None:
    host, gpu, marks = "", "", "|"
    for length in (2, 3, 4, 5, 6):
        work = "".join(kind * length for kind in "abef") + "O" * 12
        host += "ololololol " + "s" * len(work)
        gpu += " " * 10 + work + " "
        marks += " " * (len(host) - len(marks)) + "|"
    kernels = {kind: f"{kind}_kernel" for kind in "abefO"}
    assert growing_work(Measures(drawn(f"host: {host}\ngpu : {gpu}\nstep: {marks}", kernels=kernels))) is None


@pytest.mark.parametrize(("sizes", "is_growth"), [((1, 2, 3, 4, 5), False), ((4, 4, 4, 4, 4), True), ((-1,) * 5, True)])
def test_batches_that_grow_are_told_by_what_is_copied(sizes: tuple[int, ...], *, is_growth: bool) -> None:
    host, gpu, marks = "", "", "|"
    for length in GROWING:
        host += "ocolol " + "s" * (8 + length)
        gpu += "      H" + "k" * 7 + "K" * length + " "
        marks += " " * (len(host) - len(marks)) + "|"
    trace = drawn(f"host: {host}\ngpu : {gpu}\nstep: {marks}", kernels=KERNELS)
    device = trace.device
    moved = device.size_bytes.copy()
    moved[device.direction == CopyDirection.HOST_TO_DEVICE] = sizes
    sized = replace(trace, device=replace(device, size_bytes=moved))
    assert (growing_work(Measures(sized)) is not None) == is_growth
