"""Compares nsys-ai's answers on the sick bay's programs with those of `diagnose analyze` on the same files.

    python benchmarks/peers_nsys.py OUT --nsys-ai PYTHON [--only NAME …]

OUT is what `accuracy record` left; PYTHON is an interpreter that has nsys-ai 0.3.0. The files are not exports of Nsight
Systems: `nsight_form.py` writes the recordings of torch.profiler in that form (the one without shapes and stacks). Both
tools read those. Of nsys-ai the skill `root_cause_matcher` is asked, which names patterns, in no order of cost; of ours
the findings of severity high and medium, in theirs. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nsight_form
from accuracy_programs import Program, programs
from accuracy_score import VIEWS

from diagnose.engine import diagnose
from diagnose.plugins import Catalogue, load_rules
from diagnose.trace.readers import open_traces

DEFAULT = ("host_sync_masks", "launch_bound_cells", "pageable_copies")
"""Each ails of something that one of nsys-ai's patterns is for."""
MEANS: Mapping[str, frozenset[str]] = {
    "Pageable Memory in Async Memcpy": frozenset({"pageable-copies"}),
    "Excessive H2D Transfers": frozenset({"exposed-copies", "pageable-copies"}),
    "Continuous H2D Transfers": frozenset({"exposed-copies", "pageable-copies"}),
    "Small Kernel Overhead": frozenset({"launch-bound", "small-batch"}),
    "Kernel Hotspot": frozenset({"kernel-hotspot", "misaligned-matmul"}),
    "Excessive Synchronization": frozenset({"host-sync"}),
    "Synchronous Memcpy": frozenset({"pageable-copies", "device-to-host-copies"}),
}
"""The rules of ours that a pattern of nsys-ai means."""
QUIET = "No Known Anti-Patterns Detected"
_SECONDS = 120


def main() -> int:
    """Write the files, ask, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nsys-ai", metavar="PYTHON", required=True, help="an interpreter that has nsys-ai 0.3.0")
    parser.add_argument("--only", nargs="+", default=DEFAULT, metavar="NAME")
    asked = parser.parse_args()
    catalogue = load_rules()
    rows = []
    for program in programs(asked.only):
        for arm in program.arms:
            path = next((asked.out / program.name / arm / VIEWS["bare"]).glob("*.gz"), None)
            if path is None:
                continue
            print(f"{program.name} {arm}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                database = Path(folder) / "run.sqlite"
                nsight_form.write(path, database)
                rows.append((program, arm, _ours(database, catalogue), nsys_ai(asked.nsys_ai, database)))
    print("\n".join(table(rows)))
    return 0


def _ours(database: Path, catalogue: Catalogue) -> list[str]:
    """Rules of severity high and medium, in their order."""
    found = diagnose(open_traces([database]), catalogue).findings
    return [finding.rule for finding in found if finding.severity in ("high", "medium")]


def nsys_ai(python: str, database: Path) -> list[str] | None:
    """The patterns that it names, in its order, each once; None where it failed."""
    command = [str(Path(python).parent / "nsys-ai"), "skill", "run", "root_cause_matcher", str(database)]
    try:
        done = subprocess.run(
            [*command, "--format", "json"], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        answer: list[dict[str, Any]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None
    said = dict.fromkeys(str(one["pattern"]) for one in answer if one.get("severity") != "info")
    return [pattern for pattern in said if pattern != QUIET]


# -- for people ---------------------------------------------------------------------------------------------------


def table(rows: Sequence[tuple[Program, str, list[str], list[str] | None]]) -> Iterator[str]:
    """One row a program and arm."""
    yield "| program | ours | nsys-ai names | which is |"
    yield "|---|---|---|---|"
    for program, arm, ours, theirs in rows:
        name = f"`{program.name}`{'' if arm == 'train' else ', twin'}"
        said = "failed" if theirs is None else ", ".join(theirs) or "nothing"
        rules = ", ".join(f"`{rule}`" for rule in ours) or "nothing"
        yield f"| {name} | {rules} | {said} | {judged(program, arm, theirs)} |"


def judged(program: Program, arm: str, patterns: Sequence[str] | None) -> str:
    """Grade the patterns; on a healthy program each is false."""
    if patterns is None:
        return "–"
    if arm == "healthy" or not program.ailment:
        return f"{len(patterns)} false" if patterns else "right"
    place = next((at for at, one in enumerate(patterns, 1) if program.ailment in MEANS.get(one, ())), None)
    if place is None:
        return "not named"
    return f"named, {place}. of {len(patterns)}"


if __name__ == "__main__":
    raise SystemExit(main())
