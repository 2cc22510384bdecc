"""Divides the time of a `diagnose fix` by phase, until the first kept fix, and by measuring against waiting.

    python benchmarks/fix_time.py RUN_FOLDER…

RUN_FOLDER is `.diagnose/runs/<time>-<name>`, of which the journal is read. *Measuring* is the time in which blocks of
steps took turns; a phase lasts until the next one begins. Steady steps are those that were traced: the first kept fix
is counted from there.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnose.model import Decision  # noqa: E402 - from this checkout
from diagnose.session import (  # noqa: E402
    AnyEvent,
    PhaseChanged,
    RunEnded,
    RunStarted,
    TraceWritten,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    read,
)
from diagnose.units import NS_PER_S  # noqa: E402

WATCHING, STARTING, MEASURING, AFTER = "watching", "starting arms", "measuring", "windows, mechanism"


@dataclass
class Times:
    """Nanoseconds by phase, and moments since the start of the command."""

    phases_ns: Counter[str] = field(default_factory=Counter)
    whole_ns: int = 0
    steady_ns: int | None = None
    first_kept_ns: int | None = None

    @property
    def measuring(self) -> float:
        """The share of the time in which blocks took turns."""
        return self.phases_ns[MEASURING] / max(1, self.whole_ns)


def times_of(events: list[AnyEvent]) -> Times:
    """Sums up a journal."""
    found, phase = Times(), WATCHING
    began_ns = last_ns = events[0].at_ns
    for event in events:
        if isinstance(event, RunStarted | RunEnded | PhaseChanged | TrialStarted | TrialBlock | VerdictReached):
            measuring = isinstance(event, TrialBlock) and event.pair > 0  # the first pair comes after the starts
            found.phases_ns[MEASURING if measuring else phase] += event.at_ns - last_ns
            last_ns = event.at_ns
        if isinstance(event, TraceWritten):
            found.steady_ns = found.steady_ns or event.at_ns - began_ns
        if isinstance(event, TrialBlock):
            phase = AFTER
        elif isinstance(event, TrialStarted):
            phase = STARTING
        elif isinstance(event, PhaseChanged) and found.steady_ns is not None:
            phase = event.phase
        kept = isinstance(event, VerdictReached) and event.verdict.decision is Decision.KEPT
        if kept and found.first_kept_ns is None:
            found.first_kept_ns = event.at_ns - began_ns
        found.whole_ns = event.at_ns - began_ns
    return found


def table(found: Times) -> str:
    """Phases, the longest first, and what is asked of them."""
    rows = [f"{ns / NS_PER_S:8.1f} s  {name}" for name, ns in found.phases_ns.most_common() if ns >= NS_PER_S // 10]
    kept = "nothing was kept"
    if found.first_kept_ns is not None:
        since = (
            f", {(found.first_kept_ns - found.steady_ns) / NS_PER_S:.1f} s after steady steps"
            if found.steady_ns
            else ""
        )
        kept = f"first kept fix after {found.first_kept_ns / NS_PER_S:.1f} s{since}"
    return "\n".join([*rows, f"{found.whole_ns / NS_PER_S:8.1f} s  in all, {found.measuring:.0%} measuring; {kept}"])


def main() -> None:
    """Print a table for each run folder."""
    for folder in map(Path, sys.argv[1:]):
        events, _ = read(folder)
        print(f"{folder.name}: {next((e.program for e in events if isinstance(e, RunStarted)), '')}")
        print(table(times_of(events)))


if __name__ == "__main__":
    main()
