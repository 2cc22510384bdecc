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
