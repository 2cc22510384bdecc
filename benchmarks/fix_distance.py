"""Compares the fixers' edits of each sick-bay program with its healthy twin, as text, without a device.

    python benchmarks/fix_distance.py RECORDED... [--only NAME...] [--arm healthy] [--run] [--diff]

RECORDED are folders that `accuracy.py record` wrote, or that hold one profile of each program (`sample_traces`). The
findings are those of the recording; the composer is the real one, on a bench that believes every fix: what it would
try is kept, with the first of its settings. So this shows what fixers do to a program, and nothing of what it saves.
A program without a recording gets the one finding that its `ailment.toml` tells of.

`--run` also runs the program as found and as fixed on the CPU, `--tiny` and a few steps, with `torch.compile` taken out
of the way, and compares the loss of every step. `--arm healthy` asks the same of the healthy programs: each edit there
is one that somebody would have to review for nothing.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from accuracy_programs import SICKBAY, programs
from accuracy_programs import Program as Patient

from diagnose.compose.search.greedy_search import GreedySearch
from diagnose.compose.stack.run_context import RunContext, knowledge
from diagnose.engine import diagnose
from diagnose.fixer import Fixer
from diagnose.model import (
    Accounting,
    Confidence,
    Decision,
    Diagnosis,
    Facts,
    Finding,
    Gate,
    GateCheck,
    GateResult,
    Interval,
    Place,
    Severity,
    Steps,
    Verdict,
)
from diagnose.plugins import Catalogue, load
from diagnose.program import Program
from diagnose.trace.readers import open_traces
from diagnose.trial.ab.arm_protocol import OnPair
from diagnose.trial.ab.knob_search import OnSetting
from diagnose.trial.bench import Bench, Trial
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.numerics_check import PartialStack
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.standalone import StandaloneRun

FOLDERS = (SICKBAY, SICKBAY.parent / "heldout")
_ALL = frozenset(Gate)
_DRAWN_ON = Facts(device_name="NVIDIA H200", device_capability=(9, 0), cpu_count=16)
_BELIEVED = Interval(0.5, 0.4, 0.6)
_STEP_NS = 100_000_000
_RUN_S = 240
_CLOSE = {Gate.BITWISE: 0.0, Gate.ROUNDING: 2e-3, Gate.TRAINING: 5e-2}
"""How far a loss may be from that of the program as found, as a share of it."""
_LOSSES = """
import os, runpy, sys, torch
sys.path.insert(0, os.getcwd())
backward = torch.Tensor.backward
def watched(self, *more, **others):
    print("LOSS", float(self.detach().double().mean()), flush=True)
    return backward(self, *more, **others)
torch.Tensor.backward = watched
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Distance:
    """The outcome of one program."""

    name: str
    ailment: str
    verdicts: tuple[Verdict, ...]
    found: str
    fixed: str
    twin: str
    rules: tuple[str, ...]
    """Of the findings, the heaviest first."""
    drawn: bool = False
    """There was no recording: the finding is drawn from what is known of the program."""
    losses: tuple[list[float], list[float]] | None = None
    boldest: Gate = Gate.BITWISE
    failure: str = ""

    @property
    def kept(self) -> tuple[str, ...]:
        """The fixers that edited, in order."""
        return tuple(verdict.fixer for verdict in self.verdicts if verdict.decision is Decision.KEPT)

    @property
    def cured(self) -> str:
        """Counts of the twin's differing lines that the fix took away and added."""
        gone, come = _differing(self.found, self.twin)
        have = [line.strip() for line in self.fixed.splitlines()]
        left = sum(line in have for line in gone)
        there = sum(line in have for line in come)
        return f"{len(gone) - left}/{len(gone)} gone, {there}/{len(come)} come"

    @property
    def numbers(self) -> str:
        """The losses as found beside those as fixed, in a word."""
        if self.failure:
            return self.failure
        if self.losses is None:
            return ""
        before, after = self.losses
        if len(before) != len(after) or not before:
            return f"{len(before)} losses as found, {len(after)} as fixed"
        worst = max(abs(one - other) / (abs(one) or 1.0) for one, other in zip(before, after, strict=True))
        word = "as promised" if worst <= _CLOSE[self.boldest] else "NOT as promised"
        return f"{word} ({self.boldest.value}, {worst:.1e})" if math.isfinite(worst) else "not a number"


