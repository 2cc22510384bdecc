"""A project's settings about findings: `[tool.diagnose]` in its `pyproject.toml`, and comments at its lines.

    [tool.diagnose.ignore]
    host-sync = "the loss is read once an epoch"

    total += loss.item()  # diagnose: ignore[host-sync] read once an epoch

A finding that is ignored is not among the findings, asks for no fix and fails no gate; a warning names it with the
reason. A comment holds for its line: a finding goes when all of its lines have one. Code is never loaded from here:
whoever looks at a stranger's recording in a stranger's folder runs nothing of it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.errors import InputError
from diagnose.model import Diagnosis, Finding

FILE = "pyproject.toml"
_COMMENT = re.compile(r"#\s*diagnose:\s*ignore\[([a-z0-9, -]+)\]\s*(.*)$")
_KEYS = ("ignore",)


@dataclass(frozen=True)
class Settings:
    """A project's settings; empty by default."""

    ignored: Mapping[str, str] = field(default_factory=dict)
    """Rules whose findings are ignored, each with its reason."""


def settings_of(folder: Path) -> Settings:
    """Read the settings of the nearest `pyproject.toml` at or above a folder that has a `[tool.diagnose]`.

    Raises InputError where that cannot be understood.
    """
    for place in (folder, *folder.parents):
        path = place / FILE
        if path.is_file():
            table = _table(path)
            if table is not None:
                return _settings(path, table)
    return Settings()


def drop_ignored(diagnosis: Diagnosis, settings: Settings) -> Diagnosis:
    """The diagnosis without the findings that the project ignores, and a warning for each."""
    kept, said = [], []
    for finding in diagnosis.findings:
        reason = settings.ignored.get(finding.rule) or _reason_at_lines(finding)
        if reason is None:
            kept.append(finding)
        else:
            said.append(f"{finding.rule} is ignored: {reason}")
    if not said:
        return diagnosis
    return replace(diagnosis, findings=tuple(kept), warnings=(*diagnosis.warnings, *dict.fromkeys(said)))


def _table(path: Path) -> object:
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # it is not ours to complain of: other tools do
    return tool.get("diagnose") if isinstance(tool, dict) else None


def _settings(path: Path, table: object) -> Settings:
    if not isinstance(table, dict):
        raise InputError(path, "[tool.diagnose] is no table")
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        raise InputError(path, f"[tool.diagnose] has no {unknown[0]!r}; it may have {', '.join(_KEYS)}")
    ignored = table.get("ignore", {})
    if not isinstance(ignored, dict):
        raise InputError(path, '[tool.diagnose.ignore] names rules with reasons: host-sync = "read once an epoch"')
    for rule, reason in ignored.items():
        if not (isinstance(reason, str) and reason.strip()):
            raise InputError(path, f"[tool.diagnose.ignore] has no reason for {rule}; write why it is accepted")
    return Settings({rule: reason.strip() for rule, reason in ignored.items()})


def _reason_at_lines(finding: Finding) -> str | None:
    """The reason that the comments at a finding's lines give; None unless all of its lines have one."""
    reasons = [_reason(place.code or "", finding.rule) for place in finding.where]
    known = [reason for reason in reasons if reason]
    if not known or len(known) < len(reasons):
        return None
    first = finding.where[0]
    return f"{known[0]} ({Path(first.file).name}:{first.line})"


def _reason(code: str, rule: str) -> str | None:
    found = _COMMENT.search(code)
    if found is None or rule not in [name.strip() for name in found[1].split(",")]:
        return None
    return found[2].strip() or None
