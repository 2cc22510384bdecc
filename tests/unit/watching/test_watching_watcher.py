"""What heartbeats of a job's ranks make the watcher say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from diagnose.units import NS_PER_S
from diagnose.watching import metrics_file
from diagnose.watching.watcher import Notice, Watcher

GIB = 1 << 30
STEPS = 10
"""In each second."""
Change = Callable[[dict[str, Any], int, float], None]
"""Edits the heartbeat of a rank, given how many seconds ago the change was."""
AT_S = 300
TRAIN = "/home/user/train.py"


def nothing(_beat: dict[str, Any], _rank: int, _after_s: float) -> None:
    """Everything stays as it is."""


def told(
    change: Change,
    *,
    ranks: int = 1,
    slower: float = 1.0,
    counters: Callable[[int, bool], dict[str, float]] = lambda _rank, _changed: {},
    seconds: int = AT_S + 120,
) -> list[Notice]:
    """What is told of a job whose steps take `slower` times as long from AT_S on, when `change` happens as well."""
    draw, watcher, found = random.Random(0), Watcher({"resident": 100 * GIB}), list[Notice]()
    steps, end, sums = 0, 0.0, [{"w": 0.0, "f": 0.0} for _ in range(ranks)]
    for second in range(seconds):
        changed = second >= AT_S
        count = round(STEPS / slower) if changed else STEPS
        steps, end = steps + count, second + draw.gauss(0, 0.01)
        for rank in range(ranks):
            beat: dict[str, Any] = {"t": _ns(second), "i": steps, "e": _ns(end), "n": ranks, "q": 0, "m": 8 * GIB}
            beat |= {"r": {}, "l": [[TRAIN, 20, 10]], "dw": 0.05, "df": 0.3}
            if changed:
                change(beat, rank, second - AT_S)
            sums[rank] = {"w": sums[rank]["w"] + beat.pop("dw"), "f": sums[rank]["f"] + beat.pop("df")}
            beat |= {name: _ns(value) for name, value in sums[rank].items()}
            watcher.counters(rank, counters(rank, changed))
            found += watcher.beat(rank, beat)
        found += watcher.look(_ns(second))
    return found


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def only(notices: list[Notice]) -> Notice:
    """The only one."""
    [notice] = notices
    return notice


def test_steady_steps_are_no_notice() -> None:
    assert told(nothing) == []


@pytest.mark.parametrize(("seconds", "settled"), [(60, False), (150, True)])
def test_the_usual_time_of_a_step_is_known_after_two_minutes(seconds: int, settled: bool) -> None:
    watcher = Watcher()
    for second in range(seconds):
        beat = {"t": _ns(second), "i": STEPS * second, "e": _ns(second), "w": 0, "f": 0, "q": 0}
        assert list(watcher.beat(0, beat)) == []
    assert watcher.settled == settled


def test_a_loader_that_became_slow_is_named_with_its_step() -> None:
    def waits(beat: dict[str, Any], _rank: int, _after_s: float) -> None:
        beat["dw"] = 0.4

    notice = only(told(waits, slower=1.43))
    assert (notice.kind, [cause.kind for cause in notice.causes]) == ("slower", ["data"])
    assert notice.since_step == pytest.approx(AT_S * STEPS, abs=6 * STEPS)
    assert "waiting for the data loader" in notice.text


def test_a_slow_line_is_named() -> None:
    def slow_line(beat: dict[str, Any], _rank: int, _after_s: float) -> None:
        beat["l"] = [[TRAIN, 20, 6], [TRAIN, 41, 4]]

    assert "train.py:41" in only(told(slow_line, slower=1.67)).text


def test_what_nothing_explains_has_an_unknown_cause() -> None:
    def elsewhere(beat: dict[str, Any], _rank: int, _after_s: float) -> None:
        beat["l"] = []

    notice = only(told(elsewhere, slower=1.25))
    assert [cause.kind for cause in notice.causes] == ["unknown"]
    assert "cause unknown" in notice.text


def test_a_lower_clock_is_named_with_its_reason() -> None:
    def counters(_rank: int, changed: bool) -> dict[str, float]:
        return {"gpu.sm_clock_mhz": 1500.0 if changed else 1980.0, "gpu.throttle_reasons": 0x40 if changed else 0}

    notice = only(told(nothing, slower=1.25, counters=counters))
    assert [cause.kind for cause in notice.causes] == ["clocks"]
    assert "heat (hardware slowdown)" in notice.text


def test_the_only_slow_rank_is_named() -> None:
    def slow(beat: dict[str, Any], rank: int, _after_s: float) -> None:
        if rank == 2:
            beat["df"] = 0.6
            beat["l"] = [[TRAIN, 20, 5], [TRAIN, 41, 5]]
        else:
            beat["l"] = [[TRAIN, 20, 5], [TRAIN, 60, 5]]  # where it waits for rank 2

    notice = only(told(slow, ranks=4, slower=2.0))
    assert notice.rank == 2
    assert "rank 2 alone: train.py:41" in notice.text
    assert "train.py:60" not in notice.text


def test_processes_on_one_rank_s_device_are_neighbours_of_that_rank() -> None:
    def counters(rank: int, changed: bool) -> dict[str, float]:
        return {"gpu.foreign_processes": float(changed and rank == 1)}

    notice = only(told(nothing, ranks=2, slower=1.25, counters=counters))
    assert (notice.rank, notice.causes[0].kind) == (1, "neighbours")


def test_checkpoints_that_come_often_are_told() -> None:
    watcher, found, steps, end = Watcher(), list[Notice](), 0, 0.0
    for second in range(2_400):
        often = second >= 1_800
        saves = second % (20 if often else 600) < 4
        steps, end = steps + (0 if saves else STEPS), end if saves else second
        beat = {"t": _ns(second), "i": steps, "e": _ns(end), "w": 0, "f": 0, "q": 0, "m": GIB}
        found += watcher.beat(0, beat | {"r": {"checkpoint": _ns(1)} if saves else {}, "l": []})
    assert found[0].kind == "slower"
    assert "torch.save" in found[0].text
    assert found[0].since_ns >= _ns(1_700)


def blocks(watcher: Watcher, count: int, slower: float, change: Callable[[int, dict[str, Any]], None]) -> list[Notice]:
    """What is told of so many blocks of five seconds, without any noise, whose second half takes `slower` times."""
    end, found = 0.0, list[Notice]()
    for number in range(count):
        end += 5 * (slower if 2 * number >= count else 1)
        beat: dict[str, Any] = {"t": _ns(end), "i": 10 * number, "e": _ns(end), "w": 0, "f": 0}
        change(number, beat)
        found += watcher.beat(0, beat)
    return found


def test_a_small_change_that_shows_after_twenty_minutes_ends_no_watching() -> None:
    watcher = Watcher()
    blocks(watcher, 1_600, 1.0277, lambda _number, _beat: None)
    assert watcher.last[0]["i"] == 15_990


def test_ranks_that_do_not_wait_for_each_other_may_change_differently() -> None:
    watcher = Watcher()
    for second in range(600):
        for rank in (0, 1):
            steps = (second // 10 if second < 300 else second - 270) if rank == 0 else second
            at = second - second % 10 if rank == 0 and second < 300 else second
            watcher.counters(rank, {"gpu.sm_clock_mhz": 1500.0 if second < 300 else 1980.0})
            beat = {"t": _ns(second), "i": steps, "e": _ns(at), "w": 0, "f": 0}
            found = list(watcher.beat(rank, beat))
            if found:
                assert found[0].kind == "faster"
                assert rank == 0
                return
    raise AssertionError("nothing was told")


def test_the_device_memory_that_is_left_is_that_of_the_newest_heartbeat() -> None:
    def leaks(number: int, beat: dict[str, Any]) -> None:
        beat |= {"a": 8 * GIB + (GIB // 2) * max(0, number - 60), "b": 80 * GIB}

    notice = only(blocks(Watcher(), 100, 1.0, leaks))
    assert notice.kind == "memory"
    # At least five of the 72 GiB are gone when it is told, at 0.1 GiB a second.
    assert "there is room for 11 min" in notice.text


def test_memory_that_runs_out_within_a_day_is_told_once() -> None:
    def leaks(beat: dict[str, Any], _rank: int, after_s: float) -> None:
        beat["m"] += after_s * 20e6

    notice = only(told(leaks))
    assert (notice.kind, notice.rank) == ("memory", 0)
    assert "grows by 1.1" in notice.text


def test_memory_that_lasts_for_more_than_a_day_is_not_told() -> None:
    def grows(beat: dict[str, Any], _rank: int, after_s: float) -> None:
        beat["m"] += after_s * 0.2e6

    assert told(grows) == []


def hang(stacks: dict[int, list[list[object]]], collectives: dict[int, list[str]]) -> list[Notice]:
    """What is told of two ranks that stop after a minute, are where they are for a minute, and go on."""
    watcher, found = Watcher(), list[Notice]()
    for second in range(140):
        quiet = max(0, second - 60) if second < 130 else 0
        for rank in (0, 1):
            steps = STEPS * (second if second < 130 else second - 69) if not quiet else STEPS * 60
            beat = {"t": _ns(second), "i": steps, "e": _ns(second - quiet), "w": 0, "f": 0, "r": {}, "n": 2}
            beat |= {"q": _ns(quiet), "l": []}
            if quiet > 5:
                beat |= {"s": stacks[rank], "c": collectives.get(rank)}
            found += watcher.beat(rank, beat)
        found += watcher.look(_ns(second))
    return found


WAITS = [["/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce", False], [TRAIN, 50, "step", True]]
SLEEPS = [[TRAIN, 30, "fetch", True], [TRAIN, 49, "step", True]]


def test_a_hang_is_told_with_stacks_collective_and_the_rank_that_others_wait_for() -> None:
    hung, goes_on = hang({0: WAITS, 1: SLEEPS}, {})
    assert hung.at_ns == _ns(90)
    assert (hung.kind, hung.rank) == ("hang", 1)
    assert "rank 0: train.py:50 (step), in all_reduce; rank 1: train.py:30 (fetch)" in hung.text
    assert hung.stacks is not None
    assert hung.stacks[1] == [f"{TRAIN}:30 fetch", f"{TRAIN}:49 step"]
    assert (goes_on.kind, goes_on.text) == ("goes on", "steps go on after 1 min 10 s")


def test_the_flight_recorder_s_collective_is_told() -> None:
    hung = hang({0: SLEEPS, 1: SLEEPS}, {0: ["all_reduce 7 of default_pg, Float [[4]]"], 1: []})[0]
    assert "in all_reduce 7 of default_pg" in hung.text
    assert hung.rank == 1


def test_a_checkpoint_of_a_minute_is_no_hang() -> None:
    saves: list[list[object]] = [["/site-packages/torch/serialization.py", 900, "_save", False], *SLEEPS]
    assert [one.kind for one in hang({0: saves, 1: saves}, {})] == []


def silent(gone: Callable[[int], frozenset[int]]) -> Iterator[Notice]:
    """What is told of a rank whose heartbeats end after a minute."""
    watcher = Watcher()
    for second in range(120):
        if second < 60:
            yield from watcher.beat(0, {"t": _ns(second), "i": second, "e": _ns(second), "w": 0, "f": 0, "q": 0})
        yield from watcher.look(_ns(second), gone(second))


def test_a_rank_that_is_not_heard_of_hangs() -> None:
    assert "not heard of for" in only(list(silent(lambda _second: frozenset()))).text


def test_a_rank_that_ended_does_not_hang() -> None:
    assert list(silent(lambda second: frozenset({0}) if second >= 60 else frozenset())) == []


def test_a_clock_that_is_set_or_a_machine_that_stood_still_is_no_hang() -> None:
    watcher, found, gap = Watcher(), list[Notice](), 0
    for second in range(200):
        gap = 3_600 if second >= 100 else 0
        found += watcher.look(_ns(second + gap))  # just before the ranks are heard of again
        found += watcher.beat(0, {"t": _ns(second + gap), "i": second, "e": _ns(second + gap), "w": 0, "f": 0})
    assert found == []


def stepless(second: int, watcher: Watcher, **more: int) -> list[Notice]:
    """A second of a rank whose stack moves, and whose steps end after a minute."""
    last = min(second, 60)
    beat = {"t": _ns(second), "i": last, "e": _ns(last), "w": 0, "f": 0, "q": 0}
    return [*watcher.beat(0, beat | more), *watcher.look(_ns(second))]


def test_a_program_that_is_busy_but_ends_no_step_for_ten_minutes_hangs() -> None:
    watcher = Watcher()
    notice = only([one for second in range(800) for one in stepless(second, watcher)])
    assert "no progress for 10 min, in step 60; rank 0: at work, but no step ends" in notice.text
    assert list(watcher.hanging) == [0]
    list(watcher.look(_ns(800), frozenset({0})))
    assert list(watcher.hanging) == []


def test_an_evaluation_that_takes_batches_is_no_hang() -> None:
    watcher = Watcher()
    assert [one for second in range(2_000) for one in stepless(second, watcher, w=second)] == []


def test_metrics_say_what_is_known_and_nothing_else() -> None:
    beats = {0: {"i": 12, "w": _ns(1.5), "e": _ns(3), "m": None}}
    text = metrics_file.render('a"b', beats, {0: None}, (0,), {"slower": 2})
    assert 'diagnose_steps_total{program="a\\"b",rank="0"} 12' in text
    assert 'diagnose_hanging{program="a\\"b",rank="0"} 1' in text
    assert 'diagnose_notices_total{program="a\\"b",kind="slower"} 2' in text
    assert "diagnose_step_seconds" not in text
    assert "diagnose_resident_bytes" not in text
