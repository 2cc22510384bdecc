"""A recording as trace events with tracks for steps, causes of idle time and findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.report.export.trace_events import render
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

PICTURE = """
    load: wwww
    host:     ol ol
    gpu :      aa bb
    step:           |
"""


def events() -> list[dict[str, Any]]:
    trace = drawn(PICTURE, repeat=5, kernels={"a": "a_gemm", "b": "b_add"})
    document = json.loads(render([trace], diagnose([trace], plugins.load_rules())))
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def tracks() -> dict[str, list[dict[str, Any]]]:
    every = events()
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in every if one["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {}
    for one in every:
        if one["ph"] == "X":
            found.setdefault(names[one["pid"], one["tid"]], []).append(one)
    return found


def test_steps_causes_and_findings_have_tracks_beside_the_recording() -> None:
    found = tracks()
    assert [one["name"] for one in found["steps"]] == [f"step {number}" for number in (1, 2, 3, 4)]
    assert {one["name"] for one in found["idle by cause"]} >= {"waiting for input"}
    assert found["findings"][0]["name"] == "input-bound"
    assert {one["name"] for one in found["stream 0"]} == {"a_gemm", "b_add"}


def test_gaps_and_kernels_fill_a_step() -> None:
    found = tracks()
    step = found["steps"][1]

    def inside(name: str) -> float:
        begin, end = step["ts"], step["ts"] + step["dur"]
        return sum(float(one["dur"]) for one in found[name] if begin <= one["ts"] < end)

    assert inside("idle by cause") + inside("stream 0") == step["dur"]


def test_what_was_written_is_a_trace_again(tmp_path: Path) -> None:
    trace = drawn(PICTURE, repeat=5, kernels={"a": "a_gemm", "b": "b_add"})
    path = tmp_path / "perfetto.json"
    path.write_bytes(render([trace], diagnose([trace], plugins.load_rules())))
    assert all(one["ts"] >= 0 and one["dur"] >= 0 for one in events() if one["ph"] == "X")
    assert open_traces([path])
