"""Programs that run out of memory as found, on a real device: does each run after `diagnose fix`, and compute the same?

    python benchmarks/rescue.py OUT [--only NAME …] [--budget 120s] [--seconds 540]

Each program of `rescue_programs/` runs under a limit of its own (`set_per_process_memory_fraction`), which it takes
from its command line. `diagnose fix` with nothing allowed beyond what it does unasked, then `diagnose apply`, then
three runs beside each other: the patched program under its limit, the program as found under it, and as found without
a limit. A call that is cut off goes on where it stopped:

    OUT/results.json    all that was measured
    OUT/results.md      the table of it, which is also printed last
    OUT/<name>/         the patched train.py, patch.diff, fix.json, fix.log, diagnosis.json, journal.jsonl.gz

`--tiny --device cpu` tries this script itself, without a device. The limit is real there too, one on the address space
of the process (`RLIMIT_AS`). But nothing is moved to the host's memory where everything lies there, so that
`optimizer` and `batch_norm` stay without a rescue; and a process's resident memory shows too little of a leak, so that
both of those do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_record import write_atomically
from rank_job import python_path
from sickbay_treatment import treat

from diagnose.units import NS_PER_S, format_bytes, parse_duration_ns

PROGRAMS = Path(__file__).resolve().parent / "rescue_programs"
LEAST_S = 40
"""Less is not worth beginning a program for."""
RUNS_S = 20
"""Kept back for the runs after a fix."""
RUN_LIMIT_S = 90
_LAST = re.compile(r"^loss (\S+) peak (\d+)$", re.MULTILINE)
_Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A program with the limit, in GiB, under which it dies, on a device and in its tiny size on a CPU."""

    name: str
    limit: float
    tiny_limit: float
    tiny_steps: int
    expected: tuple[str, ...]
    """Fixes of which one should be kept, on a device."""
    program: str = ""
    """Its file, where it is not named after the case."""
    arguments: tuple[str, ...] = ()

    def words(self, limited: bool, tiny: bool) -> list[str]:
        """Its command line."""
        limit = (self.tiny_limit if tiny else self.limit) if limited else 0
        sizes = ["--tiny", "--steps", str(self.tiny_steps)] if tiny else []
        return ["--limit", f"{limit:g}", *self.arguments, *sizes]


CASES = (
    Case("activations", 20, 0.25, 8, ("checkpoint-blocks", "offload")),
    Case("logits", 14, 0.25, 8, ("fuse-linear-cross-entropy",)),
    Case("both", 11, 0.2, 8, ("fuse-linear-cross-entropy", "checkpoint-blocks"), "logits", ("--deep",)),
    Case("leak", 15.5, 0.15, 40, ("detach-kept",)),
    Case("slow_leak", 22, 0.25, 60, ("detach-kept",), "leak"),
    Case("optimizer", 11, 0.03, 8, ("offload-state",)),
    Case("batch_norm", 10, 0.06, 8, ("offload",)),
    Case("microbatches", 5, 0.25, 8, ("memory-budget",)),
)


def main() -> int:
    """Work through the programs; 1 where one was not rescued, or not tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--budget", default="120s", help="of each `diagnose fix`")
    parser.add_argument("--seconds", type=float, default=math.inf, help="bounds the whole; nothing new is begun then")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a device")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    ends_at = time.monotonic() + args.seconds
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "results.json"
    results: dict[str, _Record] = json.loads(path.read_text()) if path.exists() else {}
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    for case in chosen:
        left_s = ends_at - time.monotonic()
        if results.get(case.name, {}).get("rescued"):
            continue
        if left_s < LEAST_S:
            print(f"no time is left for {case.name} and what comes after it", flush=True)
            break
        budget_s = min(parse_duration_ns(args.budget) / NS_PER_S, max(LEAST_S - RUNS_S, left_s - RUNS_S))
        results[case.name] = worked_on(case, budget_s, args.out / case.name, tiny=args.tiny, device=args.device)
        write_atomically(path, results)
        (args.out / "results.md").write_text(markdown(results))
        print("; ".join(said(case.name, results[case.name])), flush=True)
    print(markdown(results))
    return 0 if all(results.get(case.name, {}).get("rescued") for case in chosen) else 1


def worked_on(case: Case, budget_s: float, out: Path, *, tiny: bool, device: str) -> _Record:
    """Fix one program and run it beside itself as found."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        scripts = {one: laid_out(case, Path(name) / one) for one in ("fixed", "found")}
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        environment = {**os.environ, **hidden, "PYTHONPATH": os.pathsep.join(python_path())}
        fix = treat(scripts["fixed"], case.words(True, tiny), [], budget_s, environment, out, allow=())
        runs = beside_each_other(
            {
                "patched": (scripts["fixed"], case.words(True, tiny)),
                "found": (scripts["found"], case.words(True, tiny)),
                "unlimited": (scripts["found"], case.words(False, tiny)),
            },
            environment,
        )
    limit = case.tiny_limit if tiny else case.limit
    died = runs["found"]["exit"] != 0 and "memory" in runs["found"]["last words"]
    rescued = died and bool(fix["applied"]) and runs["patched"]["exit"] == 0
    return {"limit": limit, "expected": case.expected, "fix": fix, "runs": runs, "died": died, "rescued": rescued}


