"""Other tools' answers are judged by what they name, and what they do not know is no false alarm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diagnose.plugins import load_rules

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from peers import MEANS, judged  # noqa: E402


def test_every_cause_means_rules_that_exist() -> None:
    assert set().union(*MEANS.values()) <= set(load_rules().rules)


@pytest.mark.parametrize(
    ("causes", "verdict"),
    [
        ([], "no bottleneck"),
        (["unattributed"], "idle, cause unknown"),
        (["dataloader"], "named"),
        (["smallbatch", "dataloader"], "named, 2nd"),
        (["h2d_copy"], "another"),
    ],
)
def test_an_answer_is_worth_what_it_names(causes: list[str], verdict: str) -> None:
    assert judged(causes, "input-bound") == verdict


def test_on_a_healthy_program_every_named_cause_is_another() -> None:
    assert [judged([cause], "") for cause in MEANS] == ["another"] * len(MEANS)
