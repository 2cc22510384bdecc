"""Gaps of the device that are as long as each other, before all kinds of launched work, are the turns of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Trace, drawn

FIVE = {letter: f"{letter}_kernel" for letter in "abcde"}
TURNS = """
    host: olssssolssssolssssolssssolssss
    gpu :      a     b     c     d     e
    step:                               |
"""
BEHIND = """
    host: olooooolooooolooooolooooolooso
    gpu :      a     b     c     d     e
    step:                               |
"""


def shared(picture: str = TURNS, *, repeat: int = 3, unit_ns: int = 1_000_000, names: dict[str, str] = FIVE) -> Trace:
    return drawn(picture, repeat=repeat, unit_ns=unit_ns, kernels=names)


def test_the_whole_gap_is_the_turn() -> None:
    turns = Measures(shared()).handed_over
    assert {round(length / 1e6) for length in turns.lengths_ns.tolist()} == {5}
    assert len(turns) == 10  # of two steps: the first one is warm-up


@pytest.mark.parametrize(
    "trace",
    [
        shared(repeat=1),  # too few to be no chance
        shared(unit_ns=10_000),  # too short for a turn
        shared(names=dict.fromkeys("abcde", "one_kernel")),  # always before the same work
    ],
)
def test_what_may_be_something_else_is_none(trace: Trace) -> None:
    assert len(Measures(trace).handed_over) == 0


ROUND = """
    host : olssssolssssolssssolssssolssss
    gpu  :      a     b     c     d     e
    gpu 1: u     u     u     u     u
    gpu 2:  u     u     u     u     u
    gpu 3:   u     u     u     u     u
    gpu 4:    u     u     u     u     u
    gpu 5:     u     u     u     u     u
    step :                               |
"""


def test_parts_of_a_model_on_other_devices_are_what_is_waited_for() -> None:
    """Six devices have a part each, and all parts are alike."""
    drawing = drawn(ROUND, repeat=3, unit_ns=1_000_000, kernels=FIVE, device_names=("NVIDIA H200",) * 6)
    stream = drawing.device.stream
    ordinal = stream.astype(drawing.device.device.dtype)
    parts = replace(drawing, device=replace(drawing.device, device=ordinal))
    assert len(Measures(parts).handed_over) == 0
    first = replace(parts, device=parts.device.where(ordinal == 0))
    assert len(Measures(first).handed_over) == 10


def test_a_host_that_is_behind_gets_back_no_more_than_it_waits() -> None:
    """Work that the host needs as long to issue as the turns last would be no sooner without them."""
    rule = plugins.load().rules["shared-device"]
    waiting, behind = Measures(shared()), Measures(shared(BEHIND))
    assert len(behind.handed_over) == len(waiting.handed_over)
    gained = [
        sum(one.recoverable_ns for one in rule.check(measures) if isinstance(one, Claim))
        for measures in (waiting, behind)
    ]
    assert gained[0] == 30_000_000
    assert gained[1] <= 2 * 2_000_000
