"""Curves of collectives, gradient buckets, and the modules that FSDP shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_jobs import CURVE, KERNELS, MIB, MS, measured

from diagnose.measure import Measures
from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.fsdp_modules import ROOT, sharded_modules
from diagnose.trace import Collective, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Ranges

# Curves


def test_a_curve_is_read_between_its_sizes_and_goes_on_at_its_bandwidth() -> None:
    sizes = np.array([MIB // 2, MIB, 4 * MIB, 16 * MIB, 512 * MIB, 4096 * MIB, -1])
    below, first, between, second, beyond, too_far, unknown = calibrated_ns(CURVE, sizes).tolist()
    assert (below, first, second) == pytest.approx((30_000, 30_000, 80_000))
    assert between == pytest.approx((30_000 * 80_000) ** 0.5)  # half-way on both logarithmic scales
    assert beyond == pytest.approx(1_800_000)
    assert np.isnan(too_far) and np.isnan(unknown)


def test_a_curve_is_of_one_kind_in_one_number_of_ranks_and_hosts() -> None:
    assert curve_of([CURVE], "all_reduce", 2) is CURVE
    assert curve_of([CURVE], "all_gather", 2) is None
    assert curve_of([CURVE], "all_reduce", 4) is None
    assert curve_of([CURVE], "all_reduce", 2, nodes=2) is None


# Buckets of gradients

TWO_BUCKETS = """
    gpu   : kkbbdd     xx
    gpu 20:     ggg
    gpu 21:        hhh
    bwd   :   BBBB
    opt   :             O
"""
BUCKETS = {"g": Collective("all_reduce", 25 * MIB, 2, "pg"), "h": Collective("all_reduce", 10 * MIB, 2, "pg")}


def test_a_bucket_is_ready_when_the_work_before_it_has_ended_and_exposed_where_nothing_is_computed() -> None:
    first, last = measured(TWO_BUCKETS, BUCKETS).gradient_buckets
    assert (first.size_bytes, last.size_bytes) == (25 * MIB, 10 * MIB)
    # The backward pass computes from 2 to 6 ms of the step; the first bucket is sent at 4, the second at 7.
    assert (first.ready_ns, first.start_ns, first.end_ns) == (2 * MS, 2 * MS, 5 * MS)
    assert (first.exposed_ns, first.tail_ns) == (1 * MS, 1 * MS)
    assert (last.start_ns, last.end_ns, last.exposed_ns, last.tail_ns) == (5 * MS, 8 * MS, 3 * MS, 3 * MS)


def test_a_bucket_that_was_ready_and_not_sent_has_queued() -> None:
    """The second is issued at 8 ms, and goes when the first is through, at 9."""
    first, last = measured(
        """
            host  : l l l l l l    s
            gpu   : kkbbbbdd     xx
            gpu 20:       ggghhh
            bwd   :   BBBBBBB
            opt   :               OO
            """,
        BUCKETS,
    ).gradient_buckets
    assert first.start_ns == first.ready_ns
    assert last.start_ns == last.ready_ns + 1 * MS


def test_a_job_without_gradients_has_no_buckets() -> None:
    assert measured("gpu : kkkk\nopt :    O", {}).gradient_buckets == ()


def test_only_the_last_round_of_a_step_counts() -> None:
    found = measured(
        """
            gpu   : kbbb kbbb  xx
            gpu 20:    gg   hh
            bwd   :  BBB  BBB
            opt   :             O
            """,
        BUCKETS,
    ).gradient_buckets
    assert [one.size_bytes for one in found] == [10 * MIB]


# Modules that FSDP shards


def with_ranges(trace: Trace, named: list[tuple[str, int, int]]) -> Trace:
    """Ranges by name, begin and end in ms, in each of four steps of 20 ms."""
    names = [*trace.names, *dict.fromkeys(name for name, _, _ in named)]
    rows = [(name, begin + 20 * step, end + 20 * step) for step in range(4) for name, begin, end in named]
    added = Ranges.build(
        {
            "start_ns": [begin * MS for _, begin, _ in rows],
            "end_ns": [end * MS for _, _, end in rows],
            "kind": [0] * len(rows),
            "name": [names.index(name) for name, _, _ in rows],
            "thread": [0] * len(rows),
        }
    )
    return replace(trace, names=tuple(names), ranges=Ranges.concatenate([trace.ranges, added]).sorted_by_start())


def sharded() -> Measures:
    """One module gathered before its use and again in the backward pass: late the first time, early the second."""
    trace = drawn(
        """
        gpu   :    tkkkkkkkktbbbb  x
        gpu 20: aaa   aaa       rr
        bwd   :            BBBB
        opt   :                   O.
        """,
        repeat=4,
        kernels={"t": "copy_out", **KERNELS},
        comms={
            "a": Collective("all_gather", 96 * MIB, 2, "fsdp", members=(0, 1)),
            "r": Collective("reduce_scatter", 192 * MIB, 2, "fsdp", members=(0, 1)),
        },
    )
    ranges = [
        ("FSDP::all_gather (layers.0)", 0, 1),
        ("FSDP::all_gather_copy_out (layers.0)", 3, 4),
        ("FSDP::all_gather (layers.0)", 6, 7),
        ("FSDP::all_gather_copy_out (layers.0)", 12, 13),
        ("FSDP::post_backward_reduce (layers.0)", 16, 17),
    ]
    return Measures(with_ranges(trace, ranges))


def test_a_gather_is_late_where_nothing_hides_it_and_early_until_it_is_unpacked() -> None:
    (module,) = sharded_modules(sharded())
    assert (module.name, module.gather_bytes, module.gathers) == ("layers.0", 96 * MIB, 2)
    assert module.late_ns == 3 * MS  # the first: nothing is computed beside it
    assert module.early_ns == 3 * MS  # the second ends at 9 ms and is unpacked at 12
    assert module.reduce_ns == 2 * MS
    assert module.reduce_exposed_ns == 1 * MS


def test_what_belongs_to_no_module_is_the_roots() -> None:
    trace = drawn(
        "gpu   :   kkbb xx\ngpu 20: aa\nbwd   :     BB\nopt   :         O...........",
        repeat=4,
        kernels=KERNELS,
        comms={"a": Collective("all_gather", 96 * MIB, 2, "fsdp")},
    )
    assert [one.name for one in sharded_modules(Measures(with_ranges(trace, [("FSDP::all_gather", 0, 1)])))] == [ROOT]


def test_a_program_without_fsdp_has_no_sharded_modules() -> None:
    assert sharded_modules(measured(TWO_BUCKETS, BUCKETS)) == ()


# What groups are for
