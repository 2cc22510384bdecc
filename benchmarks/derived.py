"""Times the derived tables of a large trace: interval algebra, the operators' tree, launches joined with work.

    python benchmarks/derived.py [--millions 10] [--rounds 5]

The trace is one that ships, its tables repeated with later times and other ids. Printed are medians, and the most
memory that the process ever held. The target is 3 s for all of them together, for 10 million events.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnose.measure.steps.accounting import device_occupation, main_device  # noqa: E402 - found by the line above
from diagnose.measure.views.kernel_classes import classes_of  # noqa: E402
from diagnose.measure.views.launches import launches_of  # noqa: E402
from diagnose.measure.views.nesting import nested  # noqa: E402
from diagnose.trace import Trace  # noqa: E402
from diagnose.trace.readers import open_traces  # noqa: E402
from diagnose.trace.schema import Table  # noqa: E402

BASE = ROOT / "sample_traces" / "h200_expert_gpt"
MOST_S = 3.0
TIMES = ("start_ns", "end_ns", "time_ns")
IDS = ("correlation", "external_id", "sequence")


def main() -> int:
    """Measure, print; 1 when it takes too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    trace = repeated(open_traces([BASE])[0], round(options.millions * 1e6))
    events = sum(len(table) for table in vars(trace).values() if isinstance(table, Table))
    rows = main_device(trace)
    classes = classes_of(trace)
    work: dict[str, Callable[[], Any]] = {
        "interval algebra": lambda: device_occupation(trace, rows, classes),
        "operators' tree": lambda: nested(trace.ops.start_ns, trace.ops.end_ns, trace.ops.thread),
        "launches joined with work": lambda: launches_of(trace),
    }
    total = 0.0
    for name, do in work.items():
        seconds = statistics.median(timed(do) for _ in range(options.rounds))
        total += seconds
        print(f"{name:<28}{seconds:6.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{'together':<28}{total:6.2f} s   {events / 1e6:.1f} million events, {peak / 1e9:.1f} GB at most")
    return int(total > MOST_S)


def timed(do: Callable[[], Any]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def repeated(trace: Trace, events: int) -> Trace:
    """The trace's device work, calls and operators again and again, later and with other ids."""
    tables: dict[str, Any] = {"device": trace.device, "calls": trace.calls, "ops": trace.ops}
    copies = max(1, events // sum(map(len, tables.values())))
    begin = min(int(table.start_ns.min()) for table in tables.values())
    end = max(int(table.end_ns.max()) for table in tables.values())
    most = 1 + max(int(getattr(table, name).max()) for table in tables.values() for name in IDS if hasattr(table, name))
    later = {name: _repeated(table, copies, end - begin + 1, most) for name, table in tables.items()}
    return dataclasses.replace(trace, **later)


def _repeated(table: Any, copies: int, span_ns: int, ids: int) -> Any:
    number = np.repeat(np.arange(copies, dtype=np.int64), len(table))
    columns = {}
    for spec in table.columns():
        values = np.tile(getattr(table, spec.name), copies)
        if spec.name in TIMES:
            values = values + number * span_ns
        elif spec.name in IDS:
            values = np.where(values < 0, values, values + number * ids)
        columns[spec.name] = values
    return type(table)(**columns)


if __name__ == "__main__":
    sys.exit(main())
