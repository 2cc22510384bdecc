"""Compares what the first steps of a program cost at two commits, counted on the CPU.

    two commits ──▶ snapshot ──▶ counting ──▶ costs ──▶ comparison ──▶ Regressions
                    (copies)     (processes)

`check` asks `comparison` a second time, of runs under another seed, where the first says that something became worse.
"""

from __future__ import annotations

from diagnose.regressions.check import Checked, check_commits
from diagnose.regressions.comparison import Difference

__all__ = ["Checked", "Difference", "check_commits"]
