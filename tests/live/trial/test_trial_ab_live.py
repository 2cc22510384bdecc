"""Both sides of a trial with torch between them: a real program takes turns, is traced, guarded and judged."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from watching import LIGHT_TORCH

from diagnose.errors import ProgramFailed
from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate
from diagnose.program import Program
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import RangeKind
from diagnose.trial.bench import Bench
from diagnose.trial.schedule import Deadline, Schedule

SCHEDULE = Schedule(
    pairs=4, generations=2, warmup_steps=2, drop_steps=1, block_ns=1, least_steps=2, usual_steps=2, look_every=9
)
HEAD = f"""
import sys
{LIGHT_TORCH}
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 256)
"""
LOOP = """
for step in range({steps}):
    for _ in range({waste}):
        x @ x
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""
# The waste is far longer than a turn of the scheduler on a busy machine, so that no such turn can hide it.
SLOW, FAST = HEAD + LOOP.format(steps=80, waste=100), HEAD + LOOP.format(steps=80, waste=0)
FIXER = Fixer("no-waste", lambda _request: None, Gate.BITWISE, "compute")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SLOW)
    return folder


def bench(project: Path, tmp_path: Path) -> Bench:
    program = Program.parse(["train.py"], cwd=project)
    return Bench(program, tmp_path / "trials", SCHEDULE, Deadline(), environment={**os.environ, "OMP_NUM_THREADS": "1"})


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_fix_that_removes_waste_is_kept_and_the_users_files_stay_as_they_were(project: Path, tmp_path: Path) -> None:
    before = hashes(project)
    with bench(project, tmp_path) as trials:
        patched = trials.copy({"train.py": FAST}, "patched")
        original = trials.copy({}, "original")
        trial = trials.attempt(FIXER, original, patched)
        before_ns, after_ns = trials.steps_alone([(original, "before"), (patched, "after")], 4)
    verdict = trial.verdict
    assert verdict.decision is Decision.KEPT, verdict.summary
    assert (verdict.pairs, verdict.generations) == (4, 2)
    assert verdict.mechanism is not None
    assert verdict.mechanism.moved is True
    assert verdict.gate is not None
    assert verdict.gate.passed is True
    assert verdict.peak_memory_bytes is not None
    assert verdict.startup_ns is not None
    assert min(verdict.startup_ns) > 0
    assert verdict.pays_after_steps is not None
    assert before_ns is not None
    assert after_ns is not None
    assert after_ns < before_ns
    (trace,) = open_traces(trial.traces)
    assert int((trace.ranges.kind == RangeKind.STEP).sum()) == SCHEDULE.trace_steps
    assert hashes(project) == before


def test_a_fix_that_crashes_costs_the_fix_its_chance_and_says_its_last_words(project: Path, tmp_path: Path) -> None:
    with bench(project, tmp_path) as trials:
        broken = FAST.replace(
            "    loss.backward()", "    if step == 6: raise ValueError('shapes differ')\n    loss.backward()"
        )
        trial = trials.attempt(FIXER, trials.copy({}, "original"), trials.copy({"train.py": broken}, "patched"))
    assert trial.verdict.decision is Decision.FAILED
    assert trial.verdict.summary == "crashed: the program exited with code 1: ValueError: shapes differ"


def test_a_baseline_that_fails_in_a_trial_costs_that_trial_and_nothing_else(project: Path, tmp_path: Path) -> None:
    with bench(project, tmp_path) as trials:
        broken = SLOW.replace("for step", "raise ValueError('gone astray')\nfor step", 1)
        trial = trials.attempt(FIXER, trials.copy({"train.py": broken}, "broken"), trials.copy({}, "patched"))
    assert trial.verdict.decision is Decision.FAILED
    assert trial.verdict.summary.startswith("what it was tried against did not run: crashed")
    assert trial.verdict.summary.endswith("gone astray")


def test_a_program_that_writes_into_the_users_folder_is_refused_there(project: Path, tmp_path: Path) -> None:
    before = hashes(project)
    rude = SLOW.replace("for step", f"open({str(project / 'train.py')!r}, 'w').write('gone')\nfor step", 1)
    with bench(project, tmp_path) as trials:
        original = trials.copy({"train.py": rude}, "original")
        trials.prepare(original)
        with pytest.raises(ProgramFailed, match="may not write into the original"):
            trials.attempt(FIXER, original, trials.copy({}, "patched"))
    assert hashes(project) == before


def test_a_fix_left_out_of_the_stack_is_judged_by_time_alone(project: Path, tmp_path: Path) -> None:
    with bench(project, tmp_path) as trials:
        slow, fast = trials.copy({}, "slow"), trials.copy({"train.py": FAST}, "fast")
        needed = trials.leave_out(FIXER, slow, fast).verdict
        needless = trials.leave_out(FIXER, fast, slow).verdict
    assert needed.decision is Decision.KEPT, needed.summary
    assert " % of the step saved (4 pairs, +" in needed.summary
    assert needed.gate is None
    assert needless.decision is Decision.SLOWER, needless.summary


def test_a_fix_without_which_the_program_fails_cannot_be_left_out(project: Path, tmp_path: Path) -> None:
    with bench(project, tmp_path) as trials:
        broken = SLOW.replace("for step", "raise ValueError('nothing works')\nfor step", 1)
        verdict = trials.leave_out(FIXER, trials.copy({"train.py": broken}, "broken"), trials.copy({}, "stack")).verdict
    assert verdict.decision is Decision.FAILED
    assert verdict.summary.startswith("without it the program does not run: crashed")
    assert verdict.summary.endswith("nothing works")


def test_settings_are_measured_against_the_first_that_runs_and_the_cheapest_near_the_best_is_taken(
    project: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int, bool]] = []
    texts = [SLOW.replace("for step", "raise ValueError('no such setting')\nfor step", 1), SLOW, FAST]
    with bench(project, tmp_path) as trials:
        copies = [trials.copy({"train.py": text}, f"setting-{number}") for number, text in enumerate(texts)]
        chosen = trials.choose(copies, lambda *seen: told.append((seen[0], seen[1], seen[2] is not None)))
    assert chosen == [2, 1]
    assert told == [(0, 1, False), (2, 1, True)]
