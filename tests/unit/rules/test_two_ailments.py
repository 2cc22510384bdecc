"""Two mild ailments in one step: both are found, the one that gives back more first, and no time is given twice."""

from __future__ import annotations

from itertools import permutations

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.rule import Trace, drawn

RULES = plugins.load_rules()
UNIT_NS = 100_000
LARGER, SMALLER = 9, 6
"""Columns that two ailments take, of some hundred in a step."""
LANES = ("load", "gc", "call", "host", "gpu")
FRAMES = {"p": "train.py(52): moving_average"}
LETTERS: dict[str, dict[str, str]] = {
    "python-stall": {"call": "p"},
    "input-bound": {"load": "w"},
    "gc-pause": {"gc": "g"},
    "pageable-copies": {"host": "c", "gpu": "h"},
    "device-to-host-copies": {"host": "c", "gpu": "d"},
}


def ailing(rule: str, columns: int) -> dict[str, str]:
    """That much of the ailment, after which the device has nothing to do."""
    return {lane: LETTERS[rule].get(lane, " ") * columns for lane in LANES}


def working(columns: int) -> dict[str, str]:
    """A kernel of that length, behind its launch."""
    return dict.fromkeys(LANES, " " * (columns + 1)) | {"host": "l" + " " * columns, "gpu": " " + "k" * columns}


def step(first: str, second: str) -> Trace:
    parts = [ailing(first, LARGER), working(40), ailing(second, SMALLER), working(50)]
    lanes = {lane: "".join(part[lane] for part in parts) for lane in LANES}
    rows = [f"{lane:5}: {row}" for lane, row in lanes.items() if row.strip()]
    return drawn(
        "\n".join([*rows, "step : " + " " * len(lanes["host"]) + "|"]), unit_ns=UNIT_NS, repeat=6, frames=FRAMES
    )


@pytest.mark.parametrize(("first", "second"), permutations(LETTERS, 2))
def test_both_are_found_and_the_larger_one_comes_first(first: str, second: str) -> None:
    findings = diagnose([step(first, second)], RULES).findings
    assert [finding.rule for finding in findings[:2]] == [first, second]
    given = [finding.recoverable_ns / UNIT_NS for finding in findings]
    # A copy is a column longer where the call that follows it could have been made before.
    assert given[0] == pytest.approx(LARGER, abs=1.1)
    assert given[1] == pytest.approx(SMALLER, abs=1.1)
    assert sum(given) <= LARGER + SMALLER + 2.1
