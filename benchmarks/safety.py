"""Runs every edit that the fixers propose for the adversarial suite, and says which change what a program does.

    python benchmarks/safety.py OUT [--fixer NAME]... [--program PATTERN] [--every N] [--part I/N]
    python benchmarks/safety.py OUT --merge PART [PART…]   # one report from what parts left in their folders

Each program is run whole, then each proposed edit of it: to the end, with an exception in mid-run and with Ctrl-C. A
run that does not end in time says nothing about an edit: the pair is not judged. A fixer that raises an exception has
failed on that program. OUT gets `pairs.jsonl`, a line for each proposal, `asked.jsonl`, which tells what was to be
asked and what was, and `summary.md`. Exits with 1 where an edit is wrong or not judged, where a fixer fails, edits what
it must leave alone or does not edit what it is expected to, and where parts do not cover all.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from adversarial.families import suite  # noqa: E402 - from this checkout
from adversarial.oracle import Difference, NotJudged, Oracle  # noqa: E402
from adversarial.program import Program  # noqa: E402
from adversarial.proposals import fixers, proposals  # noqa: E402
from adversarial.running import Runner  # noqa: E402
from parts import Part, add_part_option  # noqa: E402

from diagnose.fixer import Gate  # noqa: E402

Row = dict[str, object]
Pair = tuple[str, str]
"""A program and a fixer, by their names."""
PAIRS, ASKED = "pairs.jsonl", "asked.jsonl"
NOT_JUDGED = "not judged"
FAILED = "failed"
_OF_EDITS = ("right", "wrong", "unwarranted", NOT_JUDGED)
_LISTED = 5
"""Fixers that are named of those that were not asked about a program."""


@dataclass
class Asked:
    """The pairs that a run was to ask about, and the results of those that it did."""

    programs: list[str] = field(default_factory=list)
    fixers: list[str] = field(default_factory=list)
    due: dict[Pair, None] = field(default_factory=dict)
    """Each fixer about each program, in order, of all parts."""
    done: dict[Pair, None] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def missing(self) -> list[Pair]:
        """Pairs that no part has asked."""
        return [pair for pair in self.due if pair not in self.done]


def main() -> int:
    """Run the suite, or a part of it, or put parts together."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fixer", action="append", help="ask this one; may be given again")
    parser.add_argument("--program", default="", help="programs whose name has this pattern")
    parser.add_argument("--every", type=int, default=1, help="every N-th program")
    add_part_option(parser, "the programs")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="PART", help="folders that parts were written to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.merge:
        asked = merged(options.merge)
        _write(options.out, asked)
    else:
        chosen = [one for one in suite() if re.search(options.program, one.name)][:: options.every]
        asked = ask(options.out, chosen, options.fixer or list(fixers()), options.part)
    summary = summed_up(asked, asked.missing if options.merge else ())
    (options.out / "summary.md").write_text(summary)
    print(summary)
    return int(any(row["answer"] != "right" for row in asked.rows) or (bool(options.merge) and bool(asked.missing)))


def ask(out: Path, programs: Sequence[Program], names: Sequence[str], part: Part) -> Asked:
    """Judge the pairs of a part, program by program, and write each down when it is known."""
    due = [(program.name, name) for program in programs for name in names]
    asked = Asked([program.name for program in programs], list(names), dict.fromkeys(due))
    with Runner() as runner, (out / PAIRS).open("w") as pairs, (out / ASKED).open("w") as told:
        _write_line(told, {"programs": asked.programs, "fixers": asked.fixers})
        for program in part.of(programs):
            for row in judged(runner, program, names):
                asked.rows.append(row)
                _write_line(pairs, row)
            asked.done |= {(program.name, name): None for name in names}
            _write_line(told, {"program": program.name, "fixers": list(names)})
    return asked


def merged(parts: Sequence[Path]) -> Asked:
    """Merge what parts asked and found; what several of them found alike counts once."""
    together = Asked()
    for part in parts:
        head, *done = map(json.loads, (part / ASKED).read_text().splitlines())
        together.programs += [name for name in head["programs"] if name not in together.programs]
        together.fixers += [name for name in head["fixers"] if name not in together.fixers]
        together.due |= {(program, name): None for program in head["programs"] for name in head["fixers"]}
        together.done |= {(one["program"], name): None for one in done for name in one["fixers"]}
        rows = map(json.loads, (part / PAIRS).read_text().splitlines())
        together.rows += [row for row in rows if row not in together.rows]
    return together


