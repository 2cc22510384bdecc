"""Which steps are longer than the others, and by how much they have to be."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.measure.steps.outlier_steps import StepTimes, exceptional_steps, stalls_of

MS = 1_000_000


def even(count: int, *, every: int, long_ms: float) -> np.ndarray:
    """Lengths of steps of 10 ms, of which every so many takes `long_ms`."""
    lengths = np.full(count, 10 * MS)
    lengths[every - 1 :: every] = round(long_ms * MS)
    return lengths


def logged(lengths: np.ndarray) -> StepTimes:
    ends = np.cumsum(lengths)
    return StepTimes(ends - lengths, ends, np.ones(len(lengths), np.bool_))


@pytest.mark.parametrize(("long_ms", "stands_out"), [(14.9, False), (15.1, True)])
def test_of_even_steps_one_stands_out_that_is_longer_by_half(long_ms: float, stands_out: bool) -> None:
    lengths = even(60, every=10, long_ms=long_ms)
    assert exceptional_steps(lengths).tolist() == (list(range(9, 60, 10)) if stands_out else [])
    stalls = stalls_of(logged(lengths), 0)
    assert (stalls is not None) is stands_out
    assert stalls is None or stalls.period == 10


def test_steps_of_two_kinds_have_no_exceptions() -> None:
    assert exceptional_steps(even(60, every=3, long_ms=30)).tolist() == list(range(2, 60, 3))
    assert exceptional_steps(even(60, every=2, long_ms=30)).tolist() == []


def test_of_two_steps_none_is_an_exception() -> None:
    assert exceptional_steps(np.array([10 * MS, 90 * MS])).tolist() == []
    assert exceptional_steps(np.array([10 * MS, 10 * MS, 90 * MS])).tolist() == [2]
