"""The bar for `diagnose fix`: programs as found, as it leaves them, and as an expert has them, timed in one session.

    python benchmarks/sickbay_fix.py OUT [--only NAME …] [--budget 5m] [--seconds N] [--quick] [--programs FOLDER]

For each program: `diagnose fix --allow training`, then `diagnose apply`, then the three scripts in turns, A B C A B C,
with nothing of ours in them but a step clock (see turns.py). A call that is cut off goes on where it stopped:

    OUT/results.json      all that was measured
    OUT/results.md        the tables of it, which are also printed last
    OUT/<name>/           the patched train.py and what came with it, patch.diff, fix.json, fix.log, journal.jsonl.gz

`--tiny --device cpu` tries this script itself: programs in the sizes of tests, whose times say nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from accuracy_programs import SICKBAY
from accuracy_record import write_atomically
from sickbay_markdown import markdown
from sickbay_patients import Patient, patients
from sickbay_treatment import treat
from turns import Standby, Version, VersionFailed, take_turns

from diagnose.program import Program
from diagnose.program.environment import with_script_environment
from diagnose.units import NS_PER_S, parse_duration_ns

ROUNDS, QUICK_ROUNDS = 5, 3
LEAST_S = 60
"""Less is not worth beginning a program for."""
TIMING_S = 40
"""Kept back for timing a program after its fix."""


@dataclass(frozen=True)
class Session:
    """The options of one call of this script."""

    out: Path
    budget_s: float
    ends_at: float
    """On time.monotonic: nothing is begun afterwards."""
    quick: bool
    tiny: bool
    device: str

    @property
    def left_s(self) -> float:
        """Until the end."""
        return self.ends_at - time.monotonic()

    def environment(self, patient: Patient, script: Path, compiled: Path) -> dict[str, str]:
        """Return the environment of a script, with one compile cache for all processes."""
        base = {**os.environ, **patient.variables(script), "TORCHINDUCTOR_CACHE_DIR": str(compiled)}
        return {**base, "CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else base


def main() -> int:
    """Work through the programs; 1 where anything is missing in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs alone, in this order")
    parser.add_argument("--programs", type=Path, default=SICKBAY, help="another sick bay")
    parser.add_argument("--budget", default="5m", help="of each `diagnose fix`")
    parser.add_argument("--seconds", type=float, default=math.inf, help="bounds the whole; nothing new is begun then")
    parser.add_argument("--quick", action="store_true", help="shorter trials and fewer rounds, which resolve less")
    parser.add_argument("--tiny", action="store_true", help="programs in the sizes of tests")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    budget_s = parse_duration_ns(args.budget) / NS_PER_S
    ends_at = time.monotonic() + args.seconds
    session = Session(args.out.resolve(), budget_s, ends_at, args.quick, args.tiny, args.device)
    chosen = [one for one in patients(args.programs, args.only) if args.only or fits(one, args.device)]
    results = read(session.out)
    for one in chosen:
        if session.left_s < LEAST_S:
            print(f"no time is left for {one.name} and what comes after it", flush=True)
            break
        work_on(session, one, results)
        (session.out / "results.md").write_text(markdown(results))
    print(markdown(results))
    return 0 if all(done(results["programs"].get(one.name, {})) for one in chosen) else 1


def fits(patient: Patient, device: str) -> bool:
    """Whether the program makes sense on this kind of device."""
    return device == "cuda" or not patient.needs_device


def done(record: Mapping[str, Any]) -> bool:
    """Whether all programs are measured."""
    return all(record.get(part) and not record[part]["problem"] for part in ("fix", "timing"))


def work_on(session: Session, patient: Patient, results: dict[str, Any]) -> None:
    """Fix the program and time it, as far as that is not done yet; results.json is written after each."""
    record = results["programs"].setdefault(patient.name, {"expert_work": patient.expert_work})
    if done(record):
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        case = Case(session, patient, Path(name))
        if not record.get("fix") or record["fix"]["problem"]:
            record["fix"] = case.fix()
            write_atomically(session.out / "results.json", results)
        else:
            for path in case.out.glob("*.py"):
                shutil.copy(path, case.scripts["fixed"].parent)
        print(f"{record['fix']['seconds']:6.1f} s  {patient.name}: kept {record['fix']['kept']}", flush=True)
        record["timing"] = case.time(fixed=bool(record["fix"]["applied"]))
        write_atomically(session.out / "results.json", results)
        print(f"{record['timing']['seconds']:6.1f} s  {patient.name}: timed", flush=True)


class Case:
    """One program in a folder of its own: a copy as found, one to fix, one of the expert's."""

    def __init__(self, session: Session, patient: Patient, work: Path) -> None:
        self.session = session
        self.patient = patient
        self.work = work
        self.out = session.out / patient.name
        self.out.mkdir(parents=True, exist_ok=True)
        self.words = patient.words(tiny=session.tiny)
        self.sources = {"found": patient.found, "fixed": patient.found}
        if patient.expert is not None:
            self.sources["expert"] = patient.expert
        self.scripts = {name: patient.lay_out(work / name, script) for name, script in self.sources.items()}
        self.compiled = work / "compiled"
        self.waiting: list[Standby] = []

    def fix(self) -> dict[str, Any]:
        """`diagnose fix` and `apply`. Processes for what comes after it import torch meanwhile, as it does itself."""
        session = self.session
        options = ["--quick"] if session.quick else []
        budget_s = max(LEAST_S / 2, min(session.budget_s, session.left_s - TIMING_S))
        self.waiting = [Standby(self.environment(name), self.work / f"{name}.log") for name in self.scripts]
        record = treat(self.scripts["fixed"], self.words, options, budget_s, self.environment("fixed"), self.out)
        caches = sorted(self.scripts["fixed"].parent.glob(".diagnose/runs/*/trials/compiled"))
        if caches and not self.compiled.exists():
            self.compiled.symlink_to(caches[-1])
        return record

    def time(self, *, fixed: bool) -> dict[str, Any]:
        """The scripts in turns; the fixed one only where it is another than the one found."""
        versions = [
            Version(name, self.scripts[name], self.words, self.environment(name), self.work / f"{name}-timed.log")
            for name in self.scripts
            if fixed or name != "fixed"
        ]
        if len(versions) == 1:  # it is in order, and was left alone
            for standby in self.waiting:
                standby.end()
            return {"problem": None, "rounds": {}, "seconds": 0.0}
        began = time.monotonic()
        record: dict[str, Any] = {"problem": None, "rounds": {}}
        try:
            timing = take_turns(versions, QUICK_ROUNDS if self.session.quick else ROUNDS, self.waiting)
            record |= {"steps": timing.steps, "rounds": timing.rounds, "together": timing.together}
        except VersionFailed as failure:
            record["problem"] = str(failure)
            for log in self.work.glob("*.log"):
                shutil.copy(log, self.out)
        return {**record, "seconds": round(time.monotonic() - began, 1)}

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment with the variables that the script sets before it imports torch."""
        script = self.scripts[name]
        environment = self.session.environment(self.patient, self.sources[name], self.compiled)
        return with_script_environment(Program.parse([str(script)]), environment)


def read(out: Path) -> dict[str, Any]:
    """Read the results of an earlier call; empty where there is none."""
    path = out / "results.json"
    if path.exists():
        results: dict[str, Any] = json.loads(path.read_text())
        return results
    out.mkdir(parents=True, exist_ok=True)
    return {"python": platform.python_version(), "recorded": time.strftime("%Y-%m-%d"), "programs": {}}


if __name__ == "__main__":
    raise SystemExit(main())