def laid_out(case: Case, folder: Path) -> Path:
    """The script in a folder of its own, beside what it imports."""
    folder.mkdir()
    shutil.copy(PROGRAMS / "limits.py", folder)
    return Path(shutil.copy(PROGRAMS / f"{case.program or case.name}.py", folder / "train.py"))


def beside_each_other(
    runs: Mapping[str, tuple[Path, Sequence[str]]], environment: Mapping[str, str]
) -> dict[str, _Record]:
    """Run all programs at once; returns how each ended, with its last loss and its peak. Nothing is timed."""
    ends_at = time.monotonic() + RUN_LIMIT_S
    started = {}
    for name, (script, words) in runs.items():
        log = script.parent / f"{name}.log"
        with log.open("wb") as talk:
            command = [sys.executable, script.name, *words]
            child = subprocess.Popen(command, cwd=script.parent, env=environment, stdout=talk, stderr=talk)
        started[name] = (child, log)
    return {name: ended(child, log, ends_at - time.monotonic()) for name, (child, log) in started.items()}


def ended(child: subprocess.Popen[bytes], log: Path, limit_s: float) -> _Record:
    """The exit code, None where it had to be ended, and what it said last."""
    code: int | None
    try:
        code = child.wait(max(limit_s, 1))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        code = None
    text = log.read_text(errors="replace").strip()
    found = _LAST.search(text)
    loss, peak = (float(found[1]), int(found[2])) if found else (None, None)
    return {"exit": code, "loss": loss, "peak": peak, "last words": "".join(text.splitlines()[-1:])[:300]}


def markdown(results: Mapping[str, _Record]) -> str:
    """The table of all programs."""
    head = (
        "program",
        "limit",
        "as found",
        "`diagnose fix` kept",
        "tried",
        "in",
        "patched, under the limit",
        "as found, without it",
        "losses",
    )
    rows = [head, ["---"] * len(head), *(said(name, record) for name, record in results.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def said(name: str, record: _Record) -> list[str]:
    """One program's row."""
    fix, runs = record["fix"], record["runs"]
    tried = [f"{one['fixer']}{setting(one)}: {one['decision']}" for one in fix["tried"]]
    kept = [f"`{one['fixer']}`{setting(one)} ({gate(one)})" for one in fix["tried"] if one["decision"] == "kept"] or [
        "nothing" + (f": {fix['problem']}" if fix["problem"] else "")
    ]
    as_expected = "" if set(fix["kept"]) & set(record["expected"]) else f" (not {' or '.join(record['expected'])})"
    return [
        name,
        f"{record['limit']:g} GiB",
        "out of memory" if record["died"] else f"exit {runs['found']['exit']}: {runs['found']['last words']}",
        ", ".join(kept) + as_expected,
        "; ".join(tried),
        f"{fix['seconds']:.0f} s",
        how(runs["patched"]),
        how(runs["unlimited"]),
        compared(runs["patched"]["loss"], runs["unlimited"]["loss"]),
    ]


def setting(tried: _Record) -> str:
    """Format the setting that a fix was tried with."""
    return "".join(f" {name} {value}" for name, value in (tried["setting"] or {}).items())


def gate(tried: _Record) -> str:
    """Format how the numbers of a fix were checked."""
    found = tried["gate"] or {}
    words = {True: "passed", False: "failed", None: "not compared"}
    return f"{found.get('gate')}: {words[found.get('passed')]}"


def how(run: _Record) -> str:
    """Format how a run ended."""
    if run["exit"] != 0 or run["loss"] is None:
        return f"exit {run['exit']}: {run['last words']}"
    return f"exit 0, loss {run['loss']:.6g}, peak {format_bytes(run['peak'])}"


def compared(one: float | None, other: float | None) -> str:
    """Format the distance between two losses."""
    if one is None or other is None:
        return "unknown"
    return "equal" if one == other else f"{abs(one - other) / abs(other):.1e} apart"


if __name__ == "__main__":
    raise SystemExit(main())
