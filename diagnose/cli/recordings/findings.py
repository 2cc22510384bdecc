"""The common end of `run`, `fix` and `analyze`: the printed diagnosis and the exit code of `--fail-on`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace

from diagnose.model import Diagnosis, Facts, Severity


def print_diagnosis(diagnosis: Diagnosis, as_json: bool, watched: Iterable[Facts] = ()) -> str:
    """The diagnosis as text for this terminal, or as the JSON contract. `watched` is known of processes of live runs,
    which saw whether there is a device.
    """
    from diagnose.report import as_state
    from diagnose.report.export import contract
    from diagnose.report.terminal import text

    if as_json:
        return contract.render(diagnosis)
    state = replace(as_state(diagnosis), facts=dict(enumerate(watched)))
    return text.render(state, width=terminal_width(), colour=wants_colour())


def exit_code_of(diagnosis: Diagnosis, fail_on: str | None) -> int:
    """1 when a finding is at least as severe as `fail_on`, else 0."""
    if fail_on is None:
        return 0
    floor = Severity(fail_on).rank
    return int(any(finding.severity.rank <= floor for finding in diagnosis.findings))


def terminal_width() -> int:
    """Columns to write for: the terminal's, at most 120; 100 where stdout is no terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120) if sys.stdout.isatty() else 100


def wants_colour() -> bool:
    """Whether stdout is a terminal whose user has not asked for no colour (https://no-color.org)."""
    import os

    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
