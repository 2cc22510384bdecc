"""Predicted against measured: what is said of one fix, and of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.model import Confidence, Decision, Interval, Verdict
from diagnose.prediction import interval_of
from diagnose.report.wording.predictions import compared, prediction_holds, summed_up

MS = 1_000_000
MEASURED = Verdict(
    "defer-item", Decision.KEPT, "", saving=Interval(0.03, 0.02, 0.04), saving_ns=5 * MS,
    predicted_ns=8 * MS, prediction=Confidence.MEASURED,
)  # fmt: skip
FAR = replace(MEASURED, predicted_ns=50 * MS)


def test_a_prediction_is_an_interval_and_what_came_of_it_lies_inside_or_not() -> None:
    assert compared(MEASURED) == "3.59 ms … 17.8 ms; measured 5.00 ms: inside"
    assert compared(FAR) == "22.4 ms … 111 ms; measured 5.00 ms: outside"


def test_a_bound_has_the_interval_that_bounds_were_measured_to_have() -> None:
    bound = replace(MEASURED, prediction=Confidence.BOUND)
    assert interval_of(8 * MS, Confidence.BOUND)[1] < interval_of(8 * MS, Confidence.MEASURED)[1]
    assert compared(bound) == "5.11 ms … 12.5 ms; measured 5.00 ms: outside"


def test_a_trial_that_saved_nothing_counts_as_well() -> None:
    lost = replace(MEASURED, decision=Decision.SLOWER, saving=Interval(-0.02, -0.03, -0.01), saving_ns=-3 * MS)
    assert prediction_holds(lost) is False
    assert compared(lost) == "3.59 ms … 17.8 ms; lost 3.00 ms: outside"


def test_a_hint_without_a_figure_predicted_nothing() -> None:
    hint = replace(MEASURED, predicted_ns=0, prediction=Confidence.HINT)
    assert (prediction_holds(hint), compared(hint), summed_up([hint])) == (None, "", "")
    assert summed_up([hint, MEASURED]) == summed_up([MEASURED])


@pytest.mark.parametrize(
    "verdict", [replace(MEASURED, saving=None, saving_ns=None), replace(MEASURED, predicted_ns=None)]
)
def test_what_was_not_measured_or_not_predicted_is_not_counted(verdict: Verdict) -> None:
    assert prediction_holds(verdict) is None


def test_all_predictions_are_summed_up() -> None:
    said = summed_up([MEASURED, FAR, MEASURED, Verdict("other", Decision.ADVICE, "")])
    assert said == "Predictions: 2 of 3 measured savings lay in the predicted interval; of earlier ones 90 % did."
    assert summed_up([Verdict("other", Decision.ADVICE, "")]) == ""
