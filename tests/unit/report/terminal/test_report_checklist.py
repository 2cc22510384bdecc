"""The checklist: the usual targets, this run's values, and what is open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.model import Accounting, Diagnosis, MemoryPeak, Steps
from diagnose.report.terminal import checklist
from diagnose.report.terminal.checklist import Item, items
from diagnose.session import CountersRead, State

MS = 1_000_000
SAMPLE = str(Path(__file__).parents[4] / "sample_traces" / "h200_small_batch")
RUN = Diagnosis(
    schema=1,
    source=("trace.json.gz",),
    ranks=1,
    device="NVIDIA H200",
    steps=Steps(4, 20 * MS, 20 * MS, 80 * MS, "profiler marks"),
    accounting=Accounting(compute=14 * MS, idle={"input": 5 * MS, "python": 1 * MS}),
    has_device=True,
)


def item(diagnosis: Diagnosis, question: str) -> Item:
    return next(one for one in items(State(diagnosis=diagnosis)) if one.question == question)


def test_a_missed_target_says_where_to_look() -> None:
    busy = item(RUN, "device utilisation")
    assert (busy.value, busy.is_met) == ("70 %", False)
    assert busy.look == "most of its idle time is waiting for input: 5.00 ms of a step"
    assert item(RUN, "data loading").value == "25 %"


@pytest.mark.parametrize("question", ["device memory at its peak", "model FLOP utilisation", "scaling"])
def test_what_was_not_recorded_is_an_open_question_and_never_met(question: str) -> None:
    found = item(RUN, question)
    assert (found.value, found.is_met) == (None, None)
    assert found.look


@pytest.mark.parametrize(("held", "is_met"), [(50, False), (85, True), (99, False)])
def test_memory_should_be_nearly_full(held: int, is_met: bool) -> None:
    peak = MemoryPeak(0, None, held, {}, capacity_bytes=100)
    assert item(replace(RUN, memory=peak), "device memory at its peak").is_met is is_met


def test_a_job_of_ranks_has_a_share_of_communication() -> None:
    several = replace(RUN, ranks=2, accounting=Accounting(compute=16 * MS, exposed_comm=4 * MS))
    assert item(several, "exposed communication").value == "20 %"
    assert item(RUN, "exposed communication").is_met is None


def test_it_is_printed_line_by_line() -> None:
    said = checklist.render(RUN, width=100)
    assert "✗ device utilisation" in said and "? scaling" in said
    assert said.count("open") >= 3


def test_without_a_step_there_is_nothing_to_check() -> None:
    nothing = replace(RUN, steps=Steps(0, None), accounting=Accounting())
    assert "nothing to check" in checklist.render(nothing, width=80)


def test_the_command_prints_it_and_refuses_another_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", SAMPLE, "--checklist"]) == 0
    assert "device utilisation" in capsys.readouterr().out
    assert main(["report", SAMPLE, "--checklist", "--json"]) != 0


def test_energy_per_step_is_the_mean_power_of_all_watched_devices_times_the_step() -> None:
    state = State(diagnosis=RUN)
    assert checklist.energy_of(state) == ""
    for rank, watts in ((0, 400.0), (0, 600.0), (1, 500.0)):
        state = state.after(CountersRead(rank=rank, values={"gpu.power_watts": watts}))
    assert state.watts == {0: (500.0, 2), 1: (500.0, 1)}
    said = "A step takes 20 J: 1000 W are drawn by 2 devices on average, over 3 readings of NVML."
    assert checklist.energy_of(state) == said
    assert said in checklist.render(state, width=100)


def test_without_readings_of_power_nothing_is_said_of_energy() -> None:
    state = State(diagnosis=RUN).after(CountersRead(rank=0, values={"host.cpu_percent": 50.0}))
    assert checklist.energy_of(state) == ""
