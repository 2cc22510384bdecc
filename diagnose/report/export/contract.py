"""The report as JSON, for machines: the contract of `diagnose analyze --json`.

A diagnosis alone is one object with the fields of `model.Diagnosis`, in their order. A run is one object that holds
the same under `diagnosis`, and beside it what was tried. Fields are added under the same schema number, never renamed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from diagnose.model import SCHEMA, Diagnosis
from diagnose.report import Report, Subject
from diagnose.report.style.vocabulary import CLASSES
from diagnose.session import State


def render(subject: Subject) -> str:
    """Two-space indented JSON with a newline at its end; the same input gives the same text."""
    return msgspec.json.format(msgspec.json.encode(to_object(subject)), indent=2).decode() + "\n"


def to_object(subject: Subject) -> dict[str, Any]:
    """The report as plain dicts, lists, strings, numbers and None."""
    return _diagnosis(subject) if isinstance(subject, Diagnosis) else _run(subject)


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(diagnosis)
    ranks = [rank["accounting"] for rank in plain["per_rank"]]
    for accounting in filter(None, (plain["accounting"], plain["unclaimed"], *ranks)):
        accounting["idle"] = _in_order(accounting["idle"])
    return plain


def _in_order(idle: dict[str, int]) -> dict[str, int]:
    order = list(CLASSES)

    def place(item: tuple[str, int]) -> tuple[int, str]:
        return (order.index(item[0]) if item[0] in CLASSES else len(order), item[0])

    return dict(sorted(idle.items(), key=place))


def _run(state: State) -> dict[str, Any]:
    started, ended = state.started, state.ended
    return {
        "schema": SCHEMA,
        "command": started.command if started else None,
        "program": started.program if started else None,
        "cwd": started.cwd if started else None,
        "version": started.version if started else None,
        "started_ns": started.at_ns if started else None,
        "ended_ns": ended.at_ns if ended else None,
        "exit_code": ended.exit_code if ended else None,
        "returncode": ended.returncode if ended else None,
        "steps_watched": {str(rank): steps.count for rank, steps in sorted(state.steps.items())},
        "facts": {str(rank): msgspec.to_builtins(facts) for rank, facts in sorted(state.facts.items())},
        "diagnosis": _diagnosis(state.diagnosis) if state.diagnosis else None,
        "control": _fields(state.control),
        "verdicts": msgspec.to_builtins(state.verdicts),
        "patch": _fields(state.patch),
        "final": _fields(state.final),
        "probes": msgspec.to_builtins(state.probes),
        "warnings": list(state.warnings),
    }


def _fields(event: msgspec.Struct | None) -> dict[str, Any] | None:
    """An event's own fields, without its tag and time."""
    if event is None:
        return None
    plain: dict[str, Any] = msgspec.to_builtins(event)
    return {name: value for name, value in plain.items() if name not in ("type", "at_ns")}


REPORT = Report("json", ".json", render)
