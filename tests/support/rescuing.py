"""A rescue on a made-up bench: little fixers that save memory, and programs that die or run by what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from composing import Stage, finding, fixer, replacing

from diagnose.compose import WITHOUT_ASKING, Outcome
from diagnose.compose.oom.oom_rescue import rescue
from diagnose.compose.stack.run_context import knowledge
from diagnose.fixer import Fixer
from diagnose.model import Accounting, Decision, Diagnosis, Gate, Steps
from diagnose.plugins import Catalogue
from diagnose.trace import Trace
from diagnose.trial.process.oom_progress import OomProgress
from diagnose.trial.schedule import Deadline

FEWER = fixer(
    "checkpoint-blocks", replacing("model = 3", "model = 3"), settings=lambda _: ({"k": 1}, {"k": 2}, {"k": 5})
)
SMALLER = fixer("smaller", replacing("loader = 1", "loader = 0"))
DIES = Decision.OUT_OF_MEMORY


def rescued(
    folder: Path,
    fixers: list[Fixer],
    alone: Mapping[str, Decision],
    gate_passes: bool | None = True,
    allow: frozenset[Gate] = WITHOUT_ASKING,
    findings: int = 1,
    deadline: Deadline | None = None,
    died_after: int = 0,
    reached: Mapping[str, OomProgress] | None = None,
    most_steps: int = 1_000_000,
) -> tuple[Outcome, Stage]:
    stage = Stage(folder, fixers, [])
    stage.bench.alone_by_text, stage.bench.gate_passes = alone, gate_passes
    stage.bench.reached_by_text, stage.bench.most_steps_alone = reached or {}, most_steps
    died = [
        replace(finding(f"memory-pressure-{number}", 0, *(one.name for one in fixers)), ends_run=True)
        for number in range(findings)
    ]
    other = finding("input-bound", 9, "faster-loader")
    diagnosis = Diagnosis(1, (), 1, None, Steps(0, None), Accounting(), (other, *died))
    catalogue = Catalogue({}, {one.name: one for one in fixers})
    known = knowledge(stage.program, diagnosis, [Trace("run")])
    limit = deadline or Deadline()
    bench, record = stage.bench, stage.events.append
    outcome = rescue(stage.program, diagnosis, known, catalogue, record, bench, limit, allow, died_after)
    return outcome, stage
