"""Ranks side by side in reports and on the screen: live, who keeps up; traced, who waits for whom."""

from __future__ import annotations

import journals
import pytest
import rank_journals

from diagnose.engine import diagnose
from diagnose.model import RankWait
from diagnose.plugins import load_rules
from diagnose.report.sections.side_by_side import live_lines, paces, spread_words, traced_lines
from diagnose.report.terminal import text
from diagnose.session import RankSteps, State, fold
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn

MS = 1_000_000
DIAGNOSED = fold(rank_journals.ranks_diagnosed())
KERNELS = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
EARLY = "gpu   : kkbbbb     xx\ngpu 20:     gggggg\nbwd   :   BBBB\nopt   :             O"
LATE = "gpu   : kkbbbb     xx\ngpu 20:         gg\nbwd   :   BBBB\nopt   :             O"


def plain(state: State, width: int, most: int) -> list[str]:
    assert state.diagnosis is not None
    return [line.plain.rstrip() for line in traced_lines(state.diagnosis, width, most)]


def test_a_diagnosis_says_whom_each_rank_waits_for() -> None:
    comms = {"g": Collective("all_reduce", 16 << 20, 2, "pg", members=(0, 1))}
    ranks = [
        drawn(picture, repeat=4, kernels=KERNELS, comms=comms, rank=rank, world_size=2)
        for rank, picture in enumerate((EARLY, LATE))
    ]
    first, second = diagnose(ranks, load_rules()).per_rank
    assert first.waits == (RankWait(1, 2 * MS),)
    assert second.waits == ()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_rank_is_a_line_that_fits(width: int) -> None:
    lines = plain(DIAGNOSED, width, 16)
    assert len(lines) == rank_journals.RANKS
    assert all(len(line) <= width for line in lines)
    assert all("for rank 5" in line for at, line in enumerate(lines) if at != rank_journals.LATE_RANK)
    assert "waits" not in lines[rank_journals.LATE_RANK]


def test_of_many_ranks_the_late_one_is_never_left_out() -> None:
    assert [line.split()[1] for line in plain(DIAGNOSED, 100, 1)[:1]] == ["5"]
    assert [line.split()[1] for line in plain(DIAGNOSED, 100, 3)[:3]] == ["0", "5", "11"]
    assert plain(DIAGNOSED, 100, 3)[-1] == "and 9 more: `diagnose ranks` has them all"


def test_the_report_shows_them_and_says_how_far_apart_they_are() -> None:
    said = text.render(DIAGNOSED, width=100)
    assert "Ranks side by side   12 ranks, mean steps 0.0 % apart" in said


def test_one_rank_is_no_side_by_side() -> None:
    alone = fold(journals.cpu())
    assert alone.diagnosis is not None
    assert traced_lines(alone.diagnosis, 100, 8) == [] and spread_words(alone.diagnosis) == ""
    assert live_lines(fold(journals.watching()), 100, 8) == []
    assert "side by side" not in text.render(alone, width=100)


def test_live_the_rank_whose_steps_end_last_is_behind() -> None:
    steps = {
        rank: RankSteps(
            tuple(100 * MS * step + 4 * MS * (rank == 2) for step in range(1, 9)), (30 * MS * (rank == 2),) * 8
        )
        for rank in range(3)
    }
    first, second, third = paces(steps)
    assert (first.behind_ns, second.behind_ns, third.behind_ns) == (0, 0, 4 * MS)
    assert third.step_ns == 100 * MS
    assert third.input_share == pytest.approx(0.3)
    lines = [line.plain for line in live_lines(State(steps=steps), 100, 8)]
    assert "ends 4.00 ms after the first" in lines[2] and "input   30 %" in lines[2]


def test_ranks_that_have_begun_at_different_times_are_compared_by_steps_that_all_have_taken() -> None:
    ends = tuple(10 * MS * step for step in range(1, 30))
    assert [one.behind_ns for one in paces({0: RankSteps(ends, (0,) * 29), 1: RankSteps(ends[:12], (0,) * 12)})] == [
        0,
        0,
    ]
    assert paces({0: RankSteps(ends, (0,) * 29), 1: RankSteps(ends[:1], (0,))}) == []
