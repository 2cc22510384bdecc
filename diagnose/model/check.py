"""The gates' answers about one fixer's edit, without any timing."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diagnose.model.finding import Scalar


class GateAnswer(enum.StrEnum):
    """A gate's answer about an edit."""

    PASSED = "passed"
    REFUSED = "refused"
    UNVERIFIED = "unverified"
    """The gate could not compare, or there was nothing to compare."""


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One gate's answer."""

    name: str
    answer: GateAnswer
    detail: str
    """One sentence: what was compared, or the first difference."""


@dataclass(frozen=True)
class EditCheck:
    """One fixer, asked about one program."""

    fixer: str
    detail: str
    """A summary of the edit; of a fixer without an edit its advice, or why there is none."""
    diff: str = ""
    """Empty where the fixer has no edit."""
    gates: tuple[GateCheck, ...] = ()
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    """The setting of the fixer's knobs that was checked."""
    settings: Sequence[Mapping[str, Scalar]] = ()
    """All settings that lead to an edit."""

    @property
    def gate(self) -> GateAnswer:
        """The answer of all gates together: one that refuses is enough, and all have to pass."""
        answers = {one.answer for one in self.gates}
        if GateAnswer.REFUSED in answers:
            return GateAnswer.REFUSED
        return GateAnswer.PASSED if answers == {GateAnswer.PASSED} else GateAnswer.UNVERIFIED
