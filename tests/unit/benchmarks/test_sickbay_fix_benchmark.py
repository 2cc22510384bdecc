"""The bar for `diagnose fix`: versions of a script take turns, and what a journal tells becomes tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from sickbay_markdown import last_words, markdown, reached, speedup  # noqa: E402
from sickbay_patients import patients  # noqa: E402
from sickbay_treatment import apply, read_journal, reverts, spans, told  # noqa: E402
from turns import DROP, WARM_UP, Standby, Version, VersionFailed, block_steps, take_turns  # noqa: E402

from diagnose.model import TOGETHER  # noqa: E402
from diagnose.program import patch  # noqa: E402

PROGRAM = """
import sys
import torch

weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
{more}
while True:
    weight.sum().backward()
    optimizer.step()
    print("step", file=open("steps-" + sys.argv[1], "a"))
"""


def version(folder: Path, name: str, more: str = "") -> Version:
    script = folder / f"{name}.py"
    script.write_text(PROGRAM.format(more=more))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return Version(name, script, [name], variables, folder / f"{name}.log")


@pytest.mark.slow
def test_versions_take_turns_over_the_same_steps(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    both = [version(tmp_path, "before"), version(tmp_path, "after")]
    timing = take_turns(both, 2, [Standby(both[1].environment, tmp_path / "waiting.log")])
    assert timing.together
    assert timing.rounds.keys() == {"before", "after"}
    assert all(len(steps) == 2 and min(steps) > 0 for steps in timing.rounds.values())
    taken = [len((tmp_path / f"steps-{one.name}").read_text().splitlines()) for one in both]
    # The step that ends a block has not returned to the script.
    assert taken == [WARM_UP + 2 * (DROP + timing.steps) - 1] * 2


@pytest.mark.slow
def test_a_script_that_fails_says_so_in_its_last_words(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(VersionFailed, match="no corpus here"):
        take_turns([version(tmp_path, "broken", 'raise SystemExit("no corpus here")')], 1)


@pytest.mark.slow
def test_a_script_that_a_signal_ends_says_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(VersionFailed, match=r"Segmentation fault.* in string_at"):
        take_turns([version(tmp_path, "crashing", "import ctypes; ctypes.string_at(0)")], 1)


@pytest.mark.slow
def test_versions_that_do_not_fit_together_run_one_by_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    crowded = 'import os; os.path.exists("was") or (open("was", "w"), sys.exit("CUDA out of memory"))'
    timing = take_turns([version(tmp_path, "large", crowded)], 1)
    assert not timing.together
    assert len(timing.rounds["large"]) == 1


def test_a_block_has_whole_periods_and_lasts() -> None:
    assert block_steps(400_000_000) == 20
    assert block_steps(5_000_000) == 100


@pytest.mark.parametrize("folder", ["sickbay", "heldout"])
def test_every_program_for_one_device_is_laid_out_with_its_expert(folder: str, tmp_path: Path) -> None:
    found = patients(ROOT / "benchmarks" / folder)
    assert len({one.name for one in found}) == len(found) >= 10
    assert ("naive_gpt" in {one.name for one in found}) == (folder == "sickbay")
    assert [one.expert is None for one in found] == sorted(one.expert is None for one in found)
    for one in found:
        script = one.lay_out(tmp_path / one.name, one.found)
        assert script.name == "train.py"
        assert script.read_text() == one.found.read_text()
        assert not {"healthy.py", "expert.py"} & {path.name for path in script.parent.iterdir()}


def test_named_programs_come_in_the_order_in_which_they_were_named() -> None:
    names = ["slow_optimizer", "naive_gpt"]
    assert [one.name for one in patients(ROOT / "benchmarks" / "sickbay", names)] == names
    with pytest.raises(ValueError, match="straggler"):
        patients(ROOT / "benchmarks" / "sickbay", ["straggler"])


def seconds(kind: str, at_s: float, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "at_ns": round(at_s * 1e9), **fields}


SAVING = {"estimate": 0.5, "low": 0.4, "high": 0.6}
VERDICT = {
    "fixer": "fused-optimizer",
    "decision": "kept",
    "summary": "saves half",
    "setting": {},
    "saving": SAVING,
    "saving_ns": 5_000_000,
    "predicted_ns": 6_000_000,
    "prediction": "bound",
    "gate": {"gate": "rounding", "passed": True, "detail": "within the bound"},
}
JOURNAL = [
    seconds("RunStarted", 0),
    seconds("FactsLearned", 1, facts={"device_name": "NVIDIA H200", "torch_version": "2.11.0"}),
    seconds("PhaseChanged", 2, phase="measuring what this machine can resolve"),
    seconds("ControlMeasured", 10, resolution=0.01, pairs=8, generations=2, step_ns=10_000_000),
    seconds("TrialStarted", 10, fixer="fused-optimizer"),
    seconds("TrialBlock", 16, fixer="fused-optimizer"),
    seconds("TrialBlock", 20, fixer="fused-optimizer"),
    seconds("VerdictReached", 25, verdict=VERDICT),
    seconds("PatchAccepted", 26, diff="…", fixers=["fused-optimizer"]),
    seconds("PhaseChanged", 27, phase="running the patched program alone"),
    seconds("FinalMeasured", 30, original_ns=10, patched_ns=5, runs=1),
    seconds("RunEnded", 31),
]


def test_a_journal_says_where_the_time_went() -> None:
    assert spans(JOURNAL) == [
        ("starting", 2.0),
        ("measuring what this machine can resolve", 8.0),
        ("fused-optimizer: starts and warm-ups", 6.0),
        ("fused-optimizer: blocks", 4.0),
        ("fused-optimizer: windows and gate", 5.0),
        ("between", 2.0),
        ("running the patched program alone", 4.0),
    ]


def test_the_look_at_the_numbers_is_a_part_of_its_own() -> None:
    phase = seconds("PhaseChanged", 22, phase="checking the numbers of fused-optimizer", detail="rounding")
    told_of = [*JOURNAL[:7], phase, *JOURNAL[7:]]
    assert spans(told_of)[4:7] == [
        ("fused-optimizer: windows and gate", 2.0),
        ("checking the numbers of fused-optimizer", 3.0),
        ("between", 2.0),
    ]


def test_a_common_trial_is_no_fix() -> None:
    common = {**VERDICT, "fixer": TOGETHER}
    assert last_words({"tried": [common, VERDICT]}).keys() == {"fused-optimizer"}


def test_a_torn_journal_is_told_as_far_as_it_goes() -> None:
    assert read_journal('{"type": "RunStarted"}\n{"type": "Ph') == [{"type": "RunStarted"}]
    assert told([])["kept"] == []
    assert spans([]) == []


def record(found: list[float], fixed: list[float], expert: list[float], work: float = 1) -> dict[str, Any]:
    fix = {**told(JOURNAL), "seconds": 31, "problem": None, "spans": spans(JOURNAL)}
    fix |= {"untouched": True, "applied": True, "reverts": True}
    rounds = {"found": found, "fixed": fixed, "expert": expert}
    timing = {"steps": 20, "rounds": rounds, "problem": None, "together": True, "seconds": 20}
    return {"expert_work": work, "fix": fix, "timing": timing}


def test_rounds_are_pairs() -> None:
    one = record([10e6, 20e6], [5e6, 10e6], [4e6, 8e6])
    won, low, high = speedup(one["timing"], "fixed", "found") or (0, 0, 0)
    assert (won, low, high) == pytest.approx((2, 2, 2))  # each round was twice as slow in all
    assert (reached(one) or (0,))[0] == pytest.approx(0.8)


def test_an_expert_who_does_more_work_in_a_step_is_measured_by_work() -> None:
    share = reached(record([10e6], [10e6], [40e6], work=16)) or (0,)
    assert share[0] == pytest.approx(0.25)


def test_the_tables_say_what_was_kept_predicted_and_missed() -> None:
    programs = {"slow": record([10e6] * 3, [5e6] * 3, [4e6] * 3), "good": record([10e6] * 3, [5e6] * 3, [5e6] * 3)}
    text = markdown({"python": "3.12.3", "recorded": "2026-11-21", "programs": programs})
    assert text.startswith("NVIDIA H200 · Python 3.12.3, torch 2.11.0 · 2026-11-21.")
    assert (
        "| `slow` | 10.00 ms | 5.00 ms | 4.00 ms | 2.00× [2.00, 2.00] | 80.0 % [80.0, 80.0] | `fused-optimizer` |"
        in text
    )
    assert "median 90.0% of 2 programs; below 95 %: `slow` (80.0%)" in text
    assert "could not be checked: 0 of 2" in text
    assert "| `slow` | `fused-optimizer` | kept | 50.0% [40.0%, 60.0%] | 5.00 | at most 6.00 | rounding: held |" in text
    assert "starts and warm-ups 6 s" in text


def test_a_reason_that_fixes_of_a_program_share_is_written_out_once() -> None:
    one = record([10e6], [5e6], [5e6])
    unmeasured = {**VERDICT, "saving": None, "saving_ns": None, "summary": "tried with 1 other at once"}
    one["fix"]["tried"] = [{**unmeasured, "fixer": "first"}, {**unmeasured, "fixer": "second"}]
    text = markdown({"python": "3.12", "recorded": "", "programs": {"slow": one, "other": one}})
    assert text.count("kept: tried with 1 other at once") == 2  # once a program
    assert text.count("| `second` | kept: as above |") == 2


def test_a_program_whose_fix_ended_in_an_error_stands_in_the_table() -> None:
    broken = record([10e6], [], [5e6])
    broken["fix"] |= {"problem": "exit code 1: it fell", "kept": []}
    del broken["timing"]["rounds"]["fixed"]
    unfinished = {"expert_work": 1}
    text = markdown({"python": "3.12", "recorded": "", "programs": {"broken": broken, "unfinished": unfinished}})
    assert "as found" in text
    assert "nothing (exit code 1: it fell)" in text
    assert "| `unfinished` | | | | | | nothing |" in text


def test_a_patch_is_applied_and_taken_back_for_a_look_and_left_in_place(tmp_path: Path) -> None:
    script, out = tmp_path / "work" / "train.py", tmp_path / "out"
    script.parent.mkdir()
    out.mkdir()
    script.write_text("rate = 1\n")
    run = script.parent / ".diagnose" / "runs" / "20261121-120000-train"
    run.mkdir(parents=True)
    added = script.with_name("diagnose_fixes.py")
    patch.store(patch.make({str(script): "rate = 2\n", str(added): "steps = 3\n"}, script.parent), run)
    assert apply(script, os.environ, out)
    assert script.read_text() == "rate = 2\n"
    assert reverts(script, b"rate = 1\n", os.environ, out)
    assert script.read_text() == "rate = 2\n"
    assert added.read_text() == "steps = 3\n"
