"""The published JSON Schemas are those of the code, and what is printed obeys them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import journals
import jsonschema
import pytest
import rank_journals

from diagnose import analyze
from diagnose.model import Diagnosis
from diagnose.report.export import contract
from diagnose.report.export.json_schema import RunObject, diagnosis_schema, run_schema
from diagnose.session import AnyEvent, State, fold

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted(path for path in (ROOT / "sample_traces").iterdir() if path.is_dir())


@cache
def published(name: str) -> jsonschema.Draft202012Validator:
    """A schema as it lies in the docs."""
    schema = json.loads((ROOT / "docs" / "reference" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("schema", [diagnosis_schema(), run_schema()], ids=["diagnosis", "run"])
def test_they_are_schemas(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_the_diagnosis_of_a_recording_obeys_its_schema(sample: Path) -> None:
    published("diagnosis").validate(analyze(sample).to_dict())


JOURNALS = (
    list,
    journals.full,
    journals.fixed,
    journals.cpu,
    rank_journals.ranks_diagnosed,
    journals.healthy,
    journals.failed,
)


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda journal: journal.__name__)
def test_a_run_obeys_its_schema(journal: Callable[[], list[AnyEvent]]) -> None:
    published("run").validate(json.loads(contract.render(fold(journal()))))


def test_the_schema_of_a_run_lists_what_is_printed() -> None:
    assert list(RunObject.__annotations__) == list(contract.to_object(State()))


def test_a_field_that_is_missing_or_of_another_type_is_refused() -> None:
    whole = analyze(SAMPLES[0]).to_dict()
    for broken in ({**whole, "ranks": "two"}, {name: value for name, value in whole.items() if name != "steps"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, diagnosis_schema())


def test_fields_are_described() -> None:
    fields = diagnosis_schema()["$defs"][Diagnosis.__name__]["properties"]
    assert fields["findings"]["description"] == "Sorted by recoverable time; the first is what to fix first."
