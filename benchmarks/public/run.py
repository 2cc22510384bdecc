"""diagnose-bench: `diagnose fix` on public programs that are edited in nothing, by the programs' own printed speed.

    python benchmarks/public/run.py OUT --checkouts DIR [--only NAME …] [--budget 5m] [--seconds 40] [--repeats 3]

DIR holds a checkout of each repository, as OWNER+NAME: `git clone https://…/karpathy/nanoGPT DIR/karpathy+nanoGPT`, at
the commit that programs.toml names. Data is made in DIR/data, once.

Arms, each started `--repeats` times in turns, and timed by what the program itself prints:

    as found     the program and its command, as published
    switches     with its own best switches, as its authors would have them used
    rounding     as `diagnose fix` leaves it: fixes that keep every number, or change its last bits
    training     as `diagnose fix --allow training` leaves it

Every program has a row, also where nothing was kept or something failed. An interval is the slowest and the fastest
repeat; a gain's lower end is the slowest repeat of the arm over the fastest of the program as found.

    OUT/results.json, OUT/results.md     the table, which is also printed last
    OUT/NAME-ARM.log, -ARM.json, .patch  what was printed, what `diagnose` reports with its predictions, what it changed
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from data import MAKERS  # noqa: E402 - a folder of scripts, no package

START_S = 120
"""Seconds that a program may take until its first printed figure, compiling included."""
FIX_ARMS = {"rounding": (), "training": ("--allow", "training")}


@dataclass(frozen=True)
class Program:
    """One program of programs.toml."""

    name: str
    repository: str
    commit: str
    folder: str
    command: str
    figure: str
    unit: str
    switches: str
    data: str = ""
    data_at: str = ""

    def words(self, data: Path) -> list[str]:
        """Its command, with this Python."""
        words = [word.format(data=data) for word in shlex.split(self.command)]
        return [sys.executable if word == "python" else word for word in words]

    def speed(self, printed: float) -> float:
        """The printed figure as something of which more is better: steps or items per second."""
        return {"ms": 1000 / printed, "s": 1 / printed, "items/s": printed}[self.unit] if printed else 0.0


@dataclass
class Row:
    """Speeds of one program by arm, one for each repeat, as its printed figures give them."""

    name: str
    commit: str
    speeds: dict[str, list[float]] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def main() -> None:
    """Measure the programs that were asked for, write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--programs", type=Path, default=HERE / "programs.toml")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--arms", nargs="*", default=["switches", *FIX_ARMS], choices=["switches", *FIX_ARMS])
    parser.add_argument("--budget", default="5m", help="of each `diagnose fix`")
    parser.add_argument("--seconds", type=float, default=40, help="of printed figures, each start")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    programs = [Program(name, **entry) for name, entry in tomllib.loads(args.programs.read_text()).items()]
    rows: list[Row] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for program in programs:
        if not args.only or program.name in args.only:
            rows.append(measured(program, args))
            content = {"budget": args.budget, "seconds": args.seconds, "rows": [asdict(row) for row in rows]}
            (args.out / "results.json").write_text(json.dumps(content, indent=1))
            (args.out / "results.md").write_text(table(rows, args.budget))
    print((args.out / "results.md").read_text() if rows else "no such program")


def measured(program: Program, args: argparse.Namespace) -> Row:
    """One program in all arms."""
    checkout = args.checkouts.resolve() / program.repository.replace("/", "+")
    row = Row(program.name, _commit(checkout) or "not a git checkout")
    if not checkout.is_dir():
        row.notes.append("no checkout")
        return row
    data = args.checkouts.resolve() / "data" / (program.data or "none")
    if program.data and not data.exists():
        part = data.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        MAKERS[program.data](part)
        part.rename(data)
    arms = {"as found": (_copy(program, checkout, data, args.out, "found"), program.words(data))}
    if "switches" in args.arms and program.switches:
        arms["switches"] = (arms["as found"][0], program.words(data) + shlex.split(program.switches))
    for arm, options in FIX_ARMS.items():
        if arm in args.arms:
            place = _copy(program, checkout, data, args.out, arm)
            words, row.kept[arm] = _fixed(program, place, program.words(data), arm, options, args)
            arms[arm] = (place, words)
    for number in range(args.repeats):
        for arm, (place, words) in arms.items():
            log = args.out.resolve() / f"{program.name}-{arm.replace(' ', '-')}-{number}.log"
            figures = printed_figures(words, place, program.figure, args.seconds, log)
            if figures:
                row.speeds.setdefault(arm, []).append(program.speed(statistics.median(figures)))
            else:
                row.notes.append(f"{arm}: no figure in start {number + 1}")
    return row


