"""How a watched program ended: the exit code of `diagnose`, and a word on it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from diagnose.collect.inside.hooks import inductor_cache_workaround
from diagnose.collect.records import END
from diagnose.errors import Cancelled, ProgramFailed
from diagnose.observe import Observation
from diagnose.report.style.vocabulary import how_it_ended
from diagnose.units import printable

INTERRUPTED = Cancelled.exit_code
PROGRAM_FAILED = ProgramFailed.exit_code
_SILENT = (-signal.SIGSEGV, -signal.SIGBUS)
"""Ends of a program that leave no word of it."""


def error_of(run: Path) -> str:
    """The exception that ended the program, as the first rank that failed of one left it; empty where none did."""
    for path in sorted(run.glob(f"rank*/{END}")):
        try:
            error = json.loads(path.read_bytes()).get("error")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(error, str) and error:
            return printable(error)
    return ""


def judge_exit(seen: Observation, cancelled: bool, error: str = "") -> tuple[int, str]:
    """Exit code and a word on how the program ended; `error` is the exception that it ended of."""
    outcome = seen.outcome
    if cancelled or outcome.interrupted:
        return INTERRUPTED, "interrupted"
    if outcome.returncode == 0 or outcome.stopped:
        return 0, ""
    how = how_it_ended(outcome.returncode)
    if ran_out_of_memory(seen):
        return PROGRAM_FAILED, f"the program ran out of the device's memory, and ended with {how}"
    if _has_site(seen, inductor_cache_workaround.DIED):
        return PROGRAM_FAILED, f"the program failed with {how}: {inductor_cache_workaround.REMEDY}"
    if error:
        return PROGRAM_FAILED, f"the program failed: {error}; {how}"
    where = ", which says nothing: PYTHONFAULTHANDLER=1 has Python say where" if outcome.returncode in _SILENT else ""
    return PROGRAM_FAILED, f"the program failed with {how}{where}"


def ran_out_of_memory(seen: Observation) -> bool:
    """Whether the program ended because an allocation found no room."""
    return _has_site(seen, "out of memory")


def _has_site(seen: Observation, kind: str) -> bool:
    """Whether the program left a site of this kind."""
    return any(site.kind == kind for trace in seen.traces for site in trace.sites)
