"""A kernel is compared with itself in steps that launched the same work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.measure import Measures
from diagnose.rule import Trace, drawn

# Steps of two kernels; in the third step the first one takes ten columns instead of four.
STEPS = """
    host: olol sssssssolol sssssssolol sssssssssssssolol sssssssolol sssssss
    gpu :   kkkkKKKKKK  kkkkKKKKKK  kkkkkkkkkkKKKKKK  kkkkKKKKKK  kkkkKKKKKK
    step:             |           |                 |           |           |
"""
KERNELS = {"K": "other_kernel"}


def beyond_ms(trace: Trace) -> list[int] | None:
    found = Measures(trace).stretched
    return None if found is None else [round(value / 1e6) for value in found.tolist() if value]


def test_what_a_kernel_takes_beyond_its_own_time_is_told() -> None:
    assert beyond_ms(drawn(STEPS, kernels=KERNELS)) == [6]


def test_a_difference_of_microseconds_is_none() -> None:
    assert beyond_ms(drawn(STEPS, kernels=KERNELS, unit_ns=10_000)) == []


def test_collectives_wait_for_others_and_are_not_compared() -> None:
    assert beyond_ms(drawn(STEPS, kernels={"k": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", **KERNELS})) == []


def test_the_same_kernel_on_other_shapes_is_another_one() -> None:
    trace = drawn(STEPS, kernels=KERNELS, shapes={"o": ("[[8, 8]]", '["float"]')})
    shapes = np.arange(len(trace.ops), dtype=np.int32)
    other = replace(trace, texts=tuple(f"[[{size}]]" for size in shapes), ops=replace(trace.ops, shapes=shapes))
    assert beyond_ms(other) is None


def test_two_steps_are_too_few_to_tell() -> None:
    *picture, marks = STEPS.rstrip().splitlines()
    only_two = marks[: [place for place, letter in enumerate(marks) if letter == "|"][2] + 1]
    first_two = "\n".join([*picture, only_two])
    assert beyond_ms(drawn(first_two, kernels=KERNELS)) is None


def test_a_kernel_that_grows_from_step_to_step_has_more_to_do() -> None:
    growing = """
        host: olol sssssssolol sssssssssolol sssssssssssolol sssssssssssssolol sssssssssssssss
        gpu :   kkkkKKKKKK  kkkkkkKKKKKK  kkkkkkkkKKKKKK  kkkkkkkkkkKKKKKK  kkkkkkkkkkkkKKKKKK
        step:             |             |               |                 |                  |
    """
    assert beyond_ms(drawn(growing, kernels=KERNELS)) == []


def test_a_step_with_longer_kernels_throughout_has_more_to_do() -> None:
    longer = """
        host: olol sssssssolol sssssssolol ssssssssssssssssssolol sssssssolol sssssss
        gpu :   kkkkKKKKKK  kkkkKKKKKK  kkkkkkkkKKKKKKKKKKKK    kkkkKKKKKK  kkkkKKKKKK
        step:             |           |                       |           |           |
    """
    assert beyond_ms(drawn(longer, kernels=KERNELS)) == []
