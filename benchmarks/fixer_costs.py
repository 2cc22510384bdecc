"""Times all fixers on programs, and lists the slowest.

    python benchmarks/fixer_costs.py PROGRAM [PROGRAM…]              # folders of training programs, or their entries
    python benchmarks/fixer_costs.py PROGRAM --limit 5               # ends with 1 where one of them takes more seconds
    python benchmarks/fixer_costs.py PROGRAM --answers answers.json  # also write all answers down
    python benchmarks/fixer_costs.py PROGRAM --same answers.json     # ends with 1 where an answer differs from those

Each fixer is asked for each rule that names it, with a finding that names no line and with one that names the lines of
the steps, about all Python files of the folder; the entry is the file that is named most like one (`train.py`,
`main.py`). Where PROGRAM is a file, it is the entry, and what it reaches is asked about, as `diagnose fix` does; to
find those files and the steps counts too. One process, CPU time, nothing kept from before. A fixer that takes longer
than `diagnose fix` gives it is given up and named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from diagnose import plugins
from diagnose.compose.stack.asking_time import EACH_NS
from diagnose.errors import InputError
from diagnose.fixer import Advice, Edits, Facts, Finding, Fixer, Request
from diagnose.model import Confidence, Place, Severity
from diagnose.program import Program
from diagnose.program.reached_files import read_reached
from diagnose.program.source import read_source
from diagnose.rule import Rule
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.syntax import parse
from diagnose.source.tree.time_limit import TookTooLong, time_limit
from diagnose.units import NS_PER_S

ENTRIES = ("train.py", "main.py", "pretrain.py", "run.py")
SLOWEST = 5
"""Fixers that are listed for each program."""
FACTS = Facts(
    torch_version="2.13.0",
    device_name="NVIDIA H200",
    device_capability=(9, 0),
    device_memory_bytes=140_000_000_000,
    matmul_precision="highest",
    autocast_dtype="none",
    cudnn_benchmark=False,
    cudnn_deterministic=False,
    deterministic=False,
    cpu_count=16,
)
"""A machine on which most fixers have something to do."""


def main() -> int:
    """Print a table; 0 if every program stays below the limit and all answers are as before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=Path, help="folders, or entries")
    parser.add_argument("--limit", type=float, help="seconds that one program may take")
    parser.add_argument("--answers", type=Path, help="write all answers to this file")
    parser.add_argument("--same", type=Path, help="hold all answers against those in this file")
    asked = parser.parse_args()
    catalogue = plugins.load()
    answers: dict[str, object] = {}
    slow = False
    print("| program | files | kB | seconds | parsed whole | slowest fixers | given up |")
    print("|---|---|---|---|---|---|---|")
    for given in asked.programs:
        begun = time.process_time_ns()
        program = Program.parse([str(given)]) if given.is_file() else None
        sources = _sources(given) if program is None else _reached(program)
        reading = {"reading": time.process_time_ns() - begun} if program is not None else {}
        entry = str(program.entry) if program is not None else _entry(sources)
        name = given.name if program is None else program.root.name
        spent, given_up = _ask_all(name, sources, entry, catalogue, answers, reading)
        seconds = sum(spent.values()) / NS_PER_S
        slow = slow or (asked.limit is not None and seconds > asked.limit)
        print(_row(name, sources, spent, given_up), flush=True)
    if asked.answers is not None:
        asked.answers.write_text(json.dumps(answers, indent=0, sort_keys=True))
    changed = _differences(answers, json.loads(asked.same.read_text())) if asked.same is not None else []
    for key in changed:
        print(f"another answer: {key}", file=sys.stderr)
    return int(slow or bool(changed))


