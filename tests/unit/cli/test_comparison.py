"""Two runs side by side: what moved, by more than noise or not, and when they cannot be compared."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.cli import main
from diagnose.comparison import Comparison, Portrait, TimeSpent, compare, portrait_of, read_baseline, to_baseline
from diagnose.comparison.changes import PROCESSES
from diagnose.comparison.identity import Identity
from diagnose.comparison.portrait import PORTRAIT
from diagnose.engine import diagnose
from diagnose.errors import InputError
from diagnose.measure import Measures
from diagnose.model import Accounting, Confidence, Finding, Severity
from diagnose.plugins import load
from diagnose.report.terminal.comparison import render, to_json
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import StepLog

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NAIVE, EXPERT, CPU = (SAMPLES / name for name in ("h200_naive_gpt", "h200_expert_gpt", "cpu_demo"))
MS = 1_000_000
GPT = Identity({"linear 768×3072": 12, "linear 768×50257": 1}, {"linear": 13 * 1024})


def portrait(mean_ms: float = 100, spread_ms: float = 0, **changes: Any) -> Portrait:
    """A run of 40 steps, half of them longer than their mean and half of them shorter, in no order."""
    sides = random.Random(0).sample([-1, 1] * 20, 40)
    steps = tuple(round((mean_ms + spread_ms * side) * MS) for side in sides)
    plain = Portrait(("run",), 1, "NVIDIA H200", GPT, steps, True, Accounting(compute=round(mean_ms * MS)))
    return replace(plain, **changes)


def finding(rule: str, recoverable_ms: int = 10) -> Finding:
    return Finding(rule, Severity.HIGH, None, recoverable_ms * MS, 0.1, Confidence.MEASURED, f"it is {rule}")


def verdict(comparison: Comparison) -> str:
    assert comparison.step is not None
    return comparison.step.verdict


@pytest.mark.parametrize(
    ("after", "expected"), [(99.2, "no change"), (100.9, "no change"), (103, "slower"), (97, "faster")]
)
def test_a_change_counts_from_what_two_processes_differ_by(after: float, expected: str) -> None:
    assert verdict(compare(portrait(100), portrait(after))) == expected


def test_noisy_steps_hide_what_quiet_ones_show() -> None:
    assert verdict(compare(portrait(100, 1), portrait(103, 1))) == "slower"
    noisy = compare(portrait(100, 20), portrait(103, 20))
    assert verdict(noisy) == "no change"
    assert noisy.step is not None
    # Two medians, each with 1.2533 × 1.4826 × 20 ms over the root of 40 as its standard error, twice.
    assert noisy.step.noise == pytest.approx(2 * 1.2533 * 1.4826 * 20 / 40**0.5 / 100 * 2**0.5, rel=0.05)


def test_steps_that_take_turns_are_compared_by_whole_periods() -> None:
    """Gradients of two batches are accumulated: a median alone would be that of one kind of step, and change sides."""
    before = portrait(step_ns=(60 * MS, 80 * MS) * 20)
    assert verdict(compare(before, portrait(step_ns=(80 * MS, 60 * MS) * 20 + (80 * MS,)))) == "no change"
    slower = compare(before, portrait(step_ns=(60 * MS, 84 * MS) * 20)).step
    assert slower is not None
    assert slower.verdict == "slower"
    assert slower.change == pytest.approx(2 / 70)
    # Beside a run without turns both are medians, and what the kinds differ by is noise again.
    without = compare(before, portrait(step_ns=(60 * MS,) * 40)).step
    assert without is not None
    assert without.noise == pytest.approx(math.hypot(PROCESSES, 2 * 1.2533 * 1.4826 * 10 / 40**0.5 / 70))


def test_it_regresses_only_beyond_both_the_bound_and_the_noise() -> None:
    assert compare(portrait(100), portrait(106)).regressed_by(0.05)
    assert not compare(portrait(100), portrait(104)).regressed_by(0.05)
    assert not compare(portrait(100, 40), portrait(106, 40)).regressed_by(0.05)
    assert not compare(portrait(106), portrait(100)).regressed_by(0.05)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": "NVIDIA H100"}, "the devices differ: NVIDIA H200 and NVIDIA H100"),
        ({"ranks": 2}, "the numbers of ranks differ: 1 and 2"),
        ({"identity": Identity({"linear 512×512": 3}, {"linear": 3})}, "the models differ: linear 768×3072"),
        ({"identity": replace(GPT, rows={"linear": 26 * 1024})}, "the batches differ: 13,312 and 26,624 rows a step"),
        ({"step_ns": ()}, "no step was found in the second run"),
    ],
)
def test_what_cannot_be_compared_says_why(change: dict[str, Any], why: str) -> None:
    comparison = compare(portrait(), portrait(**change))
    assert comparison.step is None
    assert comparison.obstacles[0].startswith(why)
    assert "cannot be compared" in render(comparison, 80)
    assert not comparison.regressed_by(0)


@pytest.mark.parametrize(
    ("identity", "note"),
    [
        (Identity({"linear 768×3072": 12, "linear 768×50304": 1}, {"linear": 13 * 1024}), "the models differ slightly"),
        (
            Identity({"linear 768×3072": 24, "linear 768×50257": 2}, {"linear": 26 * 1024}),
            "linear runs 13 and 26 times a step: recomputation",
        ),
        (Identity(), "the second run's layers are unknown"),
    ],
)
def test_a_padded_vocabulary_recomputation_or_unknown_layers_are_noted(identity: Identity, note: str) -> None:
    comparison = compare(portrait(), portrait(identity=identity))
    assert comparison.step is not None
    assert comparison.notes[0].startswith(note)


def test_kernels_that_appeared_vanished_or_changed_come_with_what_they_moved() -> None:
    before = portrait(kernels={"gone": TimeSpent(2, 5 * MS), "same": TimeSpent(1, MS), "longer": TimeSpent(1, 2 * MS)})
    after = portrait(kernels={"new": TimeSpent(1, 3 * MS), "same": TimeSpent(1, MS), "longer": TimeSpent(1, 4 * MS)})
    moved = compare(before, after).kernels
    assert [(one.name, round(one.delta_ns / MS)) for one in moved] == [("gone", -5), ("new", 3), ("longer", 2)]
    text = render(compare(before, after), 80)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("  gone", "  new"))] == ["gone", "new"]


def test_findings_are_resolved_new_or_still_there() -> None:
    before = portrait(findings=(finding("host-sync"), finding("input-bound", 40)))
    after = portrait(findings=(finding("input-bound", 20), finding("gc-pause")))
    comparison = compare(before, after)
    assert [one.rule for one in comparison.resolved] == ["host-sync"]
    assert [one.rule for one in comparison.new] == ["gc-pause"]
    assert [(was.recoverable_ns, now.recoverable_ns) for was, now in comparison.lasting] == [(40 * MS, 20 * MS)]
    assert "input-bound (40.0 ms → 20.0 ms)" in render(comparison, 80)


def test_no_line_is_wider_than_asked_for() -> None:
    before = portrait(kernels={"a kernel with a very long name " * 9: TimeSpent(1, 9 * MS)})
    assert max(map(len, render(compare(before, portrait()), 80).splitlines())) <= 80


def test_the_json_form_says_the_same() -> None:
    plain = json.loads(to_json(compare(portrait(100), portrait(90))))
    assert plain["schema"] == 1
    assert plain["step"]["verdict"] == "faster"
    assert plain["step"]["change"] == pytest.approx(-0.1)
    assert plain["before"]["identity"]["weights"] == dict(GPT.weights)


@pytest.fixture(scope="module")
def naive() -> Portrait:
    """A real run."""
    traces = open_traces([NAIVE])
    return portrait_of([Measures(trace) for trace in traces], diagnose(traces, load()))


def test_a_live_run_is_compared_by_the_steps_that_nobody_traced(naive: Portrait) -> None:
    assert not naive.traced
    assert len(naive.step_ns) >= 20
    assert sorted(naive.step_ns)[len(naive.step_ns) // 2] < 386 * MS


@pytest.mark.parametrize(("length_ms", "traced"), [(2, True), (11, False)])
def test_the_pace_of_a_host_ahead_of_its_device_is_not_that_of_its_steps(length_ms: int, traced: bool) -> None:
    trace = drawn("gpu : kkkkkkkkkK\nstep:          |", repeat=4, kernels={"K": "another"})
    ends = (np.arange(60) - 560) * length_ms * MS
    trace = replace(trace, step_log=StepLog.build({"end_ns": ends}))
    assert portrait_of([Measures(trace)], diagnose([trace], load())).traced is traced


def test_the_portrait_of_a_run_knows_its_model_and_batch(naive: Portrait) -> None:
    assert naive.identity.weights["embedding 50257×768"] == 1
    assert naive.identity.rows["embedding"] == 16 * 1024 + 1024  # tokens, and positions once
    assert naive.accounting.total_ns == pytest.approx(sum(naive.accounting.idle.values()) + naive.accounting.compute
                                                      + naive.accounting.exposed_copy)  # fmt: skip
    kernels = sum(spent.ns for spent in naive.kernels.values())
    assert kernels >= naive.accounting.compute


def test_a_baseline_is_read_as_it_was_written(naive: Portrait, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(to_baseline(naive))
    assert read_baseline(path) == naive


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"{" * 50_000, b'{"version": 9}'])
def test_what_is_no_baseline_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="baseline"):
        read_baseline(path)


def test_a_baseline_of_another_version_is_refused(naive: Portrait, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(to_baseline(replace(naive, version=PORTRAIT + 1)))
    with pytest.raises(InputError, match="another version"):
        read_baseline(path)


def test_two_recordings_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(NAIVE), str(EXPERT)]) == 0
    out = capsys.readouterr().out
    assert "% faster" in out
    assert "Findings resolved\n  fp32-matmul" in out
    assert main(["compare", str(EXPERT), str(NAIVE), "--fail-on", "5%", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["step"]["verdict"] == "slower"


def test_runs_of_different_models_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(NAIVE), str(CPU), "--fail-on", "5%"]) == 2
    assert "cannot be compared" in capsys.readouterr().out


def test_a_baseline_is_kept_first_and_checked_from_then_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, run = tmp_path / "baseline.json", tmp_path / "run"
    shutil.copytree(CPU, run)
    assert main(["compare", str(run), "--baseline", str(baseline)]) == 0
    assert "the next run is compared with it" in capsys.readouterr().err
    assert main(["compare", str(run), "--baseline", str(baseline), "--fail-on", "5%"]) == 0
    assert "no change" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["a"], ["a", "b", "--baseline", "c"], ["a", "b", "--fail-on", "lots"]])
def test_a_wrong_call_says_what_to_write(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert "diagnose: " in capsys.readouterr().err


def test_a_run_whose_pace_wanders_tells_less_than_its_single_steps_do() -> None:
    """Two runs of one script on a machine whose clock comes and goes: 2 % apart is what either does by itself."""
    wandering = tuple(round((100 + 5 * (part % 2)) * MS) for part in range(8) for _ in range(50))
    shifted = tuple(round(length * 1.021) for length in wandering)
    assert verdict(compare(portrait(step_ns=wandering), portrait(step_ns=shifted))) == "no change"


def test_what_two_processes_differ_by_adds_to_the_noise_of_both() -> None:
    step = compare(portrait(100), portrait(101)).step
    assert step is not None
    assert step.noise >= 0.01