def _write(out: Path, asked: Asked) -> None:
    """Write what parts left, as one of them does."""
    with (out / PAIRS).open("w") as pairs, (out / ASKED).open("w") as told:
        _write_line(told, {"programs": asked.programs, "fixers": asked.fixers})
        for program, name in asked.done:
            _write_line(told, {"program": program, "fixers": [name]})
        for row in asked.rows:
            _write_line(pairs, row)


def _write_line(file: TextIO, value: object) -> None:
    file.write(json.dumps(value) + "\n")
    file.flush()


def judged(runner: Runner, program: Program, names: Sequence[str]) -> Iterator[Row]:
    """A row for each edit proposed, and for each fixer that does not keep to what is expected of it."""
    oracle = Oracle(runner, program.files, program.ranks)
    varied, late = _compared(oracle.compare(program.files, Gate.BITWISE))
    if varied or late:  # what differs without an edit says nothing about one
        answer = "varies as found" if varied else NOT_JUDGED
        yield {"program": program.name, "fixer": "", "answer": answer, "detail": late or "; ".join(varied[:3])}
        return
    for name in names:
        try:
            made = list(proposals(program, name, oracle.whole.noted))
        except Exception as error:  # noqa: BLE001 - whatever a fixer raises says something of that pair alone
            detail = "".join(traceback.format_exception_only(error)).strip()
            yield {"program": program.name, "fixer": name, "answer": FAILED, "detail": detail}
            continue
        if name in program.edited and not made:
            yield {"program": program.name, "fixer": name, "answer": "missing", "detail": "expected to edit"}
        for one in made:
            row: Row = {"program": program.name, "family": program.family, "fixer": name, "gate": one.gate.value}
            found, late = _compared(oracle.differences(one))
            if late and not found:
                yield {**row, "answer": NOT_JUDGED, "detail": late, "diff": _diff(program, one.files)}
            elif found:
                yield {**row, "answer": "wrong", "detail": "; ".join(found[:3]), "diff": _diff(program, one.files)}
            elif name in program.left_alone and one.gate is not Gate.TRAINING:
                detail = f"must be left alone: {program.left_alone[name]}"
                yield {**row, "answer": "unwarranted", "detail": detail, "diff": _diff(program, one.files)}
            else:
                yield {**row, "answer": "right", "detail": one.summary}


def _compared(differences: Iterator[Difference]) -> tuple[list[str], str]:
    """The differences that are found, and what did not end in time; empty where all did."""
    found: list[str] = []
    try:
        for each in differences:
            found.append(str(each))
    except NotJudged as late:
        return found, str(late)
    return found, ""


def summed_up(asked: Asked, missing: Sequence[Pair] = ()) -> str:
    """The table of a run, in Markdown; `missing`: what its parts leave to be asked."""
    rows = asked.rows
    count = Counter(str(row["answer"]) for row in rows)
    edits = sum(row["answer"] in _OF_EDITS and bool(row["fixer"]) for row in rows)
    lines = [
        f"{len(asked.programs)} programs × {len(asked.fixers)} fixers: {len(asked.done)} pairs asked, {edits} edits "
        f"proposed, {count['wrong']} wrong, {count['unwarranted']} unwarranted, {count['missing']} missing, "
        f"{count[NOT_JUDGED]} not judged, {count[FAILED]} failed.",
        "",
    ]
    if missing:
        lines += [f"**Not asked: {len(missing)} of {len(asked.due)} pairs.**", ""]
        for program in dict.fromkeys(program for program, _ in missing):
            names = [name for one, name in missing if one == program]
            some = ", ".join(f"`{name}`" for name in names[:_LISTED])
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            lines.append(f"- {program}: {'all fixers' if len(names) == len(asked.fixers) else some + more}")
        lines.append("")
    columns = ("wrong", "unwarranted", "missing", NOT_JUDGED, FAILED)
    lines += [f"| fixer | proposed | {' | '.join(columns)} |", f"|---|---{'|---' * len(columns)}|"]
    for name in sorted({str(row["fixer"]) for row in rows}):
        one = Counter(str(row["answer"]) for row in rows if row["fixer"] == name)
        proposed = sum(one[each] for each in _OF_EDITS) if name else 0
        cells = [f"`{name}`", proposed, *(one[each] for each in columns)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
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
