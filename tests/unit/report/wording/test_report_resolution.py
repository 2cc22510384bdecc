"""What a machine cannot tell from no change: a saving, and the loss that the same blocks are with the sides swapped."""

from __future__ import annotations

import pytest

from diagnose.model import Interval
from diagnose.report.wording.resolution import band, resolution_in_words
from diagnose.tui.drawing.chart import Scale, interval_line
from diagnose.verdict import resolution, ruling_on_time


def test_beside_a_saving_of_a_half_stands_a_loss_of_a_whole_step() -> None:
    assert band(0.5) == pytest.approx((-1.0, 0.5))
    assert resolution_in_words(0.5) == "−100 % … +50 %"


def test_of_a_percent_both_are_alike() -> None:
    assert resolution_in_words(0.01) == "±1.0 %"
    assert resolution_in_words(0.0) == "±0.0 %"


def test_a_control_that_came_out_slower_is_within_what_is_told_of_it() -> None:
    control = Interval(-0.2, -0.6, 0.1)
    assert band(resolution(control)) == pytest.approx((-0.6, 0.375))


def test_a_resolution_of_an_older_session_may_exceed_a_step() -> None:
    assert band(1.37) == (-1.37, 1.37)


def test_what_is_called_no_change_lies_within_the_shade() -> None:
    """A loss of 55 % is none that this machine can tell; the rule of a shaded band must not say otherwise."""
    saving = Interval(-0.55, -0.56, -0.54)
    ruling = ruling_on_time(saving, 20, 2, smallest=0.375)
    assert ruling is not None
    assert ruling.decision.value == "no change"
    scale = Scale(-0.8, 0.6, 140)
    shade = interval_line(scale, saving.low, saving.estimate, saving.high, 0.375, "red").plain
    assert shade[scale.cell(-0.59)] == shade[scale.cell(0.3)] == "░"
    assert shade[scale.cell(-0.65)] == shade[scale.cell(0.45)] == " "
