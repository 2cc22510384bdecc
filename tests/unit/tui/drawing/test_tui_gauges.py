"""Gauges with their history."""

from __future__ import annotations

from diagnose.session import CountersRead, State, fold
from diagnose.tui.drawing.chart import sparkline
from diagnose.tui.drawing.gauges import gauge_histories, gauges

WIDTH = 100


def busy(*percent: float) -> State:
    return fold([CountersRead(rank=0, values={"gpu.utilization": value}) for value in percent])


def test_readings_are_columns_from_zero_to_full_oldest_at_the_left() -> None:
    assert sparkline([0.0, 50.0, 100.0], 100.0, 5, "red").plain == "▁▄█··"
    assert sparkline([1.0, 2.0, 4.0], None, 2, "red").plain == "▄█", "the newest, up to the largest"
    assert sparkline([0.0, 0.0], None, 2, "red").plain == "▁▁"


def test_a_gauge_has_its_history_once_there_is_one() -> None:
    (line,) = gauge_histories(busy(10.0, 90.0), 0, WIDTH)
    assert "GPU busy" in line.plain
    assert "▁▇" in line.plain
    assert line.plain.endswith("90 %")
    assert gauge_histories(busy(90.0), 0, WIDTH) == gauges(busy(90.0), 0, WIDTH)
    assert gauge_histories(State(), 0, WIDTH) == []


def test_the_history_of_a_counter_is_bounded_and_holds_what_was_read_alone() -> None:
    state = fold([CountersRead(rank=0, values={"host.cpu": float(number)}) for number in range(1000)])
    kept = state.counter_history[0]["host.cpu"]
    assert len(kept) < 1000
    assert kept[-1] == 999.0
    assert set(state.counter_history[0]) == {"host.cpu"}
