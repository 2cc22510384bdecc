"""How long a program is watched before it is traced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diagnose.collect import Recipe
from diagnose.units import NS_PER_S


def test_of_a_budget_only_a_part_is_spent_on_waiting_for_steady_steps() -> None:
    assert Recipe().within(None) == Recipe()
    assert Recipe().within(90 * NS_PER_S).most_warmup_s == 15
    assert Recipe().within(90 * NS_PER_S).to_json(Path())["most_warmup_ns"] == 15 * NS_PER_S


def test_a_long_budget_waits_no_longer_than_none() -> None:
    assert Recipe().within(3600 * NS_PER_S) == Recipe()


def test_a_program_is_ended_before_the_budget_that_its_watching_would_use_up() -> None:
    assert Recipe().ending_within(None) == Recipe()
    assert Recipe().ending_within(3600 * NS_PER_S) == replace(Recipe(), most_s=3596)
    assert Recipe().ending_within(90 * NS_PER_S).most_warmup_s == 15