def _commit(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    asked = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _copy(program: Program, checkout: Path, data: Path, out: Path, arm: str) -> Path:
    """The folder in which the program's command is typed, in a fresh copy of its repository."""
    top = out.resolve() / "work" / f"{program.name}-{arm}"
    shutil.rmtree(top, ignore_errors=True)
    shutil.copytree(checkout, top, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    place = top / program.folder
    if program.data_at:
        target = place / program.data_at
        target.mkdir(parents=True, exist_ok=True)
        for file in data.iterdir():
            (target / file.name).unlink(missing_ok=True)
            (target / file.name).symlink_to(file)
    return place


def _fixed(
    program: Program, place: Path, words: Sequence[str], arm: str, options: Sequence[str], args: argparse.Namespace
) -> tuple[list[str], list[str]]:
    """Run `diagnose fix` and `apply` there: the command from then on, and the fixes that were kept."""
    stem = args.out.resolve() / f"{program.name}-{arm}"
    tool = [sys.executable, "-m", "diagnose"]
    with stem.with_suffix(".log").open("wb") as log:
        command = [*tool, "fix", "--plain", "--budget", args.budget, *options, *words[1:]]
        subprocess.run(command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    report = subprocess.run([*tool, "report", "--json"], cwd=place, capture_output=True, text=True, check=False)
    stem.with_suffix(".json").write_text(report.stdout)
    applied = subprocess.run([*tool, "apply", "--json"], cwd=place, capture_output=True, text=True, check=False)
    if applied.returncode:
        return list(words), []
    told = json.loads(applied.stdout)
    patches = sorted((place / ".diagnose" / "runs").glob("*/patch.diff"))
    shutil.copy(patches[-1], stem.with_suffix(".patch"))
    verdicts = json.loads(report.stdout).get("verdicts", [])
    kept = [verdict["fixer"] for verdict in verdicts if verdict.get("decision") == "kept"]
    changed = [sys.executable if word == "python" else word for word in told.get("command", [])]
    return changed or list(words), kept


def printed_figures(words: Sequence[str], place: Path, pattern: str, seconds: float, log: Path) -> list[float]:
    """The figures of speed that a program prints in so many seconds, without the first third, in which it warms up."""
    found: list[tuple[float, float]] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        log.open("w") as kept,
        subprocess.Popen(
            words,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        start, rest = time.monotonic(), ""
        while process.poll() is None:
            time.sleep(0.02)
            rest += (process.stdout.read() or b"").decode(errors="replace")
            *lines, rest = re.split(r"[\r\n]", rest)
            now = time.monotonic()
            kept.writelines(line + "\n" for line in lines if line)
            found += [(now, float(match[1])) for line in lines if (match := re.search(pattern, line))]
            if now > (found[0][0] + seconds if found else start + START_S):
                break
        for way in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, way)
                process.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
    if not found:
        return []
    begin = found[0][0] + seconds / 3
    return [value for when, value in found if when >= begin]


def table(rows: Sequence[Row], budget: str) -> str:
    """The results as Markdown, a row for each program, failures included."""
    arms = ["switches", *FIX_ARMS]
    lines = [f"`diagnose fix --budget {budget}`; gain over the program as found: median [lower end]", ""]
    lines += ["| program | " + " | ".join(arms) + " | kept | notes |", "|---" * (len(arms) + 3) + "|"]
    for row in rows:
        found = row.speeds.get("as found", [])
        cells = []
        for arm in arms:
            speeds = row.speeds.get(arm, [])
            if not found or not speeds:
                cells.append("–")
                continue
            gain = statistics.median(speeds) / statistics.median(found)
            cells.append(f"{gain:.2f} × [{min(speeds) / max(found):.2f}]")
        kept = "; ".join(f"{arm}: {', '.join(names) or 'nothing'}" for arm, names in row.kept.items())
        lines.append(f"| {row.name} | " + " | ".join(cells) + f" | {kept} | {'; '.join(row.notes)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
