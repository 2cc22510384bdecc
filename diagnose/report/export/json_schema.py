"""JSON Schemas of what `--json` prints, made from the types that are printed. `docs/reference/` publishes them.

Every field is printed, so all are required; more fields may be added, so others are allowed.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, TypedDict

import msgspec

from diagnose.model import Diagnosis, Facts, ProbeResult, Verdict
from diagnose.session import ControlMeasured, FinalMeasured, PatchAccepted

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OF_EVENTS = ("type", "at_ns")
"""Fields that the journal keeps of an event and a report does not print."""


class RunObject(TypedDict):
    """The object that `diagnose run --json`, `diagnose fix --json` and, for a run, `diagnose report --format json`
    print.

    `steps_watched` and `facts` are by rank.
    """

    schema: int
    command: str | None
    program: str | None
    cwd: str | None
    version: str | None
    started_ns: int | None
    ended_ns: int | None
    exit_code: int | None
    returncode: int | None
    steps_watched: dict[str, int]
    facts: dict[str, Facts]
    diagnosis: Diagnosis | None
    control: ControlMeasured | None
    verdicts: tuple[Verdict, ...]
    patch: PatchAccepted | None
    final: FinalMeasured | None
    probes: tuple[ProbeResult, ...]
    warnings: list[str]


def diagnosis_schema() -> dict[str, Any]:
    """Return the JSON Schema of `diagnose analyze --json`."""
    return _schema(Diagnosis)


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of `diagnose run --json`, `diagnose fix --json` and `diagnose report --format json`."""
    return _schema(RunObject)


def _schema(kind: type) -> dict[str, Any]:
    (found,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    told = _descriptions()
    for name, part in parts.items():
        properties = part.get("properties")
        if properties is None:
            continue
        for field in _OF_EVENTS if properties.keys() >= set(_OF_EVENTS) else ():
            properties.pop(field)
        for field, value in properties.items():
            value.pop("default", None)
            if (name, field) in told:
                value["description"] = told[name, field]
        part["required"] = list(properties)
    return {"$schema": DIALECT, **found, "$defs": parts}


@cache
def _descriptions() -> dict[tuple[str, str], str]:
    """Return what stands below the fields of the model's classes, by class and field."""
    kinds = [
        value
        for name, module in sorted(sys.modules.items())
        if name.startswith(("diagnose.model", "diagnose.session.events"))
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == name
    ]
    return {(kind.__name__, field): text for kind in kinds for field, text in _documented(kind)}


def _documented(kind: type) -> Iterator[tuple[str, str]]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, text in pairwise(statements):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, " ".join(text.value.value.split())
