"""The findings as workflow commands of GitHub Actions: printed in a job, they become annotations at their lines.

High findings are errors, medium ones warnings, others notices. Form: "Workflow commands for GitHub Actions", GitHub's
documentation.
"""

from __future__ import annotations

from diagnose.model import Finding, Severity, Verdict
from diagnose.report import Report, Subject, as_state
from diagnose.report.sections.verdict_table import is_idle, look
from diagnose.report.style.paths import relative_path
from diagnose.report.wording.phrases import gain
from diagnose.session import State

_COMMANDS = {Severity.HIGH: "error", Severity.MEDIUM: "warning"}


def render(subject: Subject) -> str:
    """A line for each finding, at the first of its places, and one for each fix that was tried."""
    state = as_state(subject)
    root = state.started.cwd if state.started else None
    if state.diagnosis is None:
        commands = ["::error title=diagnose::nothing was diagnosed"]
    elif not state.diagnosis.findings:
        commands = ["::notice title=diagnose::nothing was found that slows this run"]
    else:
        commands = [_command(finding, root) for finding in state.diagnosis.findings]
    commands += [_fix(state, verdict) for verdict in state.verdicts if not is_idle(verdict)]
    return "".join(f"{command}\n" for command in commands)


def _command(finding: Finding, root: str | None) -> str:
    properties = {}
    place = finding.where[0] if finding.where else None
    if place is not None:
        properties["file"] = relative_path(place.file, root)
        if place.line > 0:
            properties["line"] = str(place.line)
    properties["title"] = finding.rule if finding.rank is None else f"{finding.rule} on rank {finding.rank}"
    listed = ",".join(f"{name}={escaped(value, ':,')}" for name, value in properties.items())
    said = escaped(f"{finding.summary.rstrip('.')}; gives back: {gain(finding)}")
    return f"::{_COMMANDS.get(finding.severity, 'notice')} {listed}::{said}"


def _fix(state: State, verdict: Verdict) -> str:
    title = escaped(f"{verdict.fixer}: {look(state, verdict).label}", ":,")
    return f"::notice title={title}::{escaped(verdict.summary)}"


def escaped(text: str, more: str = "") -> str:
    """Return text as a workflow command can hold it; `more` characters are those that end a property."""
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


REPORT = Report("github", ".txt", render)
