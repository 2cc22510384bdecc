"""What `allocator-churn` names as its cause."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, drawn

RULE = plugins.load().rules["allocator-churn"]
EMPTIES = {"x": [("torch/cuda/memory.py", 222, "empty_cache"), ("train.py", 44, "main")]}
ELSEWHERE = {"x": [("train.py", 44, "main")]}


@pytest.mark.parametrize("seen_at", ["xxxxx", "      x", "            x"])
def test_a_program_that_was_seen_emptying_the_cache_is_told_to_stop(seen_at: str) -> None:
    """The sampler has its turn when the call is over, and may see it beside the time that the device idled."""
    assert told(seen_at, EMPTIES).fixers == ("drop-empty-cache",)


def test_who_was_not_seen_emptying_it_is_offered_that_first() -> None:
    claim = told("xxxxx", ELSEWHERE)
    assert claim.fixers is None
    assert "empties the cache" not in claim.summary
    assert RULE.fixers[0] == "drop-empty-cache"


def told(seen_at: str, stacks: dict[str, list[tuple[str, int, str]]]) -> Claim:
    trace = drawn(
        f"""
        host: fffffmmmolmmmol
        gpu :            kk  kkkkkkk
        line: {seen_at}
        step:                       |
        """,
        repeat=4,
        stacks=stacks,
    )
    (claim,) = (answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim))
    return claim
