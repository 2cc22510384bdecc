"""Runs every edit that the fixers propose for the adversarial suite, and says which change what a program does.

    python benchmarks/safety.py OUT [--fixer NAME]... [--program PATTERN] [--every N]

Each program is run whole, then each proposed edit of it: to the end, with an exception in mid-run and with Ctrl-C.
OUT gets `pairs.jsonl`, a line for each proposal, and `summary.md`. Exits with 1 where an edit is wrong, where a fixer
edits what it must leave alone, or where one does not edit what it is expected to.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from adversarial.families import suite  # noqa: E402 - from this checkout
from adversarial.oracle import Oracle  # noqa: E402
from adversarial.program import Program  # noqa: E402
from adversarial.proposals import fixers, proposals  # noqa: E402
from adversarial.running import Runner  # noqa: E402

from diagnose.fixer import Gate  # noqa: E402

Row = dict[str, object]


def main() -> int:
    """Run the suite, or a part of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fixer", action="append", help="ask this one; may be given again")
    parser.add_argument("--program", default="", help="programs whose name has this pattern")
    parser.add_argument("--every", type=int, default=1, help="every N-th program")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in suite() if re.search(options.program, one.name)][:: options.every]
    names = options.fixer or list(fixers())
    rows: list[Row] = []
    with Runner() as runner, (options.out / "pairs.jsonl").open("w") as output:
        for program in chosen:
            for row in judged(runner, program, names):
                rows.append(row)
                output.write(json.dumps(row) + "\n")
                output.flush()
    summary = summed_up(len(chosen), len(names), rows)
    (options.out / "summary.md").write_text(summary)
    print(summary)
    return int(any(row["answer"] != "right" for row in rows))


def judged(runner: Runner, program: Program, names: Sequence[str]) -> Iterator[Row]:
    """A row for each edit proposed, and for each fixer that does not keep to what is expected of it."""
    oracle = Oracle(runner, program.files, program.ranks)
    varied = [str(each) for each in oracle.compare(program.files, Gate.BITWISE)]
    if varied:  # what differs without an edit says nothing about one
        yield {"program": program.name, "fixer": "", "answer": "varies as found", "detail": "; ".join(varied[:3])}
        return
    for name in names:
        made = list(proposals(program, name))
        if name in program.edited and not made:
            yield {"program": program.name, "fixer": name, "answer": "missing", "detail": "expected to edit"}
        for one in made:
            row: Row = {"program": program.name, "family": program.family, "fixer": name, "gate": one.gate.value}
            found = [str(each) for each in oracle.differences(one)]
            if found:
                yield {**row, "answer": "wrong", "detail": "; ".join(found[:3]), "diff": _diff(program, one.files)}
            elif name in program.left_alone and one.gate is not Gate.TRAINING:
                detail = f"must be left alone: {program.left_alone[name]}"
                yield {**row, "answer": "unwarranted", "detail": detail, "diff": _diff(program, one.files)}
            else:
                yield {**row, "answer": "right", "detail": one.summary}


def summed_up(programs: int, asked: int, rows: Sequence[Row]) -> str:
    """The table of a run, in Markdown."""
    count = Counter(str(row["answer"]) for row in rows)
    edits = sum(count[one] for one in ("right", "wrong", "unwarranted"))
    lines = [
        f"{programs} programs × {asked} fixers: {programs * asked} pairs asked, {edits} edits proposed and run, "
        f"{count['wrong']} wrong, {count['unwarranted']} unwarranted, {count['missing']} missing.",
        "",
        "| fixer | proposed | wrong | unwarranted | missing |",
        "|---|---|---|---|---|",
    ]
    for name in sorted({str(row["fixer"]) for row in rows}):
        one = Counter(str(row["answer"]) for row in rows if row["fixer"] == name)
        proposed = sum(one[each] for each in ("right", "wrong", "unwarranted"))
        lines.append(f"| `{name}` | {proposed} | {one['wrong']} | {one['unwarranted']} | {one['missing']} |")
    lines += ["", "| program | fixer | answer | detail |", "|---|---|---|---|"]
    lines += [
        f"| {row['program']} | `{row['fixer']}` | {row['answer']} | {str(row['detail']).replace('|', chr(92) + '|')} |"
        for row in rows
        if row["answer"] != "right"
    ]
    return "\n".join(lines) + "\n"


def _diff(program: Program, files: object) -> str:
    assert isinstance(files, dict)
    return "".join(
        line
        for name, text in files.items()
        for line in difflib.unified_diff(
            program.files.get(name, "").splitlines(keepends=True), text.splitlines(keepends=True), name, name, n=1
        )
    )


if __name__ == "__main__":
    sys.exit(main())
