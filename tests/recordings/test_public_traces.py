"""Real traces of others, compared with a plain reading.

The traces are no part of this repository; the tests are skipped where they are not beside it.
`test_public_recordings` opens all of them.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from diagnose.trace import Trace
from diagnose.trace.readers import open_traces

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
HTA = TRACES / "facebookresearch__HolisticTraceAnalysis"
KINETO = TRACES / "pytorch__kineto"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="no collection of public traces lies beside the repository")


COMPARED = [
    HTA / "tests/data/nccl_parser_config/nccl_data.json.gz",  # relative to a base, three decimals
    HTA / "tests/data/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",  # no double holds its times
    HTA / "tests/data/timeline_analysis/sampled_rank-0.json.gz",  # whole microseconds
    HTA / "tests/data/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    KINETO / "tb_plugin/samples/resnet50_num_workers_4/worker0.pt.trace.json.gz",  # 2020: a bare array
]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
OPS = {"cpu_op", "operator"}
MOVED = ("ProfilerStep#", "Optimizer.step#", "enumerate(DataLoader)#")


@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.name)
def test_counts_and_sums_equal_those_of_a_plain_reading(path: Path) -> None:
    if not path.is_file():
        pytest.skip("this trace is not in the collection")
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = document["traceEvents"] if isinstance(document, dict) else document
    base = document.get("baseTimeNanoseconds", 0) if isinstance(document, dict) else 0
    (trace,) = open_traces([path])
    for table, categories in ((trace.device, DEVICE), (trace.calls, CALLS), (trace.ops, OPS)):
        assert summary_of_table(trace, table) == summary_of_events(events, categories, base)


def summary_of_table(trace: Trace, table: Any) -> dict[str, Any]:
    external = table.external_id
    return {
        "rows": len(table),
        "start": sum(table.start_ns.tolist()),
        "end": sum(table.end_ns.tolist()),
        "names": Counter(trace.names[name] for name in table.name),
        "external": sum(external[external > 0].tolist()),
        "correlation": sum(table.correlation.tolist()) if hasattr(table, "correlation") else 0,
    }


def summary_of_events(events: list[dict[str, Any]], categories: set[str], base: int) -> dict[str, Any]:
    chosen = [
        event
        for event in events
        if event["ph"] == "X"
        and event["cat"].lower() in categories
        and not (categories is OPS and event["name"].startswith(MOVED))
    ]
    starts = [base + int(Decimal(event["ts"]) * 1000) for event in chosen]
    args = [event.get("args", {}) for event in chosen]
    return {
        "rows": len(chosen),
        "start": sum(starts),
        "end": sum(start + int(Decimal(event["dur"]) * 1000) for start, event in zip(starts, chosen, strict=True)),
        "names": Counter(event["name"] for event in chosen),
        "external": sum(one.get("External id", one.get("external id", 0)) for one in args),
        "correlation": sum(one["correlation"] for one in args) if categories is not OPS else 0,
    }