@dataclass
class Believing(Bench):
    """A bench on which every fix holds and the first setting is the best."""

    program: Program
    texts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    # ruff: noqa: ARG002 - the names are those of `Bench`
    def copy(self, texts: Mapping[str, str], name: str) -> Program:
        self.texts[name] = texts
        return replace(self.program, root=self.program.root / ".." / name)

    def least_ns(self, plan: Plan) -> int:
        return 0

    def go_on(self) -> None:
        """Nobody leaves."""

    def prepare(self, original: Program) -> None:
        """Do nothing: no process is started."""

    def choose(self, candidates: Sequence[Program], on_try: OnSetting, *, scale: bool = False) -> list[int]:
        return list(range(len(candidates)))

    def attempt(
        self,
        fixer: Fixer,
        original: Program,
        patched: Program,
        on_pair: OnPair | None = None,
        numbers: Program | None = None,
        halfway: PartialStack | None = None,
        promised: float = 0.0,
        on_sure: Callable[[Verdict], None] = lambda _verdict: None,
        *,
        may_wait: bool = False,
    ) -> Trial:
        return Trial(Verdict(fixer.name, Decision.KEPT, "believed", saving=_BELIEVED, saving_ns=1))

    def leave_out(
        self,
        fixer: Fixer,
        without: Program,
        stack: Program,
        on_pair: OnPair | None = None,
        shown: GateResult | None = None,
    ) -> Trial:
        return Trial(Verdict(fixer.name, Decision.KEPT, "believed", saving=_BELIEVED, saving_ns=1))

    def alone(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun:
        return StandaloneRun()

    def gate(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
        loading: bool = False,
    ) -> GateResult:
        return GateResult(gate, True, "believed")

    @property
    def owes_whole_runs(self) -> bool:
        return False

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        return ()

    def step_alone(self, program: Program, name: str, steps: int) -> int | None:
        return _STEP_NS

    @property
    def final_steps(self) -> int:
        return 1

    def steps_alone(self, programs: Sequence[tuple[Program, str]], steps: int) -> list[int | None]:
        return [self.step_alone(program, name, steps) for program, name in programs]

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        return 0

    def check_ns(self) -> int:
        return 0

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        return 0


def distances(
    recorded: Sequence[Path], patients: Sequence[Patient], arm: str = "train", run: bool = False
) -> Iterator[Distance]:
    """One for each program that runs in one process and has the arm."""
    catalogue = load()
    for patient in patients:
        if patient.ranks == 1 and patient.gpus == 1 and (patient.folder / f"{arm}.py").exists():
            with tempfile.TemporaryDirectory() as folder:
                yield _distance(patient, arm, _recording(recorded, patient.name, arm), catalogue, Path(folder), run)


def _recording(recorded: Sequence[Path], name: str, arm: str) -> Path | None:
    for folder in recorded:
        places = [folder / name / arm / "run"] + ([folder / f"h200_{name}"] if arm == "train" else [])
        for place in places:
            if any(place.rglob("*.gz")):
                return place
    return None


def _distance(
    patient: Patient, arm: str, recording: Path | None, catalogue: Catalogue, folder: Path, run: bool
) -> Distance:
    found = (patient.folder / f"{arm}.py").read_text()
    script = f"{arm}.py"
    (folder / script).write_text(found)
    program = Program.parse([script], cwd=folder)
    diagnosis, known = _known(patient, program, recording, catalogue)
    outcome = GreedySearch(
        program, diagnosis, known, catalogue, _ignore, Believing(program), Schedule(), Deadline(), _ALL
    ).run()
    fixed = {str(folder / script): found}
    if outcome.patch is not None:
        fixed |= {str(folder / change.path): (change.after or b"").decode() for change in outcome.patch.changes}
    twin = patient.folder / "healthy.py"
    gates = [verdict.fixer for verdict in outcome.verdicts if verdict.decision is Decision.KEPT]
    distance = Distance(
        patient.name,
        patient.ailment,
        outcome.verdicts,
        found,
        fixed[str(folder / script)],
        (twin if twin.exists() else patient.folder / "expert.py").read_text(),
        tuple(finding.rule for finding in diagnosis.findings),
        recording is None,
        boldest=max(
            (catalogue.fixers[name].gate for name in gates), key=lambda gate: gate.boldness, default=Gate.BITWISE
        ),
    )
    return _ran(distance, folder, script, fixed) if run else distance


def _ignore(_event: object) -> None:
    pass


def _known(
    patient: Patient, program: Program, recording: Path | None, catalogue: Catalogue
) -> tuple[Diagnosis, RunContext]:
    """The diagnosis of a recording and what it knows, with all places in the files that are here."""
    traces = open_traces([recording]) if recording else []
    if traces:
        diagnosis = diagnose(traces, catalogue)
    else:
        drawn = _drawn(patient, catalogue) if program.name == "train" else ()
        diagnosis = Diagnosis(1, (), 1, None, Steps(4, _STEP_NS), Accounting(), drawn)
    here = _naming(program)
    findings = tuple(
        replace(finding, where=tuple(replace(place, file=here(place.file)) for place in finding.where))
        for finding in diagnosis.findings
    )
    diagnosis = replace(diagnosis, findings=findings)
    known = knowledge(program, diagnosis, traces)
    known = known if traces else replace(known, facts=_DRAWN_ON)
    sites = tuple(replace(site, file=here(site.file)) for site in known.sites)
    return diagnosis, replace(known, sites=sites)


def _naming(program: Program) -> Callable[[str], str]:
    """Recordings name the script by the folder in which they were made."""
    assert program.entry is not None
    entry = program.entry

    def here(file: str) -> str:
        return str(entry) if PurePath(file).name in {"train.py", "healthy.py", "expert.py"} else file

    return here


def _drawn(patient: Patient, catalogue: Catalogue) -> tuple[Finding, ...]:
    if patient.ailment not in catalogue.rules:
        return ()
    fixers = catalogue.rules[patient.ailment].fixers
    where = tuple(Place(patient.where, line) for line in patient.lines())
    summary = "drawn from what is known of the program"
    half = _STEP_NS // 2
    return (
        Finding(patient.ailment, Severity.HIGH, 0, half, 0.5, Confidence.MEASURED, summary, where=where, fixers=fixers),
    )


def _differing(found: str, twin: str) -> tuple[set[str], set[str]]:
    """The lines that only one of two texts has."""
    ours = {line.strip() for line in found.splitlines()} - {""}
    theirs = {line.strip() for line in twin.splitlines()} - {""}
    return ours - theirs, theirs - ours


def _ran(distance: Distance, folder: Path, script: str, fixed: Mapping[str, str]) -> Distance:
    try:
        before = _losses(folder, script)
        for path, text in fixed.items():
            compile(text, path, "exec")
            Path(path).write_text(text)
        after = _losses(folder, script) if distance.fixed != distance.found or len(fixed) > 1 else before
    except (SyntaxError, RuntimeError, subprocess.TimeoutExpired) as error:
        return replace(distance, failure=f"FAILS: {error}"[-400:])
    return replace(distance, losses=(before, after))


def _losses(folder: Path, script: str) -> list[float]:
    """Return the losses that `backward` is called on, in order. Raises RuntimeError where the program fails."""
    words = [sys.executable, "-c", _LOSSES, script, "--tiny", "--steps", "3"]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_RUN_S
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("LOSS ")]


