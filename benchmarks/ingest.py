"""Times reading and diagnosing a trace, beside `json.loads` and Holistic Trace Analysis on the same file.

    python benchmarks/ingest.py                                  # a trace of 100 MB, made of one that ships
    python benchmarks/ingest.py trace.json.gz --rounds 9 --json ingest-results.json
    python benchmarks/ingest.py --hta-python /path/to/venv/bin/python

Every run is a process of its own; the tools take turns, so that a noisy minute hits all of them alike. Printed are the
medians; ratios are medians over the rounds. MB are millions of bytes of JSON text, uncompressed. The gate is the ratio
to `json.loads`, which needs no quiet machine: 0.35 at most, for reading alone, in one process as `json.loads` does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "sample_traces" / "h200_expert_gpt" / "rank0" / "trace.json.gz"
MOST_RATIO = 0.35
ONE_PROCESS = "one process"
Result = dict[str, float]


def main() -> int:
    """Measure, print a table; as a child, be what is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, help="a torch.profiler trace; made when none is given")
    parser.add_argument("--base", type=Path, default=BASE, help="what the trace is made of")
    parser.add_argument("--megabytes", type=float, default=100, help="how large a trace to make")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hta-python", type=Path, help="an interpreter that has HolisticTraceAnalysis 0.5.0")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--child", choices=TOOLS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(TOOLS[options.child](options.trace)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace or made(options.base, options.megabytes, Path(folder))
        return measure(path, options)


def made(base: Path, megabytes: float, folder: Path) -> Path:
    """A large trace."""
    path = folder / "trace.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "make_trace.py"), str(base), str(path)]
    subprocess.run([*command, "--megabytes", str(megabytes)], check=True, stdout=subprocess.DEVNULL)
    return path


def measure(path: Path, options: argparse.Namespace) -> int:
    """Run every tool in turn and print what came out; 1 when reading is too slow for `json.loads`' time."""
    tools = [tool for tool in TOOLS if tool != "hta" or options.hta_python]
    if not options.hta_python:
        print("HTA is left out: --hta-python names no interpreter that has it")
    text_bytes = run("size", path, sys.executable)["bytes"]
    tools.remove("size")
    runs: dict[str, list[Result]] = {tool: [] for tool in tools}
    for _ in range(options.rounds):
        for tool in tools:
            runs[tool].append(run(tool, path, options.hta_python if tool == "hta" else sys.executable))
    print(f"{path.name}: {text_bytes / 1e6:.1f} MB, {options.rounds} rounds, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':<12}{'read':>9}{'MB/s':>7}{'diagnosed':>11}{'to json':>9}{'to HTA':>8}{'peak RSS':>10}{'B/event':>9}")
    summary = {tool: summarised(tool, runs, text_bytes) for tool in tools}
    for tool, row in summary.items():
        print(line(tool, row))
    if options.json:
        conditions = {"python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0)), "bytes": text_bytes}
        options.json.write_text(json.dumps({"conditions": conditions, "summary": summary, "runs": runs}, indent=1))
    return int(summary[ONE_PROCESS]["to_json"] > MOST_RATIO)


def run(tool: str, path: Path, python: object) -> Result:
    """One tool in a fresh process."""
    command = [str(python), str(Path(__file__).resolve()), str(path), "--child", tool]
    environment = {**os.environ, "PYTHONPATH": "" if tool == "hta" else str(ROOT)}
    if tool == ONE_PROCESS:
        environment["DIAGNOSE_PROCESSES"] = "1"
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=3600)
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def summarised(tool: str, runs: dict[str, list[Result]], text_bytes: float) -> Result:
    """Medians of one tool, and of its ratios to others in the same round."""

    def median(key: str) -> float:
        return statistics.median(one.get(key, 0.0) for one in runs[tool])

    def ratio(other: str, key: str) -> float:
        pairs = zip(runs[tool], runs.get(other, []), strict=False)
        ratios = [mine[key] / its[key] for mine, its in pairs if key in mine and key in its]
        return statistics.median(ratios) if ratios else 0.0

    return {
        **{key: median(key) for key in ("read_s", "diagnosed_s", "peak_bytes", "bytes_per_event")},
        "mb_per_s": text_bytes / 1e6 / median("read_s"),
        "to_json": ratio("json.loads", "read_s"),
        "to_hta": ratio("hta", "diagnosed_s"),
    }


def line(tool: str, row: Result) -> str:
    """A row of the table."""
    diagnosed = f"{row['diagnosed_s']:.3f} s" if row["diagnosed_s"] else "–"
    to_hta = f"{row['to_hta']:.3f}" if row["to_hta"] else "–"
    per_event = f"{row['bytes_per_event']:.1f}" if row["bytes_per_event"] else "–"
    return (
        f"{tool:<12}{row['read_s']:>7.3f} s{row['mb_per_s']:>7.0f}{diagnosed:>11}{row['to_json']:>9.3f}{to_hta:>8}"
        f"{row['peak_bytes'] / 1e6:>7.0f} MB{per_event:>9}"
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came out."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def with_peak(result: Result) -> Result:
    """The figures, with the most memory that this process ever held, and the largest that it started."""
    kilobytes = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {**result, "peak_bytes": kilobytes * 1024}


def plain_text(path: Path) -> bytes:
    """A trace's JSON."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from make_trace import plain_bytes

    return plain_bytes(path)


def size(path: Path) -> Result:
    """The size of the JSON in bytes."""
    return {"bytes": len(plain_text(path))}


def by_diagnose(path: Path) -> Result:
    """Reading, and what every rule needs: accounting, idle by cause, launches, overlap, time by kernel."""
    import numpy as np

    from diagnose.measure import Measures
    from diagnose.trace.readers.kineto.torch_profiler import read
    from diagnose.trace.schema import Table

    seconds, (trace, *_) = timed(lambda: read(path))

    def breakdowns() -> None:
        measures = Measures(trace)
        assert measures.accountings
        assert (measures.comm & measures.compute).total_ns >= 0
        if measures.has_device:
            assert len(measures.queue_depth) == len(trace.device)
        work = trace.device
        np.bincount(work.name, work.end_ns - work.start_ns)

    after, _ = timed(breakdowns)
    tables = [table for table in vars(trace).values() if isinstance(table, Table)]
    held = sum(getattr(table, column.name).nbytes for table in tables for column in table.columns())
    events = sum(len(table) for table in tables)
    return with_peak({"read_s": seconds, "diagnosed_s": seconds + after, "bytes_per_event": held / max(events, 1)})


def by_json(path: Path) -> Result:
    """`json.loads` of the text, which lies in memory already."""
    text = plain_text(path)
    seconds, _ = timed(lambda: json.loads(text))
    return with_peak({"read_s": seconds})


def by_hta(path: Path) -> Result:
    """Its four breakdowns that correspond to ours."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    hta = importlib.import_module("hta.trace_analysis")
    seconds, analysis = timed(lambda: hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent)))

    def breakdowns() -> None:
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)

    after, _ = timed(breakdowns)
    return with_peak({"read_s": seconds, "diagnosed_s": seconds + after})


TOOLS: dict[str, Callable[[Path], Result]] = {
    "diagnose": by_diagnose,
    ONE_PROCESS: by_diagnose,
    "json.loads": by_json,
    "hta": by_hta,
    "size": size,
}


if __name__ == "__main__":
    sys.exit(main())