def _sources(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        try:
            found[str(path)] = read_source(path).text
        except InputError:
            continue  # it is not Python
    return found


def _reached(program: Program) -> dict[str, str]:
    """The entry, and the Python files of the program's that it reaches."""
    assert program.entry is not None  # a file was named
    known = {str(program.entry): read_source(program.entry).text}
    found = {**known, **read_reached(program, known)}
    return {path: text for path, text in found.items() if path.endswith(".py")}


def _ask_all(
    name: str,
    sources: Mapping[str, str],
    entry: str,
    catalogue: plugins.Catalogue,
    answers: dict[str, object],
    reading: Mapping[str, int],
) -> tuple[dict[str, int], list[str]]:
    """The time of each fixer in ns, and those that were given up; the answers are added to `answers`.

    `reading`: what it took to find the files, in ns; where it is there, the search for the steps counts as well.
    """
    parse.cache_clear()
    begun = time.process_time_ns()
    with time_limit(None):
        steps = tuple(_lines_of_steps(sources))
    spent = {**reading, "steps": time.process_time_ns() - begun} if reading else {}
    given_up: list[str] = []
    for fixer in catalogue.fixers.values():
        begun = time.process_time_ns()
        try:
            with time_limit(EACH_NS, time.process_time_ns):
                for rule in _rules_of(fixer, catalogue.rules.values()):
                    for kind, where in (("none", ()), ("steps", steps)):
                        answers[f"{name} {fixer.name} {rule} {kind}"] = _answers(
                            fixer, _request(rule, sources, entry, where)
                        )
        except TookTooLong:
            given_up.append(fixer.name)
        spent[fixer.name] = time.process_time_ns() - begun
    return spent, given_up


def _rules_of(fixer: Fixer, rules: Iterable[Rule]) -> list[str]:
    return sorted(rule.name for rule in rules if fixer.name in rule.fixers)


def _lines_of_steps(sources: Mapping[str, str]) -> Iterator[Place]:
    """The lines of the loops over batches, which findings name in most runs."""
    for stretch in EveryStep(sources).stretches:
        if stretch.loop is not None:
            first, last = stretch.source.lines_of(stretch.loop)
            yield from (Place(stretch.path, line) for line in range(first, last + 1))


def _request(rule: str, sources: Mapping[str, str], entry: str, where: Sequence[Place]) -> Request:
    finding = Finding(rule, Severity.HIGH, 0, 10_000_000, 0.5, Confidence.MEASURED, "asked", where=tuple(where))
    return Request(finding, sources, (), FACTS, {}, entry, {}, (entry,), str(Path(entry).parent))


def _entry(sources: Mapping[str, str]) -> str:
    """The file that is named most like an entry."""
    return min(sources, key=lambda path: (_rank(Path(path).name), path.count("/"), path))


def _rank(name: str) -> int:
    return ENTRIES.index(name) if name in ENTRIES else len(ENTRIES)


def _answers(fixer: Fixer, request: Request) -> list[object]:
    """The fixer's answers for its first and its last setting."""
    settings = list(fixer.settings(request))
    return [
        _written(fixer.rewrite(replace(request, setting=setting))) for setting in [*settings[:1], *settings[1:][-1:]]
    ]


def _written(answer: object) -> object:
    if isinstance(answer, Edits):
        return [dict(answer.files), answer.summary, answer.gate.value if answer.gate else None, answer.because]
    return answer.text if isinstance(answer, Advice) else None


def _row(name: str, sources: Mapping[str, str], spent: Mapping[str, int], given_up: Sequence[str]) -> str:
    whole = sum("module" in vars(source) for text in sources.values() if (source := parse(text)) is not None)
    slowest = sorted(spent, key=lambda fixer: -spent[fixer])[:SLOWEST]
    listed = ", ".join(f"{fixer} {spent[fixer] / NS_PER_S:.1f}" for fixer in slowest)
    size = sum(map(len, sources.values())) // 1000
    seconds = sum(spent.values()) / NS_PER_S
    return f"| {name} | {len(sources)} | {size} | {seconds:.1f} | {whole} | {listed} | {', '.join(given_up) or '-'} |"


def _differences(now: Mapping[str, object], before: Mapping[str, object]) -> list[str]:
    """The questions that both were asked and answered otherwise."""
    return [key for key in sorted(now.keys() & before.keys()) if now[key] != before[key]]


if __name__ == "__main__":
    sys.exit(main())
