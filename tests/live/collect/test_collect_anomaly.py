"""Where a program turns anomaly detection on: seen by a live run, pointed at by the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from watching import PROGRAMS, Ran, run

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.model import Site
from diagnose.rule import Claim

PROGRAM = "anomalous.py"
TEXT = (PROGRAMS / PROGRAM).read_text().splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TEXT, 1) if text in line)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("anomaly"), PROGRAM)


def test_lines_that_switch_anomaly_detection_are_sites(ran: Ran) -> None:
    found = {
        site["line"]: (Path(site["file"]).name, site["arguments"]["enabled"], site["owned"])
        for site in ran.lines("sites.jsonl")
        if site["kind"] == "anomaly"
    }
    assert found == {
        line_of("set_detect_anomaly(False)"): (PROGRAM, False, True),
        line_of("set_detect_anomaly(mode=True)"): (PROGRAM, True, True),
        line_of("# for a part"): (PROGRAM, True, True),
    }


def test_its_warning_still_points_at_the_program(ran: Ran) -> None:
    assert (ran.returncode, ran.stdout) == (0, "True\n")


@pytest.mark.parametrize(("enabled", "lines"), [(True, [7]), (False, [])])
def test_the_rule_points_at_the_line_that_turned_it_on(enabled: bool, lines: list[int]) -> None:
    rule = plugins.load_rules().rules["debug-leftovers"]
    site = Site("anomaly", "train.py", 7, "main", {"enabled": enabled})
    (claim,) = rule.check(Measures(replace(rule.fires[1], sites=(site,))))
    assert isinstance(claim, Claim)
    assert [place.line for place in claim.where] == lines


def test_without_a_device_the_stacks_that_it_writes_count_as_their_part_of_the_samples() -> None:
    """Three columns of each step are tests of gradients; five of twelve samples saw a stack be written down."""
    rule = plugins.load_rules().rules["debug-leftovers"]
    measures = Measures(rule.fires[-1])
    (claim,) = rule.check(measures)
    assert isinstance(claim, Claim)
    assert claim.recoverable_ns / measures.step_count == pytest.approx(8_000_000, rel=0.1)
    assert "writes down the stack" in claim.summary
    blind = Measures(replace(rule.fires[-1], samples=rule.fires[0].samples))
    (tests,) = rule.check(blind)
    assert isinstance(tests, Claim)
    assert tests.recoverable_ns / blind.step_count == pytest.approx(3_000_000, rel=0.1)
    assert "writes down the stack" not in tests.summary
