"""Buckets, sharded modules, groups, pipelines and bandwidth: what lies between the ranks of a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose import plugins
from diagnose.cli import main
from diagnose.measure import Measures
from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.fsdp_modules import ROOT, sharded_modules
from diagnose.measure.job.bus_bandwidth import CALIBRATED
from diagnose.measure.job.job_replay import Blocking, blocking_communication
from diagnose.measure.job.job_report import between_ranks
from diagnose.measure.job.process_groups import Role, pipeline_bubble, rank_groups
from diagnose.measure.job.ranks import job_of
from diagnose.model import CollectiveCurve, Facts
from diagnose.report.terminal.ranks import render, to_json
from diagnose.rule import Claim
from diagnose.trace import Collective, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Ranges

MS = 1_000_000
MIB = 1 << 20
SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
KERNELS = {"b": "gemm", "d": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
CURVE = CollectiveCurve("all_reduce", 2, 1, (1 * MIB, 16 * MIB, 256 * MIB), (30_000, 80_000, 900_000))


def measured(picture: str, comms: dict[str, Collective], **known: Any) -> Measures:
    return Measures(drawn(picture, repeat=4, kernels=KERNELS, comms=comms, **known))


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


def role(picture: str, kind: str, size: int = 96 * MIB) -> Role:
    (group,) = rank_groups(measured(picture, {"c": Collective(kind, size, 4, "some", members=(0, 1, 2, 3))}))
    return group.role


AFTER = "gpu   : kkbbbb   xx\ngpu 20:     cccc\nbwd   :   BBBB\nopt   :           O"
BEFORE = "gpu   : k  k  kbbbb xx\ngpu 20:  cc cc\nbwd   :        BBBB\nopt   :              O"


def test_what_reduces_gradients_is_data_parallel() -> None:
    assert role(AFTER, "all_reduce") is Role.DATA


def test_what_scatters_gradients_shards_them() -> None:
    assert role(AFTER, "reduce_scatter") is Role.SHARDED


def test_what_sums_activations_in_the_forward_pass_is_tensor_parallel() -> None:
    assert role(BEFORE, "all_reduce") is Role.TENSOR


def test_a_loss_alone_is_no_tensor_parallelism() -> None:
    once = "gpu   : kkkkk  bbbb xx\ngpu 20:      cc\nbwd   :        BBBB\nopt   :              O"
    assert role(once, "all_reduce", 4) is Role.CONTROL


def test_what_goes_all_to_all_is_an_exchange_and_what_is_sent_a_pipeline() -> None:
    assert role(BEFORE, "all_to_all") is Role.EXCHANGE
    assert role(BEFORE, "send_recv") is Role.PIPELINE


def test_point_to_point_kernels_without_arguments_may_be_anything() -> None:
    unnamed = drawn(
        BEFORE, repeat=4, kernels={"c": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", **KERNELS}
    )
    (group,) = rank_groups(Measures(unnamed))
    assert group.role in (Role.PIPELINE, Role.UNKNOWN)
    bare = replace(unnamed, collectives=(), device=replace(unnamed.device, collective=np.full(len(unnamed.device), -1)))
    (group,) = rank_groups(Measures(bare))
    assert group.role is Role.UNKNOWN
    assert pipeline_bubble(Measures(bare)) is None


def test_a_stage_idles_in_the_bubble_and_an_even_one_would_idle_less() -> None:
    picture = """
        gpu   :   kkbb  kkbb  xx
        gpu 20: ss    ss
        bwd   :     BB    BB
        opt   :                O
    """
    stage = measured(picture, {"s": Collective("send_recv", 8 * MIB, 2, "pp", members=(0, 1))})
    bubble = pipeline_bubble(stage)
    assert bubble is not None
    assert (bubble.stages, bubble.microbatches) == (2, 2)
    assert bubble.least_share == pytest.approx(1 / 3)
    assert bubble.idle_ns == pytest.approx(6 * MS, rel=0.05)  # of 16 ms; the first two are the other stage's


# Side by side

EARLY = "gpu   : kkbbbb     xx\ngpu 20:     gggggg\nbwd   :   BBBB\nopt   :             O"
LATE = "gpu   : kkbbbb     xx\ngpu 20:         gg\nbwd   :   BBBB\nopt   :             O"


def two_ranks(**known: Any) -> list[Measures]:
    comms = {"g": Collective("all_reduce", 16 * MIB, 2, "pg", members=(0, 1))}
    return [
        Measures(drawn(picture, repeat=4, kernels=KERNELS, comms=comms, rank=rank, world_size=2, **known))
        for rank, picture in enumerate((EARLY, LATE))
    ]


def test_who_waits_for_whom_is_a_time_a_step() -> None:
    between = between_ranks(two_ranks())
    assert between.waits == ((0, 2 * MS), (0, 0))  # the other 2 ms are hidden behind the backward pass
    assert between.shown == 1  # it waits least: its collective is all transfer
    assert between.ranks[0].exposed_wait_ns == 2 * MS
    said = render(between)
    assert "rank 0 waits 2.00 ms for rank 1 per step" in said


def test_no_time_is_waited_or_exposed_twice_where_several_collectives_run_at_once() -> None:
    early = "gpu   : kkbbbb     xx\ngpu 20:     gggggg\ngpu 21:      hhhhh\nbwd   :   BBBB\nopt   :             O"
    late = "gpu   : kkbbbb     xx\ngpu 20:         gg\ngpu 21:         hh\nbwd   :   BBBB\nopt   :             O"
    comms = {name: Collective("all_reduce", 16 * MIB, 2, group, members=(0, 1)) for name, group in ("gp", "hq")}
    one, other = (
        Measures(drawn(picture, repeat=4, kernels=KERNELS, comms=comms, rank=rank, world_size=2))
        for rank, picture in enumerate((early, late))
    )
    between = between_ranks([one, other])
    assert between.ranks[0].exposed_wait_ns == 2 * MS
    assert between.waits == ((0, 2 * MS), (0, 0))
    together = measured(early, dict.fromkeys("gh", BUCKETS["g"]))
    assert [group.exposed_ns for group in rank_groups(together)] == [4 * MS]
    assert sum(bucket.exposed_ns for bucket in together.gradient_buckets) == 4 * MS
    assert sum(bucket.tail_ns for bucket in together.gradient_buckets) == 4 * MS


def test_bandwidth_is_that_of_the_rank_that_came_last() -> None:
    (row,) = between_ranks(two_ranks(device_names=("NVIDIA H200",) * 2)).bandwidth
    assert (row.kind, row.ranks, row.size_bytes, row.transfer_ns) == ("all_reduce", 2, 16 * MIB, 2 * MS)
    assert row.bytes_per_s == pytest.approx(16 * MIB / 2e-3)
    assert (row.ceiling_bytes_per_s, row.ceiling_source) == (450e9, "data sheet, NVLink")


def test_a_calibrated_curve_goes_before_the_data_sheet() -> None:
    known = {"device_names": ("NVIDIA H200",) * 2, "facts": Facts(curves=(CURVE,))}
    between = between_ranks(two_ranks(**known))
    (row,) = between.bandwidth
    assert row.ceiling_source == CALIBRATED
    assert row.ceiling_bytes_per_s == pytest.approx(16 * MIB / 80e-6)
    assert row.share == pytest.approx(0.04)
    assert "4.0 % of what diagnose calibrate measured" in render(between)


def test_the_same_as_json() -> None:
    record = json.loads(to_json(between_ranks(two_ranks())))
    assert [row["rank"] for row in record["table"]] == [0, 1]
    assert record["waits"] == [[0, 2 * MS], [0, 0]]
    assert record["ranks"][0]["groups"][0]["role"] == "data parallel"


def test_devices_without_a_name_are_no_processor() -> None:
    between = between_ranks(two_ranks(device_names=()))
    assert between.ranks[0].device is None
    assert render(between).startswith("2 ranks of 2 · devices not named")


def test_one_rank_alone_is_shown_without_waits() -> None:
    between = between_ranks(two_ranks()[:1])
    assert between.waits == ()
    assert between.ranks[0].exposed_wait_ns is None
    said = render(between)
    assert said.startswith("1 rank of 2 · NVIDIA H200")
    assert "rank 1 of 2 is missing" in said


def test_the_command_prints_a_recorded_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(SAMPLES / "h200_straggler")]) == 0
    said = capsys.readouterr().out
    assert "rank 1 is late" in said
    assert "data parallel" in said
    assert "Buckets of gradients on rank 1" in said


def test_a_recording_without_steps_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    assert main(["ranks", str(tmp_path / "trace.json")]) == 2
    assert str(tmp_path) in capsys.readouterr().err


# What blocks, by a replay across ranks


def blocking(*pictures: str) -> Blocking:
    comms = {"g": Collective("all_reduce", 16 * MIB, 2, "pg", members=(0, 1))}
    ranks = [
        Measures(drawn(picture, repeat=4, kernels=KERNELS, comms=comms, rank=rank, world_size=2))
        for rank, picture in enumerate(pictures)
    ]
    found = blocking_communication(ranks, job_of(ranks))
    assert found is not None and found.trusted
    return found


def test_a_transfer_that_the_step_waits_for_blocks_it() -> None:
    """Two of six columns of the collective are hidden; the optimizer waits for the other four."""
    both = """
        host  : l.l.l.l.ssss
        gpu   : kkkbbb    xx
        gpu 20:     gggggg
        bwd   :   BB
        opt   :            O
    """
    found = blocking(both, both)
    assert found.exposed_ns == 4 * MS
    assert found.saved_ns == pytest.approx(4 * MS, rel=0.01)


def test_what_is_waited_for_a_late_rank_no_network_gives_back() -> None:
    """The first rank waits seven columns and the transfer takes two: only those would go."""
    early = """
        host  : l.l.l.l.sssssss
        gpu   : kkbb         xx
        gpu 20:     ggggggggg
        bwd   :   BB
        opt   :               O
    """
    late = """
        host  : l.l.l.l.sssssss
        gpu   : kkbbbbbbbbb  xx
        gpu 20:            gg
        bwd   :   BB
        opt   :               O
    """
    found = blocking(early, late)
    assert found.exposed_ns == (9 + 2) * MS / 2  # of the mean rank
    assert found.saved_ns == pytest.approx(2 * MS, rel=0.01)


def test_ranks_that_share_no_collective_cannot_be_replayed_together() -> None:
    alone = [Measures(drawn("gpu : kkk.\nopt :   O.", repeat=4, rank=rank, world_size=2)) for rank in range(2)]
    assert blocking_communication(alone, job_of(alone)) is None
    assert blocking_communication(alone[:1], job_of(alone[:1])) is None


@pytest.mark.parametrize("sample", ["h200_straggler"])
def test_of_the_stragglers_exposed_communication_nothing_is_the_networks(sample: str) -> None:
    """Rank 1 has 1.8 times the work: a faster link would change nothing."""
    ranks = [Measures(trace) for trace in open_traces([SAMPLES / sample])]
    found = blocking_communication(ranks, job_of(ranks))
    assert found is not None and found.trusted
    assert found.exposed_ns > 5 * MS
    assert found.saved_ns < 0.02 * found.exposed_ns


# Slower than calibrated


def slow_link(facts: Facts) -> list[str]:
    """What the rule says of 64 MiB among two H200 of one host in 12 ms: 5.6 GB/s."""
    picture = "gpu   : kkkbbb            x\ngpu 20:      gggggggggggg\nbwd   :    BBB\nopt   :                   O"
    comms = {"g": Collective("all_reduce", 64 * MIB, 2, "pg")}
    names = ("NVIDIA H200",) * 2
    trace = drawn(picture, repeat=4, kernels=KERNELS, comms=comms, device_names=names, facts=facts)
    claims = plugins.load_rules().rules["slow-link"].check(Measures(trace))
    return [one.summary for one in claims if isinstance(one, Claim)]


def test_a_setting_that_forbids_the_link_is_named() -> None:
    (said,) = slow_link(Facts(network_settings={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"}))
    assert said.endswith("this job does not use it; NCCL_P2P_DISABLE=1 in its environment forbids it")
    (said,) = slow_link(Facts())
    assert said.endswith("this job does not use it")


def test_a_slow_link_is_slow_though_it_was_calibrated_as_slow() -> None:
    """Calibrated under the same settings, sockets are as fast as sockets are; the link is still there, unused."""
    slow = CollectiveCurve("all_reduce", 2, 1, (1 * MIB, 64 * MIB), (200_000, 12_000_000))
    assert slow_link(Facts(curves=(slow,)))


# Recordings of others, read off by hand


def recorded(path: str) -> list[Measures]:
    if not (SHARED / path).exists():
        pytest.skip("this recording is not in the collection")
    return [Measures(trace) for trace in open_traces([SHARED / path])]


def test_megatrons_two_ranks_split_the_model() -> None:
    between = between_ranks(recorded("NVIDIA__Megatron-LM/tp2/result"))
    assert {group.role for one in between.ranks for group in one.groups} == {Role.TENSOR}
    assert all(one.bubble is None for one in between.ranks)


def test_four_amd_ranks_reduce_their_gradients_in_five_buckets() -> None:
    folder = "amd__HPCTrainingExamples/MLExamples/TraceLens/fused_traces/merged_all_events.json.gz"
    between = between_ranks(recorded(folder))
    assert {group.role for one in between.ranks for group in one.groups} == {Role.DATA}
    assert len(between.buckets) == 5
    assert sum(one.size_bytes for one in between.buckets) == pytest.approx(90.4 * MIB, rel=0.01)
    largest = max(between.bandwidth, key=lambda row: row.size_bytes)
    assert largest.bytes_per_s == pytest.approx(130e9, rel=0.02)  # 26 MiB among four in 315 µs
    assert largest.ceiling_bytes_per_s is None  # the recording does not name its devices


def test_eight_h100_shard_their_optimizer_and_wait_for_rank_1() -> None:
    folder = (
        "KellerJordan__modded-nanogpt/records/track_1_short/2025-12-11_NorMuonOptimsAndFixes/profiler-example-traces"
    )
    between = between_ranks(recorded(folder))
    assert {one.groups[0].role for one in between.ranks} == {Role.SHARDED}
    for rank, row in enumerate(between.waits):
        if rank != 1:
            assert max(range(8), key=row.__getitem__) == 1
    by_size = {(row.kind, row.size_bytes >> 20): row for row in between.bandwidth}
    assert by_size["reduce_scatter", 144].bytes_per_s == pytest.approx(290e9, rel=0.02)


def test_torchrecs_kernels_do_not_say_what_they_exchange() -> None:
    between = between_ranks(recorded("pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer"))
    assert {group.role for one in between.ranks for group in one.groups} == {Role.UNKNOWN}
    assert between.bandwidth == ()  # no sizes were recorded
    assert all(one.bubble is None for one in between.ranks)


def test_what_no_buckets_hide_is_said_beside_what_these_leave() -> None:
    alone = {"g": Collective("all_reduce", 10 * MIB, 2, "pg")}
    picture = "gpu   : kkbb   xx\ngpu 20:     ggg\nbwd   :   BB\nopt   :        O"
    between = between_ranks([measured(picture, alone)])
    assert between.least_exposed_ns is not None
    assert 0 < between.least_exposed_ns < sum(bucket.tail_ns for bucket in between.buckets)
    assert "whatever the buckets, at least" in render(between, 200)
    assert json.loads(to_json(between))["least_exposed_ns"] == between.least_exposed_ns
