"""Collectives matched across ranks without trusting clocks, and who is late: nobody, where the job is balanced."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.job.matching import CollectiveSequence, Matched, match_sequences, sequences_of
from diagnose.measure.job.rank_record import record_of
from diagnose.measure.job.ranks import Job, job_of, job_of_records
from diagnose.trace import Collective, Thread, Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import DeviceWork, Int64, RangeKind, Ranges

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"
STEP, TRANSFER = 10_000_000, 300_000
REDUCE, BROADCAST = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "ncclDevKernel_Broadcast_RING_LL()"


def rank_of(
    number: int,
    arrivals: Int64,
    ends: Int64,
    *,
    clock: int = 0,
    world: int | None = None,
    group: str | None = None,
    names: Sequence[str] = (),
) -> Trace:
    """A rank that computes until it arrives at collective i, which ends for it at `ends[i]`; one collective a step."""
    starts, finish = arrivals + clock, ends + clock
    count = len(starts)
    before = np.concatenate(([starts[0] - STEP // 2], finish[:-1]))
    kinds = [*names, *[REDUCE] * (count - len(names))]
    table = ("gemm", REDUCE, BROADCAST)
    marks = np.concatenate((before[:1], finish))
    return Trace(
        source=f"rank{number}",
        names=(*table, "ProfilerStep#1"),
        threads=(Thread(1, 1),),
        collectives=(Collective("all_reduce", group=group),),
        rank=number,
        world_size=world,
        window_ns=(int(before[0]), int(finish[-1])),
        device=DeviceWork.build(
            {
                "start_ns": np.concatenate((before, starts)),
                "end_ns": np.concatenate((starts, finish)),
                "name": [0] * count + [table.index(kind) for kind in kinds],
                "stream": [7] * count + [20] * count,
                "device": [number] * (2 * count),
                "collective": [-1] * count + [0 if group else -1] * count,
            }
        ).sorted_by_start(),
        ranges=Ranges.build(
            {
                "start_ns": marks[:-1],
                "end_ns": marks[1:],
                "kind": [RangeKind.STEP] * (len(marks) - 1),
                "name": [3] * (len(marks) - 1),
                "thread": [0] * (len(marks) - 1),
            }
        ),
    )


def job(lateness: Sequence[Sequence[int]], clocks: Sequence[int] = ()) -> list[Trace]:
    """Ranks of a job; `lateness[rank][step]` is how much later than planned the rank arrives."""
    late = np.asarray(lateness)
    planned = STEP + np.cumsum(np.full(late.shape[1], STEP) + late.max(axis=0)) - late.max(axis=0)
    ends = planned + late.max(axis=0) + TRANSFER
    return [
        rank_of(number, planned + late[number], ends, clock=clocks[number] if clocks else 0, world=len(late))
        for number in range(len(late))
    ]


def matched_of(traces: Sequence[Trace]) -> tuple[Matched, ...]:
    return match_sequences([sequences_of(trace) for trace in traces])


def judged(traces: Sequence[Trace]) -> Job:
    """Of what travelled from where the traces were read."""
    measured = [Measures(trace) for trace in traces]
    job = job_of_records([pickle.loads(pickle.dumps(record_of(one))) for one in measured])
    here = job_of(measured)
    assert (job.table, job.lateness, job.roll) == (here.table, here.lateness, here.roll)
    return job


def test_a_wait_is_the_duration_minus_the_shortest_one() -> None:
    (matched,) = matched_of(job([[0, 0, 0], [2_000_000, 0, 500_000]]))
    assert matched.wait_ns.tolist() == [[2_000_000, 0], [0, 0], [500_000, 0]]
    assert matched.last.tolist()[::2] == [1, 1]


def test_clocks_change_no_wait_and_are_found_out() -> None:
    late = [[0, 100_000, 0, 50_000], [2_000_000, 0, 70_000, 0]]
    (together,) = matched_of(job(late))
    (apart,) = matched_of(job(late, clocks=[0, 123_456_789_000]))
    assert apart.wait_ns.tolist() == together.wait_ns.tolist()
    assert apart.offset_ns == (0, 123_456_789_000)
    assert apart.spread_ns == (0, 0)


def test_ranks_that_began_recording_at_different_collectives_are_shifted() -> None:
    irregular = [[0, 300_000, 0, 900_000, 0, 100_000], [1_000_000, 0, 0, 0, 400_000, 0]]
    one, other = job(irregular)
    rows = other.device.start_ns >= one.device.start_ns[4]  # without its first two steps
    (matched,) = matched_of([one, replace(other, device=other.device.where(rows))])
    assert matched.rows[:, 1].tolist()[:2] == [-1, -1]
    assert (matched.rows[2:] >= 0).all()
    assert matched.wait_ns[:2].tolist() == [[-1, -1], [-1, -1]]
    assert matched.wait_ns[2:].tolist() == [[0, 0], [0, 900_000], [400_000, 0], [0, 100_000]]


def test_kernels_without_arguments_belong_to_the_group_of_their_stream() -> None:
    named = []
    for trace in job([[0, 5_000, 0], [0, 0, 9_000]]):
        collective = np.where(trace.device.stream == 20, 0, -1).astype(np.int32)
        collective[(collective == 0).nonzero()[0][0]] = -1
        named.append(replace(trace, device=replace(trace.device, collective=collective)))
    in_group = (Collective("all_reduce", group="dp"),)
    (matched,) = matched_of([replace(trace, collectives=in_group) for trace in named])
    assert (matched.group, len(matched)) == ("dp", 3)


def test_groups_of_one_name_and_different_ranks_are_kept_apart() -> None:
    ranks = job([[0, 5_000, 0], [0, 0, 9_000], [4_000, 0, 0], [0, 0, 7_000]])
    paired = []
    for number, trace in enumerate(ranks):
        members = (0, 1) if number < 2 else (2, 3)
        described = np.where(trace.device.stream == 20, 0, -1).astype(np.int32)
        tensor_parallel = Collective("all_reduce", group="tp", members=members)
        paired.append(
            replace(trace, collectives=(tensor_parallel,), device=replace(trace.device, collective=described))
        )
    assert [(one.group, one.members) for one in matched_of(paired)] == [("tp", (0, 1)), ("tp", (2, 3))]


def test_a_root_that_leaves_a_broadcast_early_was_not_late() -> None:
    arrive, ends = np.arange(1, 5) * STEP, np.arange(1, 5) * STEP + 4 * TRANSFER
    root = rank_of(0, arrive, ends - 3 * TRANSFER, names=[BROADCAST] * 2)
    other = rank_of(1, arrive, ends, names=[BROADCAST] * 2)
    root_ends = root.device.end_ns.copy()
    reduces = (root.device.name == root.names.index(REDUCE)).nonzero()[0]
    root_ends[reduces] += 3 * TRANSFER
    whole = replace(root, device=replace(root.device, end_ns=root_ends))
    (matched,) = matched_of([whole, other])
    assert sorted(matched.last.tolist())[:2] == [-1, -1]


def test_other_collectives_are_not_matched() -> None:
    one, other = job([[0, 0, 0], [0, 0, 0]])
    renamed = replace(other, names=("gemm", BROADCAST, REDUCE, "ProfilerStep#1"))
    assert matched_of([one, renamed]) == ()


def test_the_rank_that_all_wait_for_is_named() -> None:
    late = np.zeros((4, 5), int)
    late[2] = [3_000_000, 2_800_000, 3_100_000, 2_900_000, 3_000_000]
    found = judged(job(late.tolist(), clocks=[0, 7_000, -3_000_000, 10**12]))
    (straggler,) = found.stragglers
    assert straggler.rank == 2
    assert straggler.cost_ns[-1] == 3_000_000
    assert found.table[2].waited_ns == 0
    assert found.table[1].waited_ns == 14_800_000
    assert [row.clock_ns for row in found.table] == [0, 7_000, -3_000_000, 10**12]


def test_of_two_ranks_three_steps_prove_a_large_delay_alone() -> None:
    assert judged(job([[0] * 3, [600_000] * 3])).stragglers == ()
    (straggler,) = judged(job([[0] * 3, [3_000_000] * 3])).stragglers
    assert straggler.rank == 1


def test_a_rank_that_was_late_once_is_no_straggler() -> None:
    late = np.zeros((4, 5), int)
    late[2, 3] = 9 * STEP
    assert judged(job(late.tolist())).stragglers == ()


def test_a_wait_under_compute_costs_nothing() -> None:
    late = np.zeros((4, 5), int)
    late[2] = 3_000_000
    traces = job(late.tolist())
    covered = [replace(trace, device=DeviceWork.concatenate((trace.device, over(trace)))) for trace in traces]
    assert judged(traces).stragglers
    found = judged(covered)
    assert found.stragglers == ()
    assert (found.table[0].waited_ns, found.table[0].exposed_wait_ns) == (15_000_000, 0)


def over(trace: Trace) -> DeviceWork:
    """A kernel on another stream under the whole recording."""
    start, end = trace.window_ns or (0, 0)
    return DeviceWork.build(
        {"start_ns": [start], "end_ns": [end], "name": [0], "stream": [8], "device": [trace.rank or 0]}
    )


@settings(max_examples=40)
@given(st.integers(4, 8), st.integers(4, 8), st.integers(0, 2**32 - 1))
def test_a_balanced_job_accuses_nobody(ranks: int, steps: int, seed: int) -> None:
    jitter = np.random.default_rng(seed).exponential(STEP / 200, (ranks, steps)).astype(int)
    found = judged(job(jitter.tolist()))
    assert found.stragglers == ()
    assert len(found.lateness) == ranks


def test_missing_and_repeated_ranks_are_named() -> None:
    traces = job([[0, 10_000], [0, 0], [0, 0], [5_000, 0]])
    found = judged([traces[0], traces[2], traces[2]])
    assert (found.roll.missing, found.roll.duplicates, found.roll.world_size) == ((1, 3), (2,), 4)
    assert len(found.table) == 2
    assert [re.split(" are | is ", warning)[0] for warning in found.roll.warnings] == ["ranks 1, 3 of 4", "rank 2"]


def test_one_rank_alone_waits_for_nobody_that_is_known() -> None:
    found = judged(job([[0, 0, 0]]))
    assert (found.matched, found.lateness, found.table[0].waited_ns) == ((), (), None)


def real(*parts: str) -> Job:
    folder = ROOT.joinpath(*parts)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    if not files:
        pytest.skip("this set of traces is not in the collection")
    return judged(open_traces(files))


GOLDEN = ("pytorch__torchrec", "examples", "golden_training")


@pytest.mark.parametrize("name", ["sst_long_a2a_optimizer", "sst_long_a2a_optimizer_qcomm_trace"])
def test_torchrec_waits_for_rank_2(name: str) -> None:
    found = real(*GOLDEN, "trace", name)
    assert [one.rank for one in found.stragglers] == [2]
    assert found.roll.missing == ()


def test_torchrecs_straggler_sleeps_a_second_a_step() -> None:
    found = real(*GOLDEN, "trace", "sst_long_a2a_optimizer")
    assert all(0.98e9 < cost < 1.02e9 for cost in found.lateness[2].cost_ns)
    assert [round((row.waited_ns or 0) / 1e9, 1) for row in found.table] == [3.0, 3.0, 0.0, 3.0]


def test_three_steps_of_two_ranks_prove_nothing() -> None:
    found = real(*GOLDEN, "log", "resnet18")
    assert found.stragglers == ()
    assert [round((row.waited_ns or 0) / 1e6, 1) for row in found.table] == [7.6, 0.0]


def test_modded_nanogpt_waits_for_rank_1() -> None:
    records = ROOT / "KellerJordan__modded-nanogpt" / "records"
    folders = list(records.rglob("profiler-example-traces")) if records.is_dir() else []
    found = real(*(folders[0].relative_to(ROOT).parts if folders else ("absent",)))
    assert [one.rank for one in found.stragglers] == [1]
    (matched,) = found.matched
    assert matched.group == "default_pg"
    assert [int((matched.rows[:, column] >= 0).sum()) for column in range(8)] == [76, 76, 76, 76, 81, 84, 84, 84]
    assert max(matched.spread_ns) < 20_000


def test_megatrons_rank_1_waits_48_ms_for_rank_0() -> None:
    found = real("NVIDIA__Megatron-LM", "tp2", "result")
    assert [round((row.waited_ns or 0) / 1e6, 1) for row in found.table] == [0.0, 48.2]
    assert found.stragglers == ()  # one step does not show that it lasts


def test_dlrm_on_eight_ranks() -> None:
    found = real("facebookresearch__param", "et_replay", "tests", "inputs", "dlrm_kineto.tar.gz.d", "dlrm_kineto")
    waits = [row.waited_ns or 0 for row in found.table]
    assert (int(np.argmin(waits)), int(np.argmax(waits))) == (7, 1)
    assert found.stragglers == ()
    assert all(abs(row.clock_ns or 0) < 10_000 for row in found.table)


def test_a_merged_file_of_four_rocm_ranks() -> None:
    merged = list((ROOT / "amd__HPCTrainingExamples").rglob("merged_all_events.json.gz"))
    if not merged:
        pytest.skip("this set of traces is not in the collection")
    found = judged(open_traces(merged))
    assert [one.rank for one in found.stragglers] == [3]
    (matched,) = found.matched
    assert int((matched.last >= 0).sum()) == 15  # the six broadcasts of batch-norm buffers end at their root first


def test_of_few_collectives_a_wrong_shift_may_fit_by_chance_and_the_clocks_decide() -> None:
    """Six collectives of two gloo ranks on a busy processor, as they were recorded: ends in microseconds."""
    ends = (
        np.array([0, 59561, 115800, 119652, 145881, 215661]) * 1000,
        np.array([7669, 57783, 107585, 129744, 143903, 207837]) * 1000,
    )
    zeros = np.zeros(6, np.int64)
    sequences = [{(False, "host"): CollectiveSequence(np.arange(6), end - 1000, end, zeros, zeros - 1)} for end in ends]
    (group,) = match_sequences(sequences)
    assert (group.rows[:, 0] == group.rows[:, 1]).all()
    assert abs(group.offset_ns[1]) < 5_000_000


def test_collectives_of_one_step_are_matched_where_a_live_run_counted_steps() -> None:
    """Two ranks on a busy processor, recorded from the same step on: shifted by three, the ends lie closer together."""
    ends = (
        np.array([45070, 75863, 111529, 141555, 167795, 231822]) * 1000,
        np.array([39397, 79789, 117805, 127258, 159289, 220276]) * 1000,
    )
    zeros = np.zeros(6, np.int64)

    def shift(*first_steps: int | None) -> int:
        sequences = [
            {
                (False, "host"): CollectiveSequence(
                    np.arange(6), end - 1000, end, zeros, zeros - 1, None if step is None else step + np.arange(6)
                )
            }
            for end, step in zip(ends, first_steps, strict=True)
        ]
        (group,) = match_sequences(sequences)
        both = (group.rows >= 0).all(axis=1)
        return int((group.rows[both, 0] - group.rows[both, 1])[0])

    assert shift(61, 61) == 0
    assert shift(61, 62) == 1
    assert shift(None, 61) == shift(None, None) == shift(61, 99) == -3, "by the ends alone"
