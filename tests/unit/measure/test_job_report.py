"""Waits, bandwidth and what blocks: what lies between the ranks of a job, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn_jobs import CURVE, KERNELS, MIB, MS, measured

from diagnose import plugins
from diagnose.cli import main
from diagnose.measure import Measures
from diagnose.measure.job.bus_bandwidth import CALIBRATED
from diagnose.measure.job.job_replay import Blocking, blocking_communication
from diagnose.measure.job.job_report import between_ranks
from diagnose.measure.job.process_groups import Role, rank_groups
from diagnose.measure.job.ranks import job_of
from diagnose.model import CollectiveCurve, Facts
from diagnose.report.terminal.ranks import render, to_json
from diagnose.rule import Claim
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"


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
    together = measured(early, dict.fromkeys("gh", Collective("all_reduce", 25 * MIB, 2, "pg")))
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
