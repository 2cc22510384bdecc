"""Two portraits side by side: what moved, and whether by more than noise. Pure.

    compare(before, after)  →  Comparison

The noise of a median is two standard errors of it, from the spread of the single steps, of which those that take turns
are told apart where both runs show it, or from the spread of parts of the run where that is wider. Two processes of
one program differ besides (memory layout, core, clock): `PROCESSES` is a third part of the noise, beside those of the
two runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from diagnose.comparison.identity import differences
from diagnose.comparison.portrait import Portrait, TimeSpent
from diagnose.measure.views.noise import common_period, usual, usual_uncertain_by
from diagnose.model import Accounting, Finding

PROCESSES = 0.01
"""Runs of one program that differ by less than this part of the step are alike: what a fix must bring to be kept."""
_PARTS = 8
"""The number of parts of a run: fewer estimate their spread badly."""
_FEWEST_OF_A_PART = 20
_WORTH_TELLING = 0.002
"""The share of the step by which a kernel or operator has to move to be listed."""


@dataclass(frozen=True, slots=True)
class TimeChange:
    """One kernel, operator or class of time. Times are ns of a mean step; None: it is not there."""

    name: str
    before: TimeSpent | None
    after: TimeSpent | None

    @property
    def delta_ns(self) -> float:
        """The change in time per step; negative where less time is spent."""
        return (self.after.ns if self.after else 0.0) - (self.before.ns if self.before else 0.0)


@dataclass(frozen=True, slots=True)
class StepChange:
    """The step, before and after."""

    before_ns: float
    after_ns: float
    noise: float
    """The share of the step by which two runs must differ to be told apart."""

    @property
    def change(self) -> float:
        """The relative change of the step: 0.1 is a step 10 % longer, negative values are shorter."""
        return self.after_ns / self.before_ns - 1

    @property
    def verdict(self) -> str:
        """`slower`, `faster` or `no change`."""
        if abs(self.change) <= self.noise:
            return "no change"
        return "slower" if self.change > 0 else "faster"


@dataclass(frozen=True)
class Comparison:
    """The differences of the second run from the first."""

    before: Portrait
    after: Portrait
    obstacles: tuple[str, ...]
    """Why the two cannot be compared; empty where they can."""
    notes: tuple[str, ...]
    step: StepChange | None
    """None without steps, or where they cannot be compared."""
    classes: tuple[TimeChange, ...] = ()
    """The classes of the accounting, in its order, without those that took no time in either."""
    kernels: tuple[TimeChange, ...] = ()
    operators: tuple[TimeChange, ...] = ()
    """The operators that moved by something that matters, the farthest first."""
    resolved: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    lasting: tuple[tuple[Finding, Finding], ...] = ()

    def regressed_by(self, share: float) -> bool:
        """Whether the step became longer by more than this part of it, beyond noise."""
        return self.step is not None and self.step.verdict == "slower" and self.step.change > share


def compare(before: Portrait, after: Portrait) -> Comparison:
    """Everything that moved between two runs."""
    obstacles, notes = _obstacles(before, after), _notes(before, after)
    if obstacles or not before.step_ns or not after.step_ns:
        missing = [f"no step was found in the {word} run" for word, one in _named(before, after) if not one.step_ns]
        return Comparison(before, after, (*obstacles, *missing), notes, None)
    period = common_period(before.step_ns, after.step_ns)
    step = StepChange(
        usual(before.step_ns, period),
        usual(after.step_ns, period),
        math.hypot(PROCESSES, _noise(before.step_ns, period), _noise(after.step_ns, period)),
    )
    resolved, new, lasting = _findings(before.findings, after.findings)
    least_ns = _WORTH_TELLING * step.before_ns
    return Comparison(
        before=before,
        after=after,
        obstacles=(),
        notes=notes,
        step=step,
        classes=_classes(before.accounting, after.accounting),
        kernels=_time_changes(before.kernels, after.kernels, least_ns),
        operators=_time_changes(before.operators, after.operators, least_ns),
        resolved=resolved,
        new=new,
        lasting=lasting,
    )


def _named(before: Portrait, after: Portrait) -> Sequence[tuple[str, Portrait]]:
    return (("first", before), ("second", after))


def _obstacles(before: Portrait, after: Portrait) -> tuple[str, ...]:
    found = []
    if before.device != after.device and before.device is not None and after.device is not None:
        found.append(f"the devices differ: {before.device} and {after.device}")
    if bool(before.accounting.compute and before.kernels) != bool(after.accounting.compute and after.kernels):
        found.append("only one of them recorded the device's work")
    if before.ranks != after.ranks:
        found.append(f"the numbers of ranks differ: {before.ranks} and {after.ranks}")
    return (*found, *differences(before.identity, after.identity).grave)


def _notes(before: Portrait, after: Portrait) -> tuple[str, ...]:
    found = list(differences(before.identity, after.identity).slight)
    unknown = [word for word, one in _named(before, after) if not one.identity.is_known]
    if unknown:
        found.append(
            f"the {' and the '.join(unknown)} run's layers are unknown (no shapes were recorded, or the program is "
            "compiled): model and batch are assumed to be the same"
        )
    if before.traced != after.traced:
        word = "first" if before.traced else "second"
        found.append(f"the steps of the {word} run were traced, which lengthens them; those of the other were not")
    short = [word for word, one in _named(before, after) if 0 < len(one.step_ns) < 3]
    if short:
        runs = "the two runs have" if len(short) > 1 else f"the {short[0]} run has"
        found.append(f"{runs} too few steps to tell how much they vary")
    return tuple(found)


def _noise(lengths_ns: Sequence[int], period: int) -> float:
    """Return the relative uncertainty of the usual step; 0 where there are too few steps to tell."""
    uncertain_ns, usual_ns = usual_uncertain_by(lengths_ns, period), usual(lengths_ns, period)
    if not usual_ns:
        return 0.0
    return max(uncertain_ns or 0.0, _drift_ns(lengths_ns, period)) / usual_ns


def _drift_ns(lengths_ns: Sequence[int], period: int) -> float:
    """Two standard errors of the usual step from the spread of parts of the run; 0 for a run too short for parts.

    Steps near each other are alike where the pace of a run wanders (clocks, caches, other programs): then they tell
    less than as many independent ones would, and another run of the same program wanders elsewhere. The spread of
    batch means counts that.
    """
    size = len(lengths_ns) // _PARTS // period * period
    if size < _FEWEST_OF_A_PART:
        return 0.0
    parts = [usual(lengths_ns[size * part : size * (part + 1)], period) for part in range(_PARTS)]
    return 2 * stdev(parts) / math.sqrt(_PARTS)


def _classes(before: Accounting, after: Accounting) -> tuple[TimeChange, ...]:
    first, second = _times(before), _times(after)
    names = list(dict.fromkeys([*first, *second]))
    pairs = ((name, first.get(name, 0), second.get(name, 0)) for name in names)
    return tuple(TimeChange(name, TimeSpent(1, was), TimeSpent(1, now)) for name, was, now in pairs if was or now)


def _times(accounting: Accounting) -> dict[str, int]:
    busy = {
        "compute": accounting.compute,
        "exposed_comm": accounting.exposed_comm,
        "exposed_copy": accounting.exposed_copy,
    }
    return {**busy, **accounting.idle}


def _time_changes(
    before: Mapping[str, TimeSpent], after: Mapping[str, TimeSpent], least_ns: float
) -> tuple[TimeChange, ...]:
    changes = [TimeChange(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    telling = [change for change in changes if abs(change.delta_ns) >= least_ns]
    return tuple(sorted(telling, key=lambda change: (-abs(change.delta_ns), change.name)))


def _findings(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[tuple[Finding, Finding], ...]]:
    """Findings that are gone, that are new, and that are in both: the same rule counts as the same finding."""
    first = {finding.rule: finding for finding in reversed(before)}
    second = {finding.rule: finding for finding in reversed(after)}
    return (
        tuple(finding for finding in before if finding.rule not in second and finding is first[finding.rule]),
        tuple(finding for finding in after if finding.rule not in first and finding is second[finding.rule]),
        tuple((first[rule], second[rule]) for rule in dict.fromkeys(one.rule for one in after) if rule in first),
    )
