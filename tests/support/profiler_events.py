"""Traces of torch.profiler, an event at a time: written to a file, and opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diagnose.trace import Trace
from diagnose.trace.readers import open_traces

KERNEL = {"device": 0, "stream": 7, "correlation": 9, "External id": 4}


def written(tmp_path: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def opened(tmp_path: Path, events: list[Any], name: str = "trace.json", **header: Any) -> Trace:
    document = {"schemaVersion": 1, **header, "traceEvents": events}
    return only(written(tmp_path, json.dumps(document), name))


def only(path: Path) -> Trace:
    (trace,) = open_traces([path])
    return trace


def complete(cat: str, name: str, ts: object, dur: object, **rest: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **rest}
