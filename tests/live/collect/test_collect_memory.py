"""What a watched program leaves of its memory: readings at the ends of steps, what keeps graphs, where it ran out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from watching import PROGRAMS, Ran, run

from diagnose.collect.inside.hooks.out_of_memory import note_lack
from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.memory import statistics
from diagnose.engine import diagnose
from diagnose.plugins import load
from diagnose.trace.readers import open_traces

SOURCE = (PROGRAMS / "leaking.py").read_text().splitlines()


def line_of(code: str) -> int:
    (number,) = [number for number, line in enumerate(SOURCE, 1) if line.strip().startswith(code)]
    return number


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("leaking"), "leaking.py", "30", "lack")


def sites(ran: Ran, kind: str) -> list[dict[str, Any]]:
    return [site for site in ran.lines("sites.jsonl") if site["kind"] == kind]


def test_the_variable_that_keeps_graphs_is_named_with_the_line_that_adds_to_it(leaking: Ran) -> None:
    (site,) = sites(leaking, "keeps graphs")
    assert (site["line"], site["function"]) == (line_of("outputs.append"), "train")
    assert site["arguments"]["name"] == "outputs"


def test_resident_memory_is_read_at_the_ends_of_steps(leaking: Ran) -> None:
    readings = [one for one in leaking.lines("counters.jsonl") if "host.process_rss_bytes" in one["v"]]
    ends = {step["t"] for step in leaking.lines("steps.jsonl")}
    assert readings
    assert all(one["v"]["host.process_rss_bytes"] > 1 << 20 for one in readings)
    assert all(one["t"] in ends for one in readings[:-1])  # the last one is of the end


def test_a_program_that_ran_out_of_memory_leaves_the_line(leaking: Ran) -> None:
    assert "OutOfMemoryError" in leaking.stderr
    (site,) = sites(leaking, "out of memory")
    assert (site["line"], site["function"]) == (line_of("raise torch"), "ask")
    assert site["arguments"] == {"error": "OutOfMemoryError", "wanted_bytes": 3 << 29}


def test_it_becomes_a_finding_at_that_line(leaking: Ran) -> None:
    found = {finding.rule: finding for finding in diagnose(open_traces([leaking.folder]), load()).findings}
    assert [place.line for place in found["memory-pressure"].where] == [line_of("raise torch")]


def test_even_before_the_first_step(tmp_path: Path) -> None:
    ran = run(tmp_path, "leaking.py", "0", "lack")
    assert [site["line"] for site in sites(ran, "out of memory")] == [line_of("raise torch")]
    assert ran.record("facts.json")["watcher_failures"] == []  # it starts no thread any more
    assert [finding.rule for finding in diagnose(open_traces([tmp_path]), load()).findings] == ["memory-pressure"]


def test_another_end_leaves_no_such_record(tmp_path: Path) -> None:
    ran = run(tmp_path, "leaking.py", "12")
    assert ran.returncode == 0
    assert sites(ran, "out of memory") == []


@pytest.mark.parametrize("error", [ValueError("out of memory"), KeyboardInterrupt(), None])
def test_only_what_says_that_memory_ran_out_counts(monkeypatch: pytest.MonkeyPatch, error: object) -> None:
    for name in ("last_value", "last_exc"):
        monkeypatch.setattr(f"sys.{name}", error, raising=False)
    noted = Sites()
    note_lack(noted)
    assert list(noted.drain()) == [("sites.jsonl", "")]


class Cuda:
    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def memory_stats_as_nested_dict() -> dict[str, Any]:
        pools = {"all": {"current": 3, "peak": 5, "allocated": 9, "freed": 6}}
        return {"allocated_bytes": pools, "num_alloc_retries": 2, "num_ooms": 1}


class Torch:
    cuda = Cuda


def test_the_allocators_figures_that_this_torch_has() -> None:
    assert statistics(Torch) == {
        "allocator.allocated_bytes": 3,
        "allocator.peak_allocated_bytes": 5,
        "allocator.retries": 2,
        "allocator.failures": 1,
    }


def test_without_a_device_there_are_none() -> None:
    assert statistics(None) is None
    assert torch.cuda.is_available() or statistics(torch) is None
