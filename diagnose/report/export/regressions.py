"""The regressions between two commits for code hosts: SARIF 2.1.0, and workflow commands of GitHub Actions."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import diagnose
from diagnose.model import Place
from diagnose.regressions import Checked, Difference
from diagnose.report.export.github import escaped
from diagnose.report.export.sarif import location, log_of


def as_commands(checked: Checked) -> str:
    """Return a warning for each regression and a notice for each other difference, at their lines."""
    if not checked.differences:
        return "::notice title=diagnose::a training step costs what it did\n"
    return "".join(f"{_command(one)}\n" for one in checked.differences)


def _command(one: Difference) -> str:
    properties = {"file": one.file, "line": str(one.line)} if one.file else {}
    properties["title"] = f"diagnose: {one.kind}"
    listed = ",".join(f"{name}={escaped(value, ':,')}" for name, value in properties.items())
    return f"::{'warning' if one.is_regression else 'notice'} {listed}::{escaped(one.message)}"


def as_sarif(checked: Checked) -> str:
    """Return one log with one run: regressions are warnings, other differences notes."""
    kinds = list(dict.fromkeys(one.kind for one in checked.differences))
    rules = [{"id": f"regression-{kind}", "shortDescription": {"text": f"more {kind}"}} for kind in kinds]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "diagnose", "version": diagnose.__version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"{PurePath(checked.root).as_uri()}/"}},
        "results": [_result(one, kinds, checked) for one in checked.differences],
    }
    return log_of(run)


def _result(one: Difference, kinds: list[str], checked: Checked) -> dict[str, Any]:
    return {
        "ruleId": f"regression-{one.kind}",
        "ruleIndex": kinds.index(one.kind),
        "level": "warning" if one.is_regression else "note",
        "message": {"text": f"{one.message}."},
        "locations": [location(Place(one.file or checked.script, one.line), checked.root)],
    }
