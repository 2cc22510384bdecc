"""Runs `diagnose fix` on one program, applies what it made, and keeps its journal, its words and the patch."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rank_job import python_path

_GRACE_S = 90
"""By how much a command may outlast its budget before it is ended."""
_TRIED = ("fixer", "setting", "decision", "summary", "predicted_ns", "prediction", "saving", "saving_ns", "gate")
_Record = dict[str, Any]


def treat(
    script: Path,
    arguments: Sequence[str],
    options: Sequence[str],
    budget_s: float,
    environment: Mapping[str, str],
    out: Path,
    allow: Sequence[str] = ("--allow", "training"),
) -> _Record:
    """Fix the script where it lies. What was tried, what was kept, in how long; `problem` is None if it went well.

    The script is left patched. Below `out` there are then fix.json, fix.log, journal.jsonl.gz, patch.diff.
    """
    out.mkdir(parents=True, exist_ok=True)
    before = script.read_bytes()
    budget = ["--budget", f"{budget_s:.0f}s"]
    words = ["fix", "--plain", "--json", *allow, *budget, *options, script.name, *arguments]
    began = time.monotonic()
    with (out / "fix.json").open("wb") as answer, (out / "fix.log").open("wb") as talk:
        code = _diagnose(words, script.parent, environment, answer, talk, budget_s + _GRACE_S)
    took_s = time.monotonic() - began
    runs = sorted((script.parent / ".diagnose" / "runs").glob("*/journal.jsonl"))
    events = read_journal(runs[-1].read_text()) if runs else []
    record = {"seconds": round(took_s, 1), "problem": None, **told(events), "spans": spans(events)}
    if code != 0:
        last = (out / "fix.log").read_text(errors="replace").strip().splitlines()[-1:]
        record["problem"] = f"exit code {code}: {''.join(last)}"
    record["untouched"] = script.read_bytes() == before
    if runs:
        _keep(runs[-1].parent, out)
    record["applied"] = record["reverts"] = None
    if record["kept"]:
        record["applied"] = apply(script, environment, out)
        record["reverts"] = reverts(script, before, environment, out)
    for path in script.parent.glob("*.py"):
        shutil.copy(path, out)
    return record


def apply(script: Path, environment: Mapping[str, str], out: Path) -> bool:
    """Write the patch of the newest run into the script."""
    with (out / "apply.log").open("ab") as talk:
        return _diagnose(["apply"], script.parent, environment, talk, talk, _GRACE_S) == 0


def reverts(script: Path, before: bytes, environment: Mapping[str, str], out: Path) -> bool:
    """Whether the patch can be taken back to the last byte; the script is left patched, with all that came with it."""
    patched = {path: path.read_bytes() for path in script.parent.glob("*.py")}
    with (out / "apply.log").open("ab") as talk:
        code = _diagnose(["revert"], script.parent, environment, talk, talk, _GRACE_S)
    reverted = script.read_bytes() == before
    for path, text in patched.items():
        path.write_bytes(text)
    return code == 0 and reverted


def _diagnose(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str], answer: Any, talk: Any, limit_s: float
) -> int | None:
    """The exit code; None where it had to be ended."""
    command = [sys.executable, "-m", "diagnose", *words]
    paths = {"PYTHONPATH": os.pathsep.join(python_path())}
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env={**environment, **paths},
        stdin=subprocess.DEVNULL,
        stdout=answer,
        stderr=talk,
        start_new_session=True,
    )
    for number, wait_s in ((signal.SIGINT, limit_s), (signal.SIGKILL, 20)):
        try:
            return child.wait(wait_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, number)
    child.wait()
    return None


def _keep(run: Path, out: Path) -> None:
    """Copy the small files of a run folder."""
    for name in ("patch.diff", "diagnosis.json"):
        if (run / name).exists():
            shutil.copy(run / name, out / name)
    with (run / "journal.jsonl").open("rb") as plain, gzip.open(out / "journal.jsonl.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)


def read_journal(text: str) -> list[_Record]:
    """The events of a journal; a torn last line is left out."""
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def told(events: Sequence[_Record]) -> _Record:
    """Return a journal's account of fixes: all that were judged, those kept, the control and the last runs."""
    record: _Record = {"tried": [], "kept": [], "control": None, "final": None, "device": None, "warnings": []}
    for event in events:
        match event["type"]:
            case "VerdictReached":
                record["tried"].append({name: event["verdict"].get(name) for name in _TRIED})
            case "PatchAccepted":
                record["kept"] = event["fixers"]
            case "ControlMeasured":
                record["control"] = {name: event[name] for name in ("resolution", "pairs", "generations", "step_ns")}
            case "FinalMeasured":
                record["final"] = {name: event.get(name) for name in ("original_ns", "patched_ns", "runs", "gate")}
            case "FactsLearned":
                facts = event["facts"]
                record["device"] = {
                    name: facts.get(name) for name in ("device_name", "torch_version", "driver_version")
                }
            case "Warned":
                record["warnings"].append(event["message"])
    return record


def spans(events: Sequence[_Record]) -> list[tuple[str, float]]:
    """Return a command's phases in order, each with its seconds."""
    marks: list[tuple[str, int]] = []
    block_ended = 0
    for event in events:
        at, before = event["at_ns"], marks[-1][0] if marks else ""
        if event["type"] == "TrialBlock":
            block_ended = at
        elif before.endswith(_BLOCKS):  # what came after the last of them had no event of its own
            marks.append((before.removesuffix(_BLOCKS) + _AFTER, block_ended))
            before = marks[-1][0]
        what = _doing(event, before)
        if what is not None and what != before:
            marks.append((what, at))
    ends = [at for _, at in marks[1:]] + ([events[-1]["at_ns"]] if events else [])
    return [(what, round((end - at) / 1e9, 2)) for (what, at), end in zip(marks, ends, strict=True)]


_STARTS, _BLOCKS, _AFTER = ": starts and warm-ups", ": blocks", ": windows and gate"
_WITHIN = ("compiling", "checking the numbers of")
"""How the phases begin that a trial tells of itself."""


def _doing(event: _Record, before: str) -> str | None:
    """Return the phase that an event begins; None where the phase goes on."""
    match event["type"]:
        case "RunStarted":
            return "starting"
        case "PhaseChanged":
            return str(event["phase"])
        case "TrialStarted":
            return f"{event['fixer']}{_STARTS}"
        case "TrialBlock":
            return f"{event['fixer']}{_BLOCKS}"
        case "VerdictReached" if before.endswith((_STARTS, _AFTER)) or before.startswith(_WITHIN):
            return "between"
        case _:
            return None
