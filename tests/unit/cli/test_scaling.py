"""Scaling: the efficiency of runs on more and more ranks, and what takes the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.comparison.scaling import STRONG, WEAK, Run, run_of, scaling_of
from diagnose.errors import UsageError
from diagnose.measure import Measures
from diagnose.model import Facts
from diagnose.report.terminal.scaling import render, to_json
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn

MS = 1_000_000
KERNELS = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"


def job(ranks: int, picture: str, facts: Facts | None = None) -> Run:
    comms = {"g": Collective("all_reduce", 16 << 20, ranks, "pg")}
    return run_of(
        [
            Measures(
                drawn(
                    picture,
                    repeat=4,
                    kernels=KERNELS,
                    comms=comms if ranks > 1 else None,
                    rank=rank,
                    world_size=ranks,
                    facts=facts or Facts(),
                )
            )
            for rank in range(ranks)
        ]
    )


ALONE = "gpu   : kkkkbbbbxx\nbwd   :     BBBB\nopt   :         OO"
TWO = "gpu   : kkkkbbbb  xx\ngpu 20:       gggg\nbwd   :     BBBB\nopt   :           OO"
FOUR = "gpu   : kkkkbbbb          xx\ngpu 20:       gggggggggggg\nbwd   :     BBBB\nopt   :                   OO"
HALF = "gpu   : kkbb  xx\ngpu 20:    ggg\nbwd   :   BB\nopt   :       OO"


def test_a_rank_that_does_the_same_work_in_a_longer_step_is_less_efficient() -> None:
    scaling = scaling_of([job(4, FOUR), job(1, ALONE), job(2, TWO)])
    assert (scaling.kind, scaling.told) == (WEAK, True)
    assert [row.run.ranks for row in scaling.rows] == [1, 2, 4]
    assert [row.efficiency for row in scaling.rows] == pytest.approx([1, 10 / 12, 10 / 20])
    assert [row.lost_ns for row in scaling.rows] == [0, 2 * MS, 10 * MS]
    assert [row.run.exposed_ns for row in scaling.rows] == [0, 2 * MS, 10 * MS]


def test_ranks_that_divide_the_work_should_take_a_part_of_the_time() -> None:
    scaling = scaling_of([job(1, ALONE), job(2, HALF)])
    assert scaling.kind == STRONG
    assert scaling.rows[1].efficiency == pytest.approx(10 / (2 * 8))


def test_what_it_is_may_be_said() -> None:
    assert scaling_of([job(1, ALONE), job(2, HALF)], WEAK).rows[1].efficiency == pytest.approx(10 / 8)


def test_steps_that_nobody_traced_go_before_traced_ones() -> None:
    runs = [job(1, ALONE, Facts(step_ns_watched=10 * MS)), job(2, TWO, Facts(step_ns_watched=11_500_000))]
    scaling = scaling_of(runs)
    assert scaling.rows[1].efficiency == pytest.approx(10 / 11.5)
    assert "only traced steps" not in render(scaling)
    assert "on 1, 2 ranks only traced steps are known" in render(scaling_of([job(1, ALONE), job(2, TWO)]))


def test_the_pace_of_a_host_ahead_of_its_device_is_not_that_of_its_steps() -> None:
    run = job(1, ALONE, Facts(step_ns_watched=2 * MS))
    assert (run.step_ns, run.watched) == (10 * MS, False)


def test_the_sentence_names_what_takes_the_rest() -> None:
    said = render(scaling_of([job(1, ALONE), job(2, TWO), job(4, FOUR)]))
    assert "on 4 ranks a step takes 10.0 ms longer than it should; in its traced steps: 10.0 ms exposed" in said
    assert "50 %" in said


def test_the_same_as_json() -> None:
    record = json.loads(to_json(scaling_of([job(1, ALONE), job(2, TWO)])))
    assert record["kind"] == "weak"
    assert [row["run"]["ranks"] for row in record["rows"]] == [1, 2]


def test_what_one_rank_of_several_waited_is_not_known() -> None:
    comms = {"g": Collective("all_reduce", 16 << 20, 4, "pg")}
    first = run_of([Measures(drawn(FOUR, repeat=4, kernels=KERNELS, comms=comms, rank=0, world_size=4))])
    assert first.waited_ns is None
    said = render(scaling_of([job(1, ALONE), first]))
    assert "–" in said
    assert "10.0 ms exposed communication, waiting for other ranks included" in said


def test_runs_on_equally_many_ranks_are_no_scaling() -> None:
    with pytest.raises(UsageError, match="different numbers of ranks; these are on 2, 2"):
        scaling_of([job(2, TWO), job(2, TWO)])
    with pytest.raises(UsageError, match="different numbers"):
        scaling_of([job(2, TWO)])


def test_work_that_neither_stays_nor_shrinks_is_asked_about() -> None:
    third = "gpu   : kbb       xx\ngpu 20:   gggggggg\nbwd   :  BB\nopt   :           OO"
    with pytest.raises(UsageError, match="say --weak"):
        scaling_of([job(1, ALONE), job(4, third)])


def test_the_command_refuses_what_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    same = str(SAMPLES / "h200_straggler")
    assert main(["scaling", same, same]) == 2
    assert "these are on 2, 2" in capsys.readouterr().err


def test_the_command_compares_recordings(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(SAMPLES / "h200_expert_gpt"), str(SAMPLES / "h200_straggler")]
    assert main(["scaling", *runs, "--weak", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["run"]["ranks"] for row in rows] == [1, 2]
    assert rows[0]["efficiency"] == 1.0
