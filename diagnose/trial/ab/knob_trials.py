"""Settings of one fix against each other: short trials, in which the process of the yardstick is kept, resting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.model import Interval
from diagnose.program import Program
from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.arm_protocol import Starter
from diagnose.trial.ab.knob_search import ReferenceSettingFailed
from diagnose.trial.ab.result import ORIGINAL
from diagnose.trial.ab.reused_arm import ReusedArm
from diagnose.trial.ab.startup_cost import StartupCosts
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.schedule import Schedule


@dataclass
class KnobTrials:
    """Programs that differ in a setting. Close it in the end."""

    candidates: Sequence[Program]
    starter: Callable[[Program], Starter]
    trial: Callable[[], ABTrial]
    """The trial as the bench would run one now."""
    schedule: Schedule
    compiling: Collection[Path]
    """Programs whose start compiles something, by root."""
    startups: StartupCosts
    _kept: dict[int, ReusedArm] = field(default_factory=dict)

    def compare(self, yardstick: int, number: int, pairs: int) -> Interval | None:
        """Return the saving of one setting relative to another; None where there is no answer. Raises
        YardstickFailed.
        """
        for other in self._kept.keys() - {yardstick}:
            self._kept.pop(other).end()
        against, tried = self.candidates[yardstick], self.candidates[number]
        trial = replace(
            self.trial(), schedule=replace(self.schedule.sweep(), pairs=pairs), resolution=None, trace=False
        )
        if not {against.root, tried.root}.isdisjoint(self.compiling):
            trial = replace(trial, start_limit_ns=self.schedule.start_limit_ns)
        arm = self._kept.setdefault(yardstick, ReusedArm(self.starter(against)))
        # Where two do not fit, a resting one would hold the memory that the other needs.
        found = compare(trial, self.starter(against) if trial.fits is False else arm.start, self.starter(tried))
        if found.crowded and not found.pairs:  # a larger setting may fit alone
            self._kept.pop(yardstick).end()
            found = compare(replace(trial, fits=False), self.starter(against), self.starter(tried))
        self.startups.saw(found, against, tried)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            raise ReferenceSettingFailed
        return found.saving if found.failed is None else None

    def close(self) -> None:
        """End what rests."""
        for arm in self._kept.values():
            arm.end()
