"""What no buckets can hide of the gradients' reduction, and the gradients that they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.comm.ddp import least_exposure
from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket
from diagnose.measure.comm.ddp.gradient_sizes import evenly, gradient_pieces
from diagnose.measure.comm.ddp.least_exposure import earliest_end_ns, least_exposed_ns
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Float64, Int64

MB = 1 << 20
LATENCY_NS, NS_PER_BYTE = 20_000.0, 0.01


def time_of(size_bytes: Int64) -> Float64:
    return np.asarray(LATENCY_NS + NS_PER_BYTE * size_bytes, np.float64)


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
    monkeypatch.setattr(least_exposure, "_time_of", lambda _: lambda size: size.astype(np.float64))
    measures = measured(SHAPES)
    assert least_exposed_ns(measures) == sum(bucket.tail_ns for bucket in measures.gradient_buckets) > 0


def test_sizes_beyond_the_measured_ones_take_as_long_as_the_largest_of_those_at_least() -> None:
    sizes, ready = np.array([4 * MB, 2 * MB, MB]), np.array([10, 20, 30])
    beyond = earliest_end_ns(sizes, ready, lambda size: np.where(size <= 3 * MB, size / MB * 1_000.0, np.inf))
    assert beyond == 20 + 3_000
    assert earliest_end_ns(sizes, ready, lambda size: np.full(len(size), np.inf)) == 30
