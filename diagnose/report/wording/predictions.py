"""How what was predicted of fixes compares with what they were measured to save."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model import Confidence, Verdict
from diagnose.prediction import COVERAGE, interval_of
from diagnose.units import format_ns, format_share


def predicted_between(predicted_ns: int, prediction: Confidence | None) -> str:
    """The interval that a prediction stands for: `3.59 ms … 17.8 ms`."""
    low, high = interval_of(predicted_ns, prediction or Confidence.MEASURED)
    return f"{format_ns(low)} … {format_ns(high)}"


def prediction_holds(verdict: Verdict) -> bool | None:
    """Whether the measured saving lies in the interval that was predicted; None where one of the two is missing.

    Every trial counts, kept or not: what was to save something and saved nothing lies outside.
    """
    if not verdict.predicted_ns or verdict.saving is None or verdict.saving_ns is None:
        return None
    low, high = interval_of(verdict.predicted_ns, verdict.prediction or Confidence.MEASURED)
    return low <= verdict.saving_ns <= high


def compared(verdict: Verdict) -> str:
    """The prediction of one fix beside what came of it; empty where one of them is missing."""
    if not verdict.predicted_ns or verdict.saving_ns is None:
        return ""
    came = (
        f"measured {format_ns(verdict.saving_ns)}"
        if verdict.saving_ns >= 0
        else f"lost {format_ns(-verdict.saving_ns)}"
    )
    said = f"{predicted_between(verdict.predicted_ns, verdict.prediction)}; {came}"
    inside = prediction_holds(verdict)
    return said if inside is None else f"{said}: {'inside' if inside else 'outside'}"


def summed_up(verdicts: Sequence[Verdict]) -> str:
    """One sentence on all predictions that a trial could check; empty where there are none."""
    checked = [inside for verdict in verdicts if (inside := prediction_holds(verdict)) is not None]
    if not checked:
        return ""
    return (
        f"Predictions: {sum(checked)} of {len(checked)} measured savings lay in the predicted interval; of earlier "
        f"ones {format_share(COVERAGE)} did."
    )
