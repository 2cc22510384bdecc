"""Plans of buckets: by their own model never worse than any other cut, and read by the fixer as they were meant."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.comm.ddp import bucket_plan
from diagnose.measure.comm.ddp.bucket_evidence import as_evidence, planned
from diagnose.measure.comm.ddp.bucket_plan import BucketPlan, bucket_plans, earliest_end_ns, least_exposed_ns, plans
from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket
from diagnose.measure.comm.ddp.gradient_sizes import evenly, gradient_pieces, whole
from diagnose.model import Confidence, Finding, Severity
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Float64, Int64

MB = 1 << 20
LATENCY_NS, NS_PER_BYTE = 20_000.0, 0.01


def time_of(size_bytes: Int64) -> Float64:
    return np.asarray(LATENCY_NS + NS_PER_BYTE * size_bytes, np.float64)


def end_of(sizes: list[int], ready: list[int], cuts: tuple[int, ...]) -> float:
    """When the last bucket is reduced, bucket by bucket."""
    edges = [0, *cuts, len(sizes)]
    end = 0.0
    for first, last in pairwise(edges):
        end = max(end, max(ready[first:last])) + LATENCY_NS + NS_PER_BYTE * sum(sizes[first:last])
    return end


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 2_000)), min_size=1, max_size=7))
def test_no_cut_ends_earlier_than_the_plan(pieces: list[tuple[int, int]]) -> None:
    sizes = [size * MB for size, _ in pieces]
    ready = np.cumsum([after * 1_000 for _, after in pieces]).tolist()
    best = min(
        end_of(sizes, ready, cuts)
        for count in range(min(6, len(sizes)))
        for cuts in combinations(range(1, len(sizes)), count)
    )
    found = plans(np.array(sizes), np.array(ready), time_of)
    assert found[0].end_ns == pytest.approx(best, abs=1)
    assert all(sum(plan.size_bytes) == sum(sizes) for plan in found)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 2_000)), min_size=1, max_size=30))
def test_no_plan_ends_before_what_is_ready_last_can_be_reduced(pieces: list[tuple[int, int]]) -> None:
    sizes = np.array([size * MB for size, _ in pieces])
    ready = np.cumsum([after * 1_000 for _, after in pieces])
    least = earliest_end_ns(sizes, ready, time_of)
    assert all(plan.end_ns >= least - 1 for plan in plans(sizes, ready, time_of))
    assert least >= ready[-1] + time_of(sizes[-1:])[0] - 1


def test_what_nothing_hides_is_cut_small() -> None:
    # 40 pieces of 4 MB become ready evenly, at half the rate at which they can be sent; or at a third more than that.
    sizes = np.full(40, 4 * MB)
    hidden, busy = (plans(sizes, np.arange(1, 41) * each, time_of)[0].size_bytes for each in (84_000, 30_000))
    assert hidden[-1] == 4 * MB
    assert busy[0] < busy[-1]  # the link must not wait for its first bucket, and never rests after it


def test_where_all_is_ready_at_once_one_bucket_is_enough() -> None:
    found = plans(np.full(10, MB), np.full(10, 5_000_000), time_of)
    assert found[0] == BucketPlan((10 * MB,), 5_000_000 + round(LATENCY_NS + NS_PER_BYTE * 10 * MB), found[0].busy_ns)


def test_time_taken_from_compute_speaks_for_fewer_buckets() -> None:
    sizes, ready = np.full(40, 4 * MB), np.arange(1, 41) * 42_000
    free, dear = (plans(sizes, ready, time_of, slowdown)[0] for slowdown in (0.0, 5.0))
    assert len(dear.size_bytes) < len(free.size_bytes)


def test_without_gradients_there_is_no_plan() -> None:
    nothing = np.empty(0, np.int64)
    assert plans(nothing, nothing, time_of) == []


def bucket(size_bytes: int, ready_ns: int) -> GradientBucket:
    return GradientBucket("all_reduce", size_bytes, ready_ns, ready_ns, ready_ns, 0, 0, 0)


def test_pieces_add_up_and_become_ready_within_their_bucket() -> None:
    sizes, ready = evenly([bucket(MB, 1_000), bucket(25 * MB, 9_000), bucket(6 * MB, 8_000)])
    assert sizes.sum() == 32 * MB
    assert (np.diff(ready) >= 0).all()
    assert ready[-1] == 9_000
    assert ready[0] <= 1_000


TIED = """
    gpu   : kkkbbbvvbv       x
    gpu 20:         ggGGGGGGG
    op    :    a a   e
    bwd   :    BBBBBBB
    opt   :                  O
"""
"""Two gradients of 4 MiB in a bucket, and one of 32 that is ready last, as that of a tied embedding is."""
SHAPES: dict[str, tuple[str, ...]] = {"a": ("[[1024, 1024]]", '["float"]'), "e": ("[[8192, 1024]]", '["float"]')}


LATE = """
    gpu   : kkkbbbbbb        x
    gpu 20:          gggggggg
    bwd   :    BBBBBB
    opt   :                  O
