"""Predictions are intervals whose coverage is counted: each trial of the ledger is left out once."""

from __future__ import annotations

import pytest

from diagnose.model import Confidence
from diagnose.prediction import COVERAGE, LEAST_TRIALS, LEDGER, Trial, factor_of, interval_of


def test_nine_of_ten_trials_lie_in_the_interval_that_the_others_give() -> None:
    inside = [
        one.error <= _log(factor_of(one.prediction, [other for other in LEDGER if other is not one])) for one in LEDGER
    ]
    assert sum(inside) / len(LEDGER) >= COVERAGE
    assert sum(inside) < len(LEDGER), "an interval that holds everything says nothing"


@pytest.mark.parametrize("kind", [Confidence.MEASURED, Confidence.BOUND])
def test_so_do_those_of_each_kind_that_has_enough(kind: Confidence) -> None:
    of_kind = [one for one in LEDGER if one.prediction is kind]
    assert len(of_kind) > LEAST_TRIALS
    inside = [one.error <= _log(factor_of(kind, [other for other in LEDGER if other is not one])) for one in of_kind]
    assert sum(inside) / len(of_kind) >= COVERAGE


def test_the_interval_is_of_the_ninetieth_percentile_of_the_errors() -> None:
    ledger = [Trial("p", "f", Confidence.MEASURED, 1.0, 1.0 + number / 10) for number in range(19)]
    assert factor_of(Confidence.MEASURED, ledger) == pytest.approx(2.7)  # the 18th of 19


def test_a_kind_with_few_trials_is_as_uncertain_as_the_least_certain_other() -> None:
    assert factor_of(Confidence.HINT, LEDGER) == factor_of(Confidence.MEASURED, LEDGER)


def test_a_prediction_lies_within_its_interval() -> None:
    for kind in Confidence:
        low, high = interval_of(10_000_000, kind)
        assert 0 < low < 10_000_000 < high


def _log(factor: float) -> float:
    from math import log

    return log(factor) + 1e-12
