"""Which range lies in which: as a plain stack finds it, for any ranges, crossing and empty ones included."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.measure.views.nesting import Nesting, nested

Range = tuple[int, int, int]


def tree(*ranges: Range) -> Nesting:
    start, end, thread = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    return nested(start, end, thread)


def reference(ranges: list[Range]) -> tuple[list[int], list[int]]:
    """Parents and cut ends, by walking every thread with a stack."""
    parents, ends = [-1] * len(ranges), [end for _, end, _ in ranges]
    for thread in {thread for _, _, thread in ranges}:
        rows = [row for row, one in enumerate(ranges) if one[2] == thread]
        rows.sort(key=lambda row: (ranges[row][0], -ranges[row][1], row))
        stack: list[int] = []
        for row in rows:
            while stack and ends[stack[-1]] <= ranges[row][0]:
                stack.pop()
            if stack:
                parents[row], ends[row] = stack[-1], min(ends[row], ends[stack[-1]])
            stack.append(row)
    return parents, ends


def test_parents_depths_and_self_times() -> None:
    found = tree((0, 10, 1), (1, 4, 1), (2, 3, 1), (5, 9, 1), (5, 9, 2))
    assert found.parent.tolist() == [-1, 0, 1, 0, -1]
    assert found.depth.tolist() == [0, 1, 2, 1, 0]
    assert found.self_ns.tolist() == [3, 2, 1, 4, 4]
    assert found.rolled_up(np.array([1, 10, 100, 1000, 10000])).tolist() == [1111, 110, 100, 1000, 10000]


def test_a_range_that_outlives_its_parent_is_cut() -> None:
    found = tree((0, 10, 1), (4, 15, 1), (12, 14, 1), (20, 21, 1), (0, 5, 2), (1, 2, 2))
    assert found.parent.tolist() == [-1, 0, -1, -1, -1, 4]
    assert found.end_ns.tolist() == [10, 10, 14, 21, 5, 2]
    assert found.self_ns.sum() == 10 + 2 + 1 + 5


def test_empty_ranges_contain_nothing_and_lie_in_what_starts_with_them() -> None:
    found = tree((5, 5, 1), (5, 9, 1), (5, 5, 1), (9, 9, 1), (9, 12, 1))
    assert found.parent.tolist() == [1, -1, 1, 4, -1]


def test_the_innermost_range_of_a_moment() -> None:
    found = tree((0, 10, 3), (2, 4, 3), (6, 8, 3), (0, 3, 9))
    assert found.innermost(np.array([3] * 6), np.array([0, 2, 4, 7, 9, 10])).tolist() == [0, 1, 0, 2, 0, -1]
    assert found.innermost(np.array([9, 9, 4, -1]), np.array([2, 3, 2, 2])).tolist() == [3, -1, -1, -1]
    assert found.innermost(np.array([3, 9]), np.array([-5, -5])).tolist() == [-1, -1]


def test_nothing_nests_in_nothing() -> None:
    none = np.empty(0, np.int64)
    found = nested(none, none, none)
    assert (len(found.self_ns), len(found.rolled_up(none))) == (0, 0)
    assert found.innermost(np.array([1]), np.array([5])).tolist() == [-1]


ranges = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(0, 2)).map(lambda r: (r[0], r[0] + r[1], r[2])),
    min_size=1,
    max_size=25,
)


@settings(max_examples=400)
@given(ranges)
def test_any_ranges_nest_as_a_stack_finds_them(some: list[Range]) -> None:
    found = tree(*some)
    parents, ends = reference(some)
    assert found.parent.tolist() == parents
    assert found.end_ns.tolist() == ends
    assert found.start_ns.tolist() == [start for start, _, _ in some]
    depths = found.depth
    assert all(depths[row] == (0 if parent < 0 else depths[parent] + 1) for row, parent in enumerate(parents))
    assert int(found.self_ns.sum()) == sum(
        end - one[0] for one, end, parent in zip(some, ends, parents, strict=True) if parent < 0
    )


@settings(max_examples=200)
@given(ranges, st.integers(-1, 22), st.integers(0, 3))
def test_the_innermost_is_the_deepest_that_is_running(some: list[Range], time: int, thread: int) -> None:
    found = tree(*some)
    running = [row for row, (start, _, on) in enumerate(some) if on == thread and start <= time < found.end_ns[row]]
    expected = max(running, key=lambda row: found.depth[row], default=-1)
    assert found.innermost(np.array([thread]), np.array([time])).tolist() == [expected]
