"""Interval algebra against sets of integers, which nobody can get wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace.intervals import Intervals

Pairs = Sequence[tuple[int, int]]

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)
windows = st.tuples(st.integers(-5, 45), st.integers(0, 50)).map(lambda window: (window[0], window[0] + window[1]))


def of(given_pairs: Pairs) -> Intervals:
    return Intervals.of([start for start, _ in given_pairs], [end for _, end in given_pairs])


def moments(given_pairs: Pairs) -> set[int]:
    return {moment for start, end in given_pairs for moment in range(start, end)}


def test_overlap_disorder_and_touching_become_one_stretch() -> None:
    assert list(of([(5, 9), (0, 3), (2, 5), (20, 30)])) == [(0, 9), (20, 30)]


def test_what_has_no_length_is_no_time() -> None:
    assert of([(3, 3), (9, 4)]) == Intervals.empty()
    assert Intervals.empty().total_ns == 0


def test_a_long_interval_swallows_later_short_ones() -> None:
    assert list(of([(0, 100), (1, 2), (50, 60), (100, 101)])) == [(0, 101)]


def test_gaps_and_what_is_within_a_window_share_it() -> None:
    busy = of([(2, 4), (6, 12)])
    assert list(busy.gaps(0, 10)) == [(0, 2), (4, 6)]
    assert list(busy.within(0, 10)) == [(2, 4), (6, 10)]


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    now = 1_790_000_000_123_456_789
    assert (of([(now, now + 3)]) - of([(now + 1, now + 2)])).total_ns == 2


@given(pairs, pairs)
def test_union_intersection_and_difference_are_those_of_sets(left: Pairs, right: Pairs) -> None:
    a, b = of(left), of(right)
    for result, expected in (
        (a | b, moments(left) | moments(right)),
        (a & b, moments(left) & moments(right)),
        (a - b, moments(left) - moments(right)),
    ):
        assert moments(list(result)) == expected
        assert result == of(list(result))  # already sorted, disjoint, not touching


@given(pairs, st.lists(windows, max_size=6))
def test_covered_counts_the_moments_of_each_window(given_pairs: Pairs, asked: Pairs) -> None:
    covered = of(given_pairs).covered([start for start, _ in asked], [end for _, end in asked])
    assert covered.tolist() == [len(moments(given_pairs) & set(range(*window))) for window in asked]


@given(pairs, windows)
def test_gaps_are_the_rest_of_a_window(given_pairs: Pairs, window: tuple[int, int]) -> None:
    assert moments(list(of(given_pairs).gaps(*window))) == set(range(*window)) - moments(given_pairs)


@given(pairs, st.lists(st.integers(-5, 45)))
def test_contains_says_which_moments_lie_inside(given_pairs: Pairs, times: list[int]) -> None:
    inside = of(given_pairs).contains(np.array(times, np.int64))
    assert inside.tolist() == [time in moments(given_pairs) for time in times]