def told(distance: Distance, with_diff: bool = False) -> str:
    """One paragraph on one program."""
    source = "drawn" if distance.drawn else ", ".join(distance.rules)
    lines = [f"{distance.name} ({distance.ailment or 'healthy'}): {distance.cured}; {distance.numbers}"]
    lines.append(f"  findings: {source}")
    for verdict in distance.verdicts:
        what = " ".join(f"{name}={value}" for name, value in verdict.setting.items())
        said = what if verdict.decision is Decision.KEPT else verdict.summary
        lines.append(f"  {verdict.decision.value:9} {verdict.fixer} {said}")
    if with_diff:
        changes = difflib.unified_diff(
            distance.found.splitlines(), distance.fixed.splitlines(), "found", "fixed", "", "", 1, ""
        )
        lines += [f"    {line}" for line in changes]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path, nargs="*")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--arm", choices=("train", "healthy"), default="train")
    parser.add_argument("--run", action="store_true", help="run both on the CPU and compare their losses")
    parser.add_argument("--diff", action="store_true", help="show what is changed")
    args = parser.parse_args()
    patients = [patient for folder in FOLDERS for patient in programs(folder=folder)]
    chosen = [patient for patient in patients if not args.only or patient.name in args.only]
    for distance in distances(args.recorded, chosen, args.arm, args.run):
        print(told(distance, args.diff), flush=True)


if __name__ == "__main__":
    main()
