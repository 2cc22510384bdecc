"""What watching a real program leaves behind, and that it leaves the program alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from watching import PROGRAMS, QUICK, Ran, run

from diagnose.collect import Recipe

TRAINING = PROGRAMS / "training.py"


def line_of(text: str, program: Path = TRAINING) -> int:
    """The number of the first line of `program` that has `text`."""
    return next(number for number, line in enumerate(program.read_text().splitlines(), 1) if text in line)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Forty plain steps, loaded by the training process itself."""
    return run(tmp_path_factory.mktemp("plain"), "training.py")


@pytest.fixture(scope="module")
def traced_events(plain: Ran) -> list[dict[str, Any]]:
    """The events of its trace."""
    with gzip.open(plain.folder / "rank0" / "trace.json.gz", "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_the_program_prints_what_it_prints_alone(plain: Ran, tmp_path: Path) -> None:
    alone = run(tmp_path, "training.py", watched=False)
    assert (plain.stdout, plain.stderr, plain.returncode) == (alone.stdout, alone.stderr, 0)
    assert plain.stdout.startswith("loss ")


def test_every_step_is_logged(plain: Ran) -> None:
    steps = plain.lines("steps.jsonl")
    assert len(steps) == 40
    assert [step["b"] for step in steps] == [1] * 40
    ends = [step["t"] for step in steps]
    assert ends == sorted(ends)
    # Two samples a batch, each of which sleeps for a millisecond.
    assert all(step["w"] >= 2_000_000 for step in steps)
    assert plain.record("end.json") == {"reason": "exit", "steps": 40}


def test_the_window_covers_whole_steady_steps(plain: Ran, traced_events: list[dict[str, Any]]) -> None:
    window, steps = plain.record("window.json"), plain.lines("steps.jsonl")
    first = window["first_step"]
    assert window["steps"] == QUICK.steps
    assert window["start_ns"] == steps[first - 1]["t"]
    assert window["end_ns"] == steps[first + 3]["t"]
    marks = [event["name"] for event in traced_events if event.get("name", "").startswith("ProfilerStep#")]
    assert marks == [f"ProfilerStep#{first + number}" for number in range(4)]
    # The lead-in step is in the trace as well, so that the first counted step has a step before it.
    optimizer = [event for event in traced_events if event.get("name") == "Optimizer.step#SGD.step"]
    # So is the lead-out step, in which lines are followed.
    assert len(optimizer) == 6
    assert all(event["dur"] > 0 for event in optimizer)


def test_the_trace_names_shapes(traced_events: list[dict[str, Any]]) -> None:
    shapes = [event["args"]["Input Dims"] for event in traced_events if event.get("name") == "aten::addmm"]
    assert [[16], [2, 16], [16, 16], [], []] in shapes


def test_facts_say_how_steadiness_was_decided(plain: Ran) -> None:
    facts = plain.record("facts.json")
    assert facts["steps_found_by"] == "optimizer"
    assert "medians of the last two blocks" in facts["steady"]
    assert facts["steady"] == plain.record("window.json")["steady"]
    assert facts["step_ns_watched"] > 2_000_000
    assert (facts["rank"], facts["world_size"], facts["torch_threads"]) == (0, 1, 1)
    assert facts["autocast_dtype"] == "none"
    assert facts.get("device_name") is None
    assert str(PROGRAMS) in facts["owned_roots"]
    assert facts["watcher_failures"] == []


def test_sites_are_the_users_lines_with_effective_arguments(plain: Ran) -> None:
    sites = {site["kind"]: site for site in plain.lines("sites.jsonl")}
    loader = sites["DataLoader"]
    assert (loader["file"], loader["line"], loader["function"]) == (str(TRAINING), line_of("DataLoader("), "main")
    assert loader["arguments"] | {"num_workers": 0, "batch_size": 2, "pin_memory": False} == loader["arguments"]
    assert (loader["arguments"]["dataset"], loader["arguments"]["iterable"]) == ("Squares", False)
    optimizer = sites["optimizer"]
    assert optimizer["line"] == line_of("torch.optim.SGD")
    assert optimizer["owned"]
    assert optimizer["arguments"] | {"name": "SGD", "fused": None, "tensors": 2} == optimizer["arguments"]


def test_the_first_steps_of_an_optimizer_show_whose_gradients_come(plain: Ran) -> None:
    line = line_of("SGD(")
    noted = {site["kind"] for site in plain.lines("sites.jsonl") if site["line"] == line}
    assert noted == {"optimizer", "stepped"}


def test_samples_lead_to_the_line_that_sleeps(plain: Ran) -> None:
    stacks = {stack["i"]: stack["f"] for stack in plain.lines("stacks.jsonl")}
    seen = [stack for record in plain.lines("samples.jsonl") for stack in record["s"]]
    sleeping = [str(TRAINING), line_of("time.sleep(self.seconds)"), "Squares.__getitem__"]
    assert any(stacks[stack][0] == sleeping for stack in seen)
    assert not any("collect/inside" in frame[0] for frames in stacks.values() for frame in frames)


def test_samples_never_show_what_the_watcher_does(plain: Ran) -> None:
    files = [frame[0] for stack in plain.lines("stacks.jsonl") for frame in stack["f"]]
    assert files
    assert not [file for file in files if "torch/profiler/" in file]


def test_waits_for_the_loader_are_ranges(plain: Ran) -> None:
    waits = [found for found in plain.lines("ranges.jsonl") if found["k"] == "input"]
    assert {found["n"] for found in waits} == {"DataLoader.__next__", "DataLoader.__iter__"}
    logged = sum(step["w"] for step in plain.lines("steps.jsonl"))
    assert sum(found["e"] - found["s"] for found in waits) >= logged


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_are_not_watched(tmp_path: Path, start_method: str) -> None:
    ran = run(tmp_path, "training.py", "--workers", "2", "--start-method", start_method)
    assert (ran.returncode, ran.stderr, ran.ranks) == (0, "", ["rank0"])
    assert ran.record("end.json") == {"reason": "exit", "steps": 40}
    assert len(ran.lines("steps.jsonl")) == 40
    (loader,) = (site for site in ran.lines("sites.jsonl") if site["kind"] == "DataLoader")
    assert loader["arguments"]["num_workers"] == 2


def test_accumulation_counts_backward_passes(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--accumulate", "3", "--steps", "12")
    assert [step["b"] for step in ran.lines("steps.jsonl")] == [3] * 12


def test_the_optimizer_that_closes_the_cycle_ends_the_step(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--optimizers", "2", "--steps", "20")
    backwards = [step["b"] for step in ran.lines("steps.jsonl")]
    # The first of two is taken for the only one until the other has been seen.
    assert backwards == [2, 0] + [2] * 19
    assert ran.record("window.json")["steps"] == 4


def test_without_an_optimizer_backward_passes_are_steps(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--optimizers", "0", "--steps", "100", "--slow-item", "0")
    assert ran.record("facts.json")["steps_found_by"] == "backward"
    assert len(ran.lines("steps.jsonl")) == 100 - 64 + 1
    assert ran.record("window.json")["steps"] == 4


def test_a_program_that_ends_early_says_so_and_loses_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--steps", "5", recipe=Recipe())
    assert len(ran.lines("steps.jsonl")) == 5
    assert not ran.has("window.json")
    assert not ran.has("trace.json.gz")
    assert "ended after 5 steps" in ran.record("facts.json")["steady"]
    assert ran.record("end.json") == {"reason": "exit", "steps": 5}


# Warm-up 3 decides at step 3 if need be, the window opens there and leads in for one step: step 6 lies within it.
WITHIN = ("--end-after", "6")
AT_ONCE = Recipe(warmup=3, most_warmup_steps=2)


@pytest.mark.parametrize(("how", "returncode", "reason"), [("exit", 7, "exit"), ("terminate", -15, "stopped")])
def test_no_exit_leaves_a_window_open(tmp_path: Path, how: str, returncode: int, reason: str) -> None:
    ran = run(tmp_path, "training.py", "--end", how, *WITHIN, recipe=AT_ONCE)
    assert (ran.returncode, ran.stderr) == (returncode, "")
    assert ran.record("end.json") == {"reason": reason, "steps": 6}
    assert 1 <= ran.record("window.json")["steps"] < 4
    with gzip.open(tmp_path / "rank0" / "trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]


def test_a_child_that_is_forked_after_the_window_exits_as_it_does_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, "forks_after_window.py", recipe=AT_ONCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "what the child prints7\n"
    assert ran.has("trace.json.gz")


def test_a_script_that_raises_keeps_its_traceback(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--end", "raise", *WITHIN, recipe=AT_ONCE)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Traceback (most recent call last):\n")
    assert ran.stderr.endswith("ValueError: the program's own error\n")
    assert "diagnose" not in ran.stderr.replace(str(PROGRAMS), "")
    ended = ran.record("end.json")
    assert (ended["reason"], ended["steps"]) == ("exception", 6)
    assert ended["error"].startswith("ValueError: the program's own error (training.py:")
    assert ran.has("trace.json.gz")


def test_both_ranks_of_torchrun_are_watched_and_trace_the_same_steps(tmp_path: Path) -> None:
    ran = run(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "two_ranks.py")
    assert ran.returncode == 0
    assert ran.ranks == ["rank0", "rank1"]
    windows = [ran.record("window.json", rank) for rank in (0, 1)]
    assert windows[0]["first_step"] == windows[1]["first_step"]
    assert [window["steps"] for window in windows] == [4, 4]
    for rank in (0, 1):
        facts = ran.record("facts.json", rank)
        assert (facts["rank"], facts["world_size"], facts["local_world_size"]) == (rank, 2, 2)
        assert len(ran.lines("steps.jsonl", rank)) == 40
    wrapped = next(site for site in ran.lines("sites.jsonl", 1) if site["kind"] == "DistributedDataParallel")
    assert wrapped["line"] == line_of("DistributedDataParallel(torch", PROGRAMS / "two_ranks.py")
    assert wrapped["arguments"]["backend"] == "gloo"
    assert wrapped["arguments"]["bucket_cap_mb"] == 1


def test_compilation_is_seen_and_the_steps_after_it_are_traced(tmp_path: Path) -> None:
    ran = run(tmp_path, "training.py", "--compile", "--steps", "60", recipe=Recipe(warmup=4))
    assert (ran.returncode, ran.record("facts.json")["watcher_failures"]) == (0, [])
    site = next(site for site in ran.lines("sites.jsonl") if site["kind"] == "compile")
    assert site["line"] == line_of("torch.compile(model")
    compiled = [found for found in ran.lines("ranges.jsonl") if found["k"] == "compile"]
    assert compiled
    assert max(found["e"] for found in compiled) <= ran.record("window.json")["start_ns"]
    assert len(ran.lines("steps.jsonl")) == 60


def test_graph_breaks_and_recompilations_are_recorded_with_lines_and_reasons(tmp_path: Path) -> None:
    ran = run(tmp_path, "breaking.py")
    assert (ran.returncode, ran.record("facts.json")["watcher_failures"]) == (0, [])
    breaks = [site for site in ran.lines("sites.jsonl") if site["kind"] == "graph_break"]
    assert [(site["line"], site["function"], site["owned"]) for site in breaks] == [
        (line_of('print(end="")', PROGRAMS / "breaking.py"), "forward", True)
    ]
    again = [site for site in ran.lines("sites.jsonl") if site["kind"] == "recompile"]
    assert {site["arguments"]["reason"] for site in again} >= {
        "tensor 'x' size mismatch at index 0. expected 2, actual 3"
    }
    assert all(site["function"] == "forward" and not site["arguments"]["limit"] for site in again)
