"""How long a program that is ended once it is diagnosed goes on after its trace."""

from __future__ import annotations

import json
from pathlib import Path

from diagnose.collect.launch import LogLength
from diagnose.collect.progress import StepsEnded, Tail
from diagnose.collect.recipe import Recipe
from diagnose.collect.records import CLAIM, STEPS
from diagnose.units import NS_PER_S

FIXING = Recipe(stop_after_trace=True, log_steps=120, most_log_s=4.0)


def test_it_goes_on_until_its_log_shows_what_comes_every_so_many_steps() -> None:
    log = LogLength(FIXING)
    log.grew(0, 25)
    log.grew(1, 30)
    assert not log.suffices(now_s=10.0)
    log.grew(1, 90)
    assert log.suffices(now_s=10.2)


def test_what_was_taken_for_steps_before_the_log_began_again_is_not_in_it(tmp_path: Path) -> None:
    log, tail = LogLength(FIXING), Tail(tmp_path, 4)
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / CLAIM).write_text("{}")
    steps = tmp_path / "rank0" / STEPS

    def logged(count: int) -> None:
        steps.write_text("".join(json.dumps({"t": at, "w": 0}) + "\n" for at in range(count)))
        for record in tail.new():
            if isinstance(record, StepsEnded):
                log.grew(record.rank, len(record.ends_ns), anew=record.anew)

    logged(200)  # a pass over the data, before training begins
    logged(0)
    logged(20)
    assert not log.suffices(now_s=10.0)
    logged(120)
    assert log.suffices(now_s=10.2)


def test_where_steps_are_long_a_few_seconds_after_the_trace_have_to_do() -> None:
    log = LogLength(FIXING)
    log.grew(0, 18)
    assert not log.suffices(now_s=100.0)
    assert not log.suffices(now_s=103.9)
    assert log.suffices(now_s=104.0)


def test_of_a_budget_the_log_has_a_fortieth() -> None:
    log = LogLength(FIXING.within(80 * NS_PER_S))
    assert not log.suffices(now_s=0.0)
    assert log.suffices(now_s=2.0)
    assert FIXING.within(3600 * NS_PER_S).most_log_s == 4.0


def test_a_run_that_is_only_watched_goes_on_to_its_own_end() -> None:
    log = LogLength(Recipe())
    log.grew(0, 10_000)
    assert not log.suffices(now_s=0.0)
    assert not log.suffices(now_s=9_000.0)
