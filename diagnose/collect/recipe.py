"""The recipe of a run: what to collect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.collect.traced_ranks import SOME
from diagnose.units import NS_PER_S

WAITING = 6
"""One part in so many of a budget may pass until steps are steady."""
LOGGING = 40
"""One part in so many, while the log grows."""
ENDING_S = 4.0
"""Seconds kept to end the program and to read what it left, before the end of a budget that watching has used up."""


@dataclass(frozen=True)
class Recipe:
    """How a program is watched."""

    steps: int = 4
    """Steps to trace, once steps are steady."""
    warmup: int = 10
    """Steps before that at least."""
    stop_after_trace: bool = False
    """End the program once the trace is written and its log is long enough."""
    log_steps: int = 120
    """Steps after which it is: what comes every so many steps shows in the log alone."""
    most_log_s: float = 4.0
    """Seconds after the trace, the same."""
    most_warmup_steps: int = 200
    """Steps after which the trace is taken even of a program that is never steady."""
    most_warmup_s: float = 60.0
    """Seconds after its first step, the same."""
    most_s: float | None = None
    """Seconds after its start, when the program is ended, whatever was seen of it."""
    ranks: str | tuple[int, ...] = SOME
    """The ranks of a job that are traced: `some`, `all`, or these (`diagnose.collect.traced_ranks`)."""

    mode: str = "watch"
    """The mode of the watched process: `watch`, or `heartbeat` for runs of days (`collect.inside.modes`)."""

    heartbeat_s: float = 1.0
    """Seconds between two lines of mode `heartbeat`."""

    @classmethod
    def brief(cls) -> Recipe:
        """Just enough to know the program: its files, the calls that matter, the machine. No time of it is used."""
        return cls(steps=1, warmup=1, stop_after_trace=True, log_steps=0, most_log_s=0.0, most_warmup_steps=3)

    def within(self, budget_ns: int | None) -> Recipe:
        """The recipe where watching is the first part of something that must end within a budget.

        A program whose steps never settle would spend most of it on waiting, and shows what keeps them from settling
        in any few steps.
        """
        if budget_ns is None:
            return self
        budget_s = budget_ns / NS_PER_S
        return replace(
            self,
            most_warmup_s=min(self.most_warmup_s, budget_s / WAITING),
            most_log_s=min(self.most_log_s, budget_s / LOGGING),
        )

    def ending_within(self, budget_ns: int | None) -> Recipe:
        """Return the recipe limited to a budget, in ns, after which the program is ended whatever was seen of it."""
        if budget_ns is None:
            return self
        return replace(self.within(budget_ns), most_s=max(1.0, budget_ns / NS_PER_S - ENDING_S))

    def to_json(self, folder: Path) -> dict[str, Any]:
        """Return the JSON that the watched process reads; `folder` is the run folder."""
        return {
            "mode": self.mode,
            "folder": str(folder.resolve()),
            "steps": self.steps,
            "warmup": self.warmup,
            "most_warmup_steps": self.most_warmup_steps,
            "most_warmup_ns": round(self.most_warmup_s * NS_PER_S),
            "heartbeat_ns": round(self.heartbeat_s * NS_PER_S),
            "ranks": self.ranks if isinstance(self.ranks, str) else list(self.ranks),
        }
