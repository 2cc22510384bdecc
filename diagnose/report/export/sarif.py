"""The findings as SARIF 2.1.0, which code hosts and editors show at their lines.

Schema: OASIS, Static Analysis Results Interchange Format 2.1.0 (2020). High findings are errors, medium ones warnings,
others notes. Files below the program's folder are given relative to `%SRCROOT%`, as code hosts want them.

Every result has a file and a line, without which GitHub's code scanning refuses the whole log ("expected at least one
location"). What no line of the program stands for is shown at the head of its script, of the recording where no script
is known, and says so.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import msgspec

import diagnose
from diagnose.model import Finding, Place, Severity
from diagnose.report import Report, Subject, as_state
from diagnose.report.style.paths import relative_path
from diagnose.report.wording.phrases import gain
from diagnose.session import State

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_SHELL = re.compile("-[a-z]*c")
"""The option of a shell that its command line follows."""
_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning"}


def render(subject: Subject) -> str:
    """One log with one run; without a diagnosis, a run without results."""
    state = as_state(subject)
    findings = state.diagnosis.findings if state.diagnosis else ()
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    root = state.started.cwd if state.started else None
    driver: dict[str, Any] = {"name": "diagnose", "version": diagnose.__version__, "rules": [*map(_rule, rules)]}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, rules.index(finding.rule), root, _whole(state)) for finding in findings],
    }
    if state.verdicts:
        run["properties"] = {"fixes": msgspec.to_builtins(state.verdicts)}
    if root is not None:
        run["originalUriBaseIds"] = {"%SRCROOT%": {"uri": f"{PurePath(root).as_uri()}/"}}
    return log_of(run)


def log_of(run: dict[str, Any]) -> str:
    """Return the text of a log with one run."""
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _rule(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": name.replace("-", " ")},
        "help": {"text": f"`diagnose explain {name}` says what it finds, why it costs and how it is proven."},
    }


def _whole(state: State) -> str:
    """The file that stands for the whole program: its script, else the recording."""
    words = _words(state.started.program) if state.started else []
    scripts = (word for word in words if word.endswith(".py") and not word.startswith("-"))
    recordings = state.diagnosis.source if state.diagnosis else ()
    return next(scripts, next(iter(recordings), "") or "program")


def _words(line: str) -> list[str]:
    """The words of a command line; in the place of a line for a shell (`bash -c "python train.py"`) that line's."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        return []
    found: list[str] = []
    for before, word in pairwise(["", *words]):
        found += _words(word) if _SHELL.fullmatch(before) else [word]
    return found


def _result(finding: Finding, rule: int, root: str | None, whole: str) -> dict[str, Any]:
    places = [place for place in finding.where if place.file] or [Place(whole, 0)]
    rank = "" if finding.rank is None else f" (rank {finding.rank})"
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": f"{finding.summary.rstrip('.')}{rank}. Gives back: {gain(finding)}."},
        "locations": [location(place, root) for place in places],
        "properties": {
            "recoverable_ns": finding.recoverable_ns,
            "share": finding.share,
            "confidence": finding.confidence,
        },
    }


def location(place: Place, root: str | None) -> dict[str, Any]:
    """Return a place as SARIF has it; files below `root` relative to that."""
    name = PurePath(relative_path(place.file, root))
    artifact = {"uri": name.as_uri()} if name.is_absolute() else {"uri": _relative(name), "uriBaseId": "%SRCROOT%"}
    region: dict[str, Any] = {"startLine": max(place.line, 1)}
    if place.code:
        region["snippet"] = {"text": place.code}
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    if place.line <= 0:
        location["message"] = {"text": "Which line of it is not known."}
    if place.function:
        location["logicalLocations"] = [{"fullyQualifiedName": place.function, "kind": "function"}]
    return location


def _relative(name: PurePath) -> str:
    """The path as a URI reference: what is no letter, digit or mark is percent-encoded."""
    return (PurePath("/") / name).as_uri().removeprefix("file:///")


REPORT = Report("sarif", ".sarif", render)
