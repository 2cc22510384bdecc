"""Whether a run is healthy, and the sentence for one in which nothing weighty was found.

is_quiet(diagnosis)      # no finding is high or medium
is_healthy(diagnosis)    # and that is so because it is near the practical ceiling
quiet_news(diagnosis)
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import Diagnosis, Finding, Severity
from diagnose.report.style.step_bar import Slice, is_recorded, slices
from diagnose.report.style.vocabulary import named_count
from diagnose.report.wording.phrases import gain, is_priced
from diagnose.report.wording.run_title import is_one_piece
from diagnose.units import format_ns, format_share

WORTH = 0.05
"""The part of a step from which on a finding is worth attention, as severities have it."""
UNEXPLAINED = 0.20
"""A step that is less compute than the rest of this, without a finding, is not called healthy: it is not understood."""


def is_quiet(diagnosis: Diagnosis) -> bool:
    """Whether steps were seen and nothing found could give back 5 % of them: no finding is high or medium."""
    worth = (Severity.HIGH, Severity.MEDIUM)
    return diagnosis.steps.count > 0 and not any(finding.severity in worth for finding in diagnosis.findings)


NEAR = 0.10
"""How much of a step may lie above the ceiling of its training, for the run to be called healthy: what the practical
ceiling itself is off by, as its rates are those of the best kernels."""


def is_healthy(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis is quiet because the run is near its ceiling, not because nothing is known of it."""
    known = not _has_unpriced(diagnosis) and _doubtful(diagnosis) is None
    left = _above_ceiling(diagnosis)
    return is_quiet(diagnosis) and _computes(diagnosis) and known and left is not None and left <= NEAR


def _above_ceiling(diagnosis: Diagnosis) -> float | None:
    """The share of the step above the ceiling of a program that trains the same; None where there is no ceiling."""
    ladder = diagnosis.ladder
    if ladder is None or ladder.ceiling is None:
        return None
    return max(0.0, 1 - ladder.ceiling.same_training_ns / ladder.step_ns)


def _computes(diagnosis: Diagnosis) -> bool:
    spent = diagnosis.accounting
    return spent.compute >= (1 - UNEXPLAINED) * spent.total_ns


def _has_unpriced(diagnosis: Diagnosis) -> bool:
    """Whether something was found whose cost is not known: memory that grows, a run that died."""
    return any(not is_priced(finding) for finding in diagnosis.findings)


def _doubtful(diagnosis: Diagnosis) -> Finding | None:
    """Return what could give back that much, were it not for the noise of the steps or for what the profiler itself
    costs."""
    most = max(filter(is_priced, diagnosis.findings), key=lambda one: one.estimate_share, default=None)
    return most if most is not None and most.estimate_share >= WORTH else None


def quiet_news(diagnosis: Diagnosis) -> str:
    """Return the message for a run without a weighty finding, and what it rests on."""
    if not is_recorded(diagnosis.accounting):
        return (
            "Cannot say what these steps do: only their length was recorded, not the work in them. "
            "See the warnings for why."
        )
    healthy = _computes(diagnosis)
    nothing = "Healthy: nothing" if is_healthy(diagnosis) else "Nothing"
    known = " whose cost is known" if _has_unpriced(diagnosis) else ""
    doubtful = _doubtful(diagnosis)
    sure = "could" if doubtful is None else "is sure to"
    said = f"{nothing} found here{known} {sure} give back 5 % of a step."
    if doubtful is not None:
        rank = "" if doubtful.rank is None else f" on rank {doubtful.rank}"
        said += f" `{doubtful.rule}`{rank} may: {gain(doubtful)}."
    spent = diagnosis.accounting
    if spent.total_ns > 0:
        length, share = format_ns(spent.total_ns), format_share(spent.compute / spent.total_ns)
        whole = f"the {length} counted" if is_one_piece(diagnosis) else f"each {length} step"
        part = f"{'' if healthy else 'only '}{format_ns(spent.compute)} ({share})" if spent.compute else "nothing"
        said += f" Of {whole}, {part} is compute."
    if healthy and doubtful is None:
        said += _beyond(diagnosis)
    if not healthy and doubtful is None:
        rest = [part for part in slices(spent) if part.kind != "compute"]
        if rest:
            largest = max(rest, key=lambda part: part.ns)
            said += f" {_open_question(diagnosis, largest, 'No rule explains', last=' yet')}"
    if diagnosis.cannot_tell:
        said += f" {named_count(len(diagnosis.cannot_tell), 'rule')} could not decide on this recording."
    return said


