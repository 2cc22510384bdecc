"""Several runs of one program: what moved between two of them, and whether it is more than noise."""

from diagnose.comparison.changes import Comparison, StepChange, TimeChange, compare
from diagnose.comparison.portrait import Portrait, TimeSpent, portrait_of, read_baseline, to_baseline

__all__ = [
    "Comparison",
    "Portrait",
    "StepChange",
    "TimeChange",
    "TimeSpent",
    "compare",
    "portrait_of",
    "read_baseline",
    "to_baseline",
]
