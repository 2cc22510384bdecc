"""Prints Holistic Trace Analysis's answer on one trace as a line of JSON. Runs under the interpreter that has it.

    HTA_PYTHON benchmarks/peers_hta.py TRACE.json.gz

It names no cause: its answer is where the time went. Percentages of the recorded window; None where a call failed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

_TIME = ("compute", "non_compute", "idle")
_IDLE = ("host_wait", "kernel_wait", "other")


def main() -> int:
    """Print compute, non-compute and idle time, and the idle time by HTA's three categories."""
    path = Path(sys.argv[1]).resolve()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        hta = importlib.import_module("hta.trace_analysis")
        analysis = hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
        answer = {**_time(analysis), **_idle(analysis)}
    print(json.dumps(answer))
    return 0


def _time(analysis: Any) -> dict[str, float | str | None]:
    try:
        row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    except Exception as error:  # noqa: BLE001 - another's tool may fail in any way: that it did is the answer
        return {**dict.fromkeys(_TIME), "time_failed": type(error).__name__}
    return {name: float(row[f"{name}_time_pctg"]) for name in _TIME}


def _idle(analysis: Any) -> dict[str, float | str | None]:
    try:
        frame = analysis.get_idle_time_breakdown(ranks=[0], visualize=False, show_idle_interval_stats=False)[0]
    except Exception as error:  # noqa: BLE001 - as above
        return {**dict.fromkeys(_IDLE), "idle_failed": type(error).__name__}
    total = float(frame["idle_time"].sum())
    parts = frame.groupby("idle_category")["idle_time"].sum()
    return {name: 100 * float(parts.get(name, 0.0)) / total if total else 0.0 for name in _IDLE}


if __name__ == "__main__":
    raise SystemExit(main())
