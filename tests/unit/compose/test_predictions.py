"""Predicted against measured: what is said of one fix, and of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.model import Confidence, Decision, Interval, Verdict
from diagnose.report.predictions import compared, error, summed_up

MS = 1_000_000
MEASURED = Verdict(
    "defer-item", Decision.KEPT, "", saving=Interval(0.03, 0.02, 0.04), saving_ns=5 * MS,
    predicted_ns=8 * MS, prediction=Confidence.MEASURED,
)  # fmt: skip
BOUND = replace(MEASURED, prediction=Confidence.BOUND)


def test_an_error_is_a_part_of_the_saving() -> None:
    assert error(MEASURED) == pytest.approx(0.6)
    assert compared(MEASURED) == "8.00 ms; measured 5.00 ms: 60 % too high"
    assert compared(replace(MEASURED, predicted_ns=4 * MS)) == "4.00 ms; measured 5.00 ms: 20 % too low"


def test_a_bound_is_wrong_only_where_more_came_of_it() -> None:
    assert error(BOUND) is None
    assert compared(BOUND) == "at most 8.00 ms; measured 5.00 ms"
    assert compared(replace(BOUND, predicted_ns=4 * MS)) == "at most 4.00 ms; measured 5.00 ms: 20 % too low"


def test_a_rough_estimate_is_off_either_way() -> None:
    rough = replace(MEASURED, prediction=Confidence.HINT)
    assert compared(rough) == "about 8.00 ms; measured 5.00 ms: 60 % too high"
    assert summed_up([rough, BOUND]) == (
        "Rough estimates were off by 60 % of what was measured; 1 of 1 predicted upper limits held."
    )


def test_a_hint_without_a_figure_predicted_nothing() -> None:
    hint = replace(MEASURED, predicted_ns=0, prediction=Confidence.HINT)
    assert (error(hint), compared(hint), summed_up([hint])) == (None, "", "")
    assert summed_up([hint, MEASURED]) == summed_up([MEASURED])


@pytest.mark.parametrize(
    "verdict",
    [
        replace(MEASURED, saving=Interval(0.03, -0.01, 0.04)),
        replace(MEASURED, saving=None, saving_ns=None),
        replace(MEASURED, predicted_ns=None),
    ],
)
def test_what_was_not_measured_is_no_yardstick(verdict: Verdict) -> None:
    assert error(verdict) is None


def test_all_predictions_are_summed_up() -> None:
    worse = replace(BOUND, predicted_ns=4 * MS)
    close = replace(MEASURED, predicted_ns=round(5.5 * MS))
    assert summed_up([MEASURED, close, BOUND, worse]) == (
        "Predicted savings were off by 35 % of what was measured (median of 2); 1 of 2 predicted upper limits held."
    )
    assert summed_up([close]) == "Predicted savings were off by 10 % of what was measured."
    assert summed_up([Verdict("other", Decision.ADVICE, "")]) == ""
