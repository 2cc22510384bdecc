"""How what was predicted of fixes compares with what they were measured to save."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from diagnose.model import Confidence, Verdict
from diagnose.units import format_ns, format_share

_HOW_SURE = {Confidence.BOUND: "at most ", Confidence.HINT: "about "}


def error(verdict: Verdict) -> float | None:
    """By what part of the saving the prediction was too high (above 0) or too low; None where none can be told.

    A saving whose interval reaches down to nothing is no yardstick. A bound that is not exceeded is off by nothing that
    it denied; a hint denies nothing, and is as far off as it is. One without a figure predicted nothing.
    """
    if not verdict.predicted_ns or not verdict.saving_ns or verdict.saving is None or verdict.saving.low <= 0:
        return None
    off = verdict.predicted_ns / verdict.saving_ns - 1
    return None if _bounds(verdict) and off >= 0 else off


def compared(verdict: Verdict) -> str:
    """The prediction of one fix beside what came of it; empty where one of them is missing."""
    if not verdict.predicted_ns or verdict.saving_ns is None:
        return ""
    sure = _HOW_SURE.get(verdict.prediction, "") if verdict.prediction else ""
    came = (
        f"measured {format_ns(verdict.saving_ns)}"
        if verdict.saving_ns >= 0
        else f"lost {format_ns(-verdict.saving_ns)}"
    )
    said = f"{sure}{format_ns(verdict.predicted_ns)}; {came}"
    off = error(verdict)
    if off is None:
        return said
    return f"{said}: {format_share(abs(off))} too {'high' if off >= 0 else 'low'}"


def summed_up(verdicts: Sequence[Verdict]) -> str:
    """One sentence on all predictions that a trial could check; empty where there are none."""
    tried = [verdict for verdict in verdicts if verdict.predicted_ns and _told(verdict)]
    figures = [verdict for verdict in tried if not _bounds(verdict) and verdict.prediction is not Confidence.HINT]
    guesses = [verdict for verdict in tried if verdict.prediction is Confidence.HINT]
    limits = [error(verdict) is None for verdict in tried if _bounds(verdict)]
    said = [
        f"{what} were off by {_usual_error(some)}"
        for what, some in (("predicted savings", figures), ("rough estimates", guesses))
        if some
    ]
    if limits:
        said.append(f"{sum(limits)} of {len(limits)} predicted upper limits held")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _told(verdict: Verdict) -> bool:
    return bool(verdict.saving_ns) and verdict.saving is not None and verdict.saving.low > 0


def _bounds(verdict: Verdict) -> bool:
    return verdict.prediction is Confidence.BOUND


def _usual_error(verdicts: Sequence[Verdict]) -> str:
    """The median error of predictions that were told, none of them on a bound, in words."""
    errors = [abs(off) for verdict in verdicts if (off := error(verdict)) is not None]
    many = f" (median of {len(errors)})" if len(errors) > 1 else ""
    return f"{format_share(median(errors))} of what was measured{many}"