"""


def measured(shapes: dict[str, tuple[str, ...]]) -> Measures:
    return Measures(
        drawn(
            TIED,
            repeat=4,
            kernels={"b": "gemm", "v": "norm_backward", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
            ops=dict.fromkeys("ae", "torch::autograd::AccumulateGrad"),
            shapes=shapes,
            comms={"g": Collective("all_reduce", 8 * MB, 2, "pg"), "G": Collective("all_reduce", 32 * MB, 2, "pg")},
        )
    )


def test_a_gradient_is_not_cut_where_autograd_names_it() -> None:
    measures = measured(SHAPES)
    sizes, ready = gradient_pieces(measures, measures.gradient_buckets, measures.gradient_rounds)
    assert (sizes // MB).tolist() == [4, 4, 32]
    assert ready.tolist() == [3_000_000, 5_000_000, 7_000_000]
    assert bucket_plans(measures)[0].size_bytes == (8 * MB, 32 * MB)


@pytest.mark.parametrize("shapes", [{}, {**SHAPES, "a": ("[[1000, 1024]]", '["float"]')}, {"a": SHAPES["a"]}])
def test_calls_that_do_not_add_up_to_the_buckets_say_nothing_of_them(shapes: dict[str, tuple[str, ...]]) -> None:
    measures = measured(shapes)
    buckets = measures.gradient_buckets
    assert [column.tolist() for column in gradient_pieces(measures, buckets, measures.gradient_rounds)] == [
        column.tolist() for column in evenly(buckets)
    ]


def test_of_what_is_ready_last_no_buckets_hide_anything() -> None:
    # 32 MiB take 7 ms from the end of the backward pass on, whatever was sent before. Known only by the bucket it is
    # in, some of it might have been sent before, and the bound is lower.
    assert least_exposed_ns(measured(SHAPES)) == 7_000_000
    unknown = least_exposed_ns(measured({}))
    assert unknown is not None and 0 < unknown < 6_000_000


def test_without_a_time_over_size_the_bound_is_that_of_the_best_rate() -> None:
    even = {"g": Collective("all_reduce", 32 * MB, 2, "pg")}
    alone = Measures(drawn(LATE, repeat=4, kernels={"b": "gemm", "x": "optimizer"}, comms=even))
    assert bucket_plans(alone) == ()
    least = least_exposed_ns(alone)
    # Evenly over a backward pass of 6 ms, and 8 to send: what is sent at once leaves 2, and the first piece.
    assert least is not None and 2_000_000 < least < 2_500_000


def test_of_gradients_that_are_all_sent_after_the_backward_pass_nobody_knows_when_they_were_ready() -> None:
    two = LATE.replace("gggggggg", "ggggGGGG")
    half = Collective("all_reduce", 16 * MB, 2, "pg")
    late = Measures(drawn(two, repeat=4, kernels={"b": "gemm", "x": "optimizer"}, comms={"g": half, "G": half}))
    assert len(late.gradient_buckets) == 2
    assert least_exposed_ns(late) is None


def test_the_bound_is_never_more_than_what_the_recorded_buckets_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_plan, "_time_of", lambda _: lambda size: size.astype(np.float64))
    measures = measured(SHAPES)
    assert least_exposed_ns(measures) == sum(bucket.tail_ns for bucket in measures.gradient_buckets) > 0


def test_sizes_beyond_the_measured_ones_take_as_long_as_the_largest_of_those_at_least() -> None:
    sizes, ready = np.array([4 * MB, 2 * MB, MB]), np.array([10, 20, 30])
    beyond = earliest_end_ns(sizes, ready, lambda size: np.where(size <= 3 * MB, size / MB * 1_000.0, np.inf))
    assert beyond == 20 + 3_000
    assert earliest_end_ns(sizes, ready, lambda size: np.full(len(size), np.inf)) == 30


def test_small_gradients_are_put_together_and_large_ones_stay_alone() -> None:
    sizes, ready = whole(np.array([1, 1, 1000, 1, 2, 1000, 1]) * 1_000, np.arange(7))
    assert (sizes // 1_000).tolist() == [2, 1000, 3, 1000, 1]
    assert ready.tolist() == [1, 2, 4, 5, 6]


def test_a_size_lets_no_further_gradient_into_its_bucket() -> None:
    """1.999 MiB, rounded to 2.00, would take the next gradient in as well; of the last, nothing may be left."""
    evidence = tuple(as_evidence([round(1.999 * MB), round(0.251 * MB)]))
    finding = Finding("small-buckets", Severity.HIGH, 0, 1, 0.1, Confidence.BOUND, "as found", evidence)
    assert planned(finding) == (1.99, 0.26)


def test_a_finding_carries_a_plan_in_the_order_of_sending() -> None:
    evidence = tuple(reversed(as_evidence([3 * MB, 40 * MB, MB // 2])))
    finding = Finding("small-buckets", Severity.HIGH, 0, 1, 0.1, Confidence.BOUND, "as found", evidence)
    assert planned(finding) == (3.0, 40.0, 0.5)
    assert planned(Finding("small-buckets", Severity.HIGH, 0, 1, 0.1, Confidence.BOUND, "as found")) == ()
