"""What `analyze --json` prints obeys a schema, whatever the trace: other people's tools read it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure.roofline.kernel_bounds import Bound
from diagnose.measure.steps.idle import CAUSES
from diagnose.model import Severity
from diagnose.trace import Trace

COUNT = {"type": "integer", "minimum": 0}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
TEXT = {"type": "string", "minLength": 1}
MAYBE = {"type": ["string", "null"]}
BOUNDS = [bound.name.lower() for bound in Bound]


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


ACCOUNTING = record(
    {"compute": COUNT, "exposed_comm": COUNT, "exposed_copy": COUNT, "idle": record(dict.fromkeys(CAUSES, COUNT))},
    {"compute_by": record({}, dict.fromkeys(BOUNDS, COUNT))},
)
STEPS = record(
    {
        "count": COUNT,
        "median_ns": {"type": ["integer", "null"], "minimum": 1},
        "mean_ns": {"type": ["integer", "null"], "minimum": 1},
        "total_ns": COUNT,
        "found_by": {"enum": ["optimizer", "profiler marks", "nvtx", "period", "whole trace", "none"]},
    }
)
PLACE = record(
    {"file": TEXT, "line": {"type": "integer", "minimum": 1}, "code": MAYBE},
    {"function": MAYBE, "share": {"anyOf": [SHARE, {"type": "null"}]}},
)
EVENT = record(
    {
        "name": {"type": "string"},
        "begin_ns": {"type": "integer"},
        "length_ns": COUNT,
        "step": COUNT,
        "since_step_ns": {"type": "integer"},
        "lane": TEXT,
        "where": {"anyOf": [PLACE, {"type": "null"}]},
    }
)
EVIDENCE = record(
    {"measure": TEXT, "value": {"type": "number"}, "unit": TEXT, "rows": listed(COUNT)},
    {"table": {"enum": ["device", "calls", "ops", "ranges"]}, "row_count": COUNT, "events": listed(EVENT)},
)
FINDING = record(
    {
        "rule": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
        "severity": {"enum": ["high", "medium", "low", "note"]},
        "rank": {"type": ["integer", "null"]},
        "recoverable_ns": COUNT,
        "share": SHARE,
        "confidence": {"enum": ["measured", "bound", "hint"]},
        "summary": TEXT,
        "evidence": listed(EVIDENCE),
        "where": listed(PLACE),
        "fixers": listed(TEXT),
    },
    {
        "ruled_out": listed(TEXT),
        "confirm": MAYBE,
        "ends_run": {"type": "boolean"},
        "short_of_memory": {"type": "boolean"},
        "example_ns": {"anyOf": [{"type": "array", "items": {"type": "integer"}, "maxItems": 2}, {"type": "null"}]},
        "possible_ns": {"type": ["integer", "null"], "minimum": 0},
        "possible_share": {"anyOf": [SHARE, {"type": "null"}]},
    },
)
WORK = record(
    {
        "flops_per_step": COUNT,
        "flops_per_s": {"type": "number", "minimum": 0},
        "ceiling_flops_per_s": {"type": "number", "exclusiveMinimum": 0},
        "utilisation": SHARE,
        "modelled": SHARE,
        "ceiling_source": TEXT,
    },
    {
        "ceiling_format": TEXT,
        "in_use": {"type": "object", "additionalProperties": SHARE},
        "in_use_flops_per_s": {"type": "number", "exclusiveMinimum": 0},
    },
)
MAYBE_SHARE = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]}
LADDER = record(
    {
        "step_ns": COUNT,
        "utilisation": MAYBE_SHARE,
        "rungs": listed(
            record(
                {
                    "rule": TEXT,
                    "rank": {"type": ["integer", "null"]},
                    "fixers": {"type": "object", "additionalProperties": {"type": "boolean"}},
                    "likely_ns": COUNT,
                    "step_ns": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2},
                    "utilisation": MAYBE_SHARE,
                }
            )
        ),
        "ceiling": {
            "anyOf": [
                record(
                    {
                        **dict.fromkeys(("step_ns", "matmul_ns", "memory_ns", "launch_ns"), COUNT),
                        "utilisation": {"type": "number", "minimum": 0},
                        "matmul_now_ns": COUNT,
                        "other_now_ns": COUNT,
                        "same_training_ns": COUNT,
                    }
                ),
                {"type": "null"},
            ]
        },
        "apart": {"type": "object", "additionalProperties": {"type": "integer"}},
        "loader_ns": {"type": ["integer", "null"]},
        "loader_unknown": {"type": "boolean"},
    }
)
SIZES = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
NULLABLE = {"type": ["integer", "null"]}
MEMORY = record(
    {
        "device": {"type": "integer"},
        "at_ns": NULLABLE,
        "held_bytes": COUNT,
        "categories": SIZES,
        "parts": listed(
            record(
                {
                    "category": TEXT,
                    "held_bytes": COUNT,
                    "pieces": COUNT,
                    "place": {"anyOf": [PLACE, {"type": "null"}]},
                    "taken": MAYBE,
                    "freed": MAYBE,
                    "by": MAYBE,
                }
            )
        ),
        "reserved_bytes": NULLABLE,
        "fragments_bytes": NULLABLE,
        "capacity_bytes": NULLABLE,
        "wanted_bytes": NULLABLE,
        "timeline": {
            "anyOf": [
                record(
                    {
                        "time_ns": {"anyOf": [listed(COUNT), {"type": "null"}]},
                        "categories": {"type": "object", "additionalProperties": listed(COUNT)},
                    }
                ),
                {"type": "null"},
            ]
        },
    }
)
COMPUTE = record(
    {
        "bound": {"enum": BOUNDS},
        "format": MAYBE,
        "backward": {"type": "boolean"},
        "module": MAYBE,
        "place": {"anyOf": [PLACE, {"type": "null"}]},
        "time_ns": COUNT,
        "known_ns": COUNT,
        "least_ns": COUNT,
    }
)
DIAGNOSIS = record(
    {
        "schema": {"const": 1},
        "source": listed(TEXT),
        "ranks": COUNT,
        "device": MAYBE,
        "steps": STEPS,
        "accounting": ACCOUNTING,
        "findings": listed(FINDING),
        "cannot_tell": listed(record({"rule": TEXT, "needs": TEXT})),
        "warnings": listed(TEXT),
    },
    {
        "per_rank": listed(
            record(
                {"rank": {"type": ["integer", "null"]}, "source": TEXT, "steps": STEPS, "accounting": ACCOUNTING},
                {"waits": listed(record({"rank": {"type": ["integer", "null"]}, "time_ns": COUNT}))},
            )
        ),
        "has_device": {"type": ["boolean", "null"]},
        "work": {"anyOf": [WORK, {"type": "null"}]},
        "memory": {"anyOf": [MEMORY, {"type": "null"}]},
        "step_ns": {"type": ["integer", "null"], "minimum": 1},
        "ladder": {"anyOf": [LADDER, {"type": "null"}]},
        "critical_path": {"anyOf": [SIZES, {"type": "null"}]},
        "compute": listed(COMPUTE),
        "unclaimed": {"anyOf": [ACCOUNTING, {"type": "null"}]},
    },
)

VALIDATOR = jsonschema.Draft202012Validator(DIAGNOSIS)
CATALOGUE = plugins.load()
EXAMPLES = [trace for rule in CATALOGUE.rules.values() for trace in (*rule.fires, *rule.silent)]


def test_it_is_a_schema() -> None:
    VALIDATOR.check_schema(DIAGNOSIS)


@pytest.mark.parametrize("trace", [*EXAMPLES, Trace(source="nothing")])
def test_the_printed_object_obeys_the_schema_and_its_sums(trace: Trace) -> None:
    printed = json.loads(msgspec.json.encode(diagnose([trace], CATALOGUE)))
    VALIDATOR.validate(printed)
    accounting = printed["accounting"]
    classes = [accounting[name] for name in ("compute", "exposed_comm", "exposed_copy")] + list(
        accounting["idle"].values()
    )
    assert sum(classes) == (printed["steps"]["median_ns"] or 0)
    assert sum(finding["recoverable_ns"] for finding in printed["findings"]) <= (printed["steps"]["mean_ns"] or 0)
    if (path := printed["critical_path"]) is not None:
        assert sum(path.values()) == pytest.approx(printed["steps"]["mean_ns"], rel=0.02)
        assert list(path.values()) == sorted(path.values(), reverse=True)
    if printed["has_device"] and printed["steps"]["count"]:
        assert sum(accounting["compute_by"].values()) == accounting["compute"]
        (rank,) = printed["per_rank"]
        assert sum(part["time_ns"] for part in printed["compute"]) == rank["accounting"]["compute"]
        left = printed["unclaimed"]
        for name in ("compute", "exposed_comm", "exposed_copy"):
            assert left[name] <= rank["accounting"][name]
        assert all(left["idle"][cause] <= time for cause, time in rank["accounting"]["idle"].items())
        assert sum(left["compute_by"].values()) == left["compute"]
    for finding in printed["findings"]:
        if printed["step_ns"] is not None:
            assert finding["share"] == min(finding["recoverable_ns"] / printed["step_ns"], 1.0)
        assert finding["severity"] == Severity.of_share(finding["share"]) or finding["ends_run"]
    gains = [finding["recoverable_ns"] for finding in printed["findings"] if not finding["ends_run"]]
    assert gains == sorted(gains, reverse=True)


def test_the_same_traces_give_the_same_answer() -> None:
    first, second = (msgspec.json.encode(diagnose(EXAMPLES[:4], CATALOGUE)) for _ in range(2))
    assert first == second
