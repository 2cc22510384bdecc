"""Asks the gates about edits that are wrong on purpose, and says which gate refuses each.

    python benchmarks/wrong_edits.py OUT [--name PATTERN] [--part I/N]

The edits are `tests/adversarial/mutations.py`: mistakes of the kinds that fixers make. OUT gets `wrong_edits.md`, a row
for each with the answers of the numerics gate and of whole runs. Exits with 1 where one is let through.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from adversarial.mutations import Mutation, mutations  # noqa: E402 - from this checkout
from parts import add_part_option  # noqa: E402

from diagnose.model import GateAnswer  # noqa: E402
from diagnose.plugins import load  # noqa: E402
from diagnose.program import Program  # noqa: E402
from diagnose.trial.bench import Bench  # noqa: E402
from diagnose.trial.schedule import Deadline, Schedule  # noqa: E402

Row = tuple[Mutation, Mapping[str, GateAnswer]]
ENTRY = "train.py"
COLUMNS = ("numbers", "whole run", "exception", "interrupt", "data order")
_WORDS = {GateAnswer.PASSED: "passed", GateAnswer.REFUSED: "**refused**", GateAnswer.UNVERIFIED: "unverified"}


def main() -> int:
    """Ask about all, or about those whose names match."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="", help="wrong edits whose name has this pattern")
    add_part_option(parser, "the edits")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for one in options.part.of([one for one in mutations() if re.search(options.name, one.name)]):
        rows.append((one, judge(one)))
        (options.out / "wrong_edits.md").write_text(table(rows))
        print(one.name, {name: answer.value for name, answer in rows[-1][1].items()}, flush=True)
    return int(any(GateAnswer.REFUSED not in answers.values() for _, answers in rows))


def judge(one: Mutation) -> dict[str, GateAnswer]:
    """Run each gate on a wrong edit; whole runs are compared whatever the numerics gate says."""
    fixer = load().fixers[one.fixer]
    with tempfile.TemporaryDirectory(prefix="wrong-edits-") as room:
        home = Path(room) / "program"
        home.mkdir()
        for name, text in one.program.files.items():
            (home / name).write_text(text)
        program = Program.parse([ENTRY], cwd=home)
        with Bench(program, Path(room) / "trials", Schedule(), Deadline(), environment=dict(os.environ)) as bench:
            original, patched = bench.copy({}, "original"), bench.copy({str(home / ENTRY): one.edited}, "patched")
            numbers = bench.numbers(one.gate, original, patched, fixer.rounds_to)
            loading = fixer.changes_loading
            checks = bench.whole_runs(one.gate, original, patched, fixer.rounds_to, loading=loading)
    passed = {True: GateAnswer.PASSED, False: GateAnswer.REFUSED, None: GateAnswer.UNVERIFIED}[numbers.passed]
    return {"numbers": passed, **{check.name: check.answer for check in checks}}


def table(rows: Sequence[Row]) -> str:
    """The answers in Markdown, with their sums."""
    refused = [answers for _, answers in rows if GateAnswer.REFUSED in answers.values()]
    missed = [answers for answers in refused if answers["numbers"] is not GateAnswer.REFUSED]
    lines = [
        f"{len(rows)} wrong edits: {len(refused)} refused, {len(rows) - len(refused)} let through. The numerics gate "
        f"alone would have let {len(missed) + len(rows) - len(refused)} through.",
        "",
        f"| wrong edit | fixer of its kind | class | {' | '.join(COLUMNS)} |",
        f"|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    for one, answers in rows:
        cells = (_WORDS[answers[name]] if name in answers else "" for name in COLUMNS)
        lines.append(f"| {one.name} | `{one.fixer}` | {one.gate.value} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