def unexplained(diagnosis: Diagnosis) -> str:
    """Return what no finding claims of the average step, class by class, where that is much of it; empty for a quiet
    run, whose own message says it."""
    left, mean_ns = diagnosis.unclaimed, diagnosis.steps.mean_ns
    if left is None or not mean_ns or is_quiet(diagnosis):
        return ""
    parts = [replace(part, ns=part.ns // diagnosis.steps.count) for part in slices(left) if part.kind != "compute"]
    large = sorted((part for part in parts if part.ns >= UNEXPLAINED * mean_ns), key=lambda part: -part.ns)
    return " ".join(
        _open_question(
            diagnosis, part, "No finding explains", f" ({format_share(part.ns / mean_ns)} of the average traced step)"
        )
        for part in large
    )


def _open_question(diagnosis: Diagnosis, part: Slice, nothing: str, of_step: str = "", last: str = "") -> str:
    """Words on a class of time that nothing explains, or on what it would take to."""
    if part.kind == "exposed_comm" and any(answer.rule == _OF_OTHER_RANKS for answer in diagnosis.cannot_tell):
        return (
            f"Whether the {format_ns(part.ns)} of {part.look.label}{of_step} are waiting for other ranks, "
            "only their recordings tell: `diagnose analyze FOLDER` reads those of all ranks."
        )
    if part.kind == "unknown":
        return (
            f"The recording does not say what was waited for in the {format_ns(part.ns)} of {part.look.label}{of_step}."
        )
    if is_one_piece(diagnosis):
        return (
            f"The {format_ns(part.ns)} of {part.look.label}{of_step} may be start-up, which is paid once: nothing in "
            "the recording repeats. Record several steps after the first ones."
        )
    why = ": work was launched, and nothing that was recorded holds it up" if part.kind == "dependency" else ""
    if any(answer.rule == _OF_CLASS.get(part.kind) for answer in diagnosis.cannot_tell):
        why = f"; `{_OF_CLASS[part.kind]}` could not decide"
    return f"{nothing} the {format_ns(part.ns)} of {part.look.label}{of_step}{last}{why}."


_OF_OTHER_RANKS = "straggler"
"""The rule that tells waiting for a late rank from communication."""

_OF_CLASS = {
    "allocator": "allocator-churn",
    "compile": "recompiling",
    "dispatch": "launch-bound",
    "exposed_copy": "exposed-copies",
    "input": "input-bound",
    "launch": "launch-bound",
    "python": "python-stall",
    "sync": "host-sync",
}
"""The rule whose subject a class of time is."""


def _beyond(diagnosis: Diagnosis) -> str:
    """Return what of the step lies above the practical ceiling, and that nothing explains it; empty where little."""
    left, ladder = _above_ceiling(diagnosis), diagnosis.ladder
    if left is None or ladder is None or ladder.ceiling is None:
        return f" How near that comes to what the hardware can do is not known: {_why_no_ceiling(diagnosis)}."
    if left <= NEAR:
        return ""
    parts = " and ".join(
        f"{format_ns(ns)} of {words}" for words, ns in ladder.apart.items() if ns > NEAR * ladder.step_ns
    )
    least = format_ns(ladder.ceiling.same_training_ns)
    said = f" A program that computes the same could take {least}, {format_share(left)} less"
    return f"{said}{f': {parts} lie above the practical ceiling' if parts else ''}. No rule explains it yet."


def _why_no_ceiling(diagnosis: Diagnosis) -> str:
    if diagnosis.work is not None:
        return f"of {format_share(1 - diagnosis.work.modelled)} of the time of its products, shapes are missing"
    why = "operators' shapes were not recorded" if diagnosis.has_device else "no work of a device was recorded"
    return f"{why}, or the device's peak is not known"
