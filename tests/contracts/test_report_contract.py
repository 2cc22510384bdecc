"""The JSON contract of `analyze --json`: what is there, in which order, and that it only ever grows."""

from __future__ import annotations

import json

import journals
import jsonschema
import tinygpt

from diagnose.model import Accounting, Diagnosis, Steps
from diagnose.report.export import contract
from diagnose.session import fold

_NS = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_ACCOUNTING = {
    "type": "object",
    "required": ["compute", "exposed_comm", "exposed_copy", "idle"],
    "properties": {
        "compute": _NS,
        "exposed_comm": _NS,
        "exposed_copy": _NS,
        "idle": {"type": "object", "additionalProperties": _NS},
    },
}
_PLACE = {
    "type": "object",
    "required": ["file", "line", "code"],
    "properties": {"file": {"type": "string"}, "line": {"type": "integer"}, "code": _TEXT_OR_NULL},
}
_EVIDENCE = {
    "type": "object",
    "required": ["measure", "value", "unit", "rows"],
    "properties": {
        "measure": {"type": "string"},
        "value": {"type": "number"},
        "unit": {"type": "string"},
        "rows": {"type": "array", "items": {"type": "integer"}},
    },
}
_FINDING = {
    "type": "object",
    "required": [
        *("rule", "severity", "rank", "recoverable_ns", "share", "confidence"),
        *("summary", "evidence", "where", "fixers"),
    ],
    "properties": {
        "rule": {"type": "string"},
        "severity": {"enum": ["high", "medium", "low", "note"]},
        "rank": {"type": ["integer", "null"]},
        "recoverable_ns": _NS,
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "confidence": {"enum": ["measured", "bound", "hint"]},
        "summary": {"type": "string"},
        "evidence": {"type": "array", "items": _EVIDENCE},
        "where": {"type": "array", "items": _PLACE},
        "fixers": {"type": "array", "items": {"type": "string"}},
    },
}
SCHEMA = {
    "type": "object",
    "required": [
        *("schema", "source", "ranks", "device", "steps", "accounting"),
        *("findings", "cannot_tell", "warnings"),
    ],
    "properties": {
        "schema": {"const": 1},
        "source": {"type": "array", "items": {"type": "string"}},
        "ranks": {"type": "integer"},
        "device": _TEXT_OR_NULL,
        "steps": {
            "type": "object",
            "required": ["count", "median_ns"],
            "properties": {"count": {"type": "integer"}, "median_ns": {"type": ["integer", "null"]}},
        },
        "accounting": _ACCOUNTING,
        "findings": {"type": "array", "items": _FINDING},
        "cannot_tell": {"type": "array", "items": {"type": "object", "required": ["rule", "needs"]}},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
}


def test_a_diagnosis_fulfils_the_contract() -> None:
    jsonschema.validate(json.loads(contract.render(tinygpt.gpu_diagnosis())), SCHEMA)


def test_a_diagnosis_without_anything_fulfils_the_contract() -> None:
    jsonschema.validate(json.loads(contract.render(Diagnosis(1, (), 0, None, Steps(0, None), Accounting()))), SCHEMA)


def test_the_classes_sum_to_the_median_step() -> None:
    said = json.loads(contract.render(tinygpt.gpu_diagnosis()))
    accounting = said["accounting"]
    total = accounting["compute"] + accounting["exposed_comm"] + accounting["exposed_copy"]
    assert total + sum(accounting["idle"].values()) == said["steps"]["median_ns"]


def test_causes_keep_one_order_whatever_order_they_were_measured_in() -> None:
    accounting = Accounting(idle={"unknown": 1, "sync": 2, "elsewhere": 3, "input": 4})
    said = contract.to_object(Diagnosis(1, (), 1, None, Steps(1, 10), accounting))
    assert list(said["accounting"]["idle"]) == ["input", "sync", "unknown", "elsewhere"]


def test_a_run_is_one_object_with_the_same_diagnosis_inside() -> None:
    said = json.loads(contract.render(fold(journals.fixed())))
    jsonschema.validate(said["diagnosis"], SCHEMA)
    assert said["schema"] == 1
    assert [verdict["decision"] for verdict in said["verdicts"]] == ["kept", "kept", "no change"]
    assert said["patch"]["fixers"] == ["loader-workers", "defer-item"]
    assert said["final"] == {
        "original_ns": 60_100_000,
        "patched_ns": 23_100_000,
        "runs": 3,
        "how": "each program alone, without diagnose",
        "gate": {
            "gate": "bitwise",
            "passed": True,
            "detail": "125 losses and gradients are equal bit for bit",
            "checks": [],
        },
        "interaction": None,
    }


def test_it_is_indented_by_two_spaces_and_ends_its_last_line() -> None:
    said = contract.render(tinygpt.gpu_diagnosis())
    assert said.startswith('{\n  "schema": 1,\n  "source": [')
    assert said.endswith("}\n")
