"""Jobs on several hosts: one window for all, run folders gathered into one, and which ranks are traced."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from watching import LIMIT_S, PROGRAMS

from diagnose.cli import main
from diagnose.collect.inside.process.process_facts import ranks_on_host
from diagnose.collect.inside.window.trace_agreement import AHEAD, WINDOW_AT, TraceAgreement, spans_hosts
from diagnose.collect.traced_ranks import SLOWEST, Slowest, is_traced
from diagnose.engine import diagnose
from diagnose.plugins import load_rules
from diagnose.session import JOURNAL, StepsSeen, read
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import StepLog

ROOT = Path(__file__).resolve().parents[3]


# A job on two hosts: two run folders on this one


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The run folders that two hosts leave of one job; neither sees the other's."""
    with reserved_port() as port, ExitStack() as running:
        folders = [tmp_path_factory.mktemp(f"host{number}") for number in range(2)]
        started = [running.enter_context(host_of_a_job(number, folder, port)) for number, folder in enumerate(folders)]
        for process in started:
            _, words = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, words
    return [run for folder in folders for run in (folder / ".diagnose" / "runs").iterdir()]


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile; who asks for it by its number may listen at it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


@contextmanager
def host_of_a_job(number: int, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`diagnose run` on one of two hosts."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "1"]
    command = [sys.executable, "-m", "diagnose", "run", "--plain", "--", *launcher, str(PROGRAMS / "two_hosts.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    quiet, heard = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=heard, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()  # has ended already, unless the other host has failed


def test_ranks_of_hosts_that_share_no_file_trace_the_same_steps(hosts: list[Path]) -> None:
    windows = [json.loads((run / f"rank{rank}" / "window.json").read_text()) for rank, run in enumerate(hosts)]
    assert windows[0]["first_step"] == windows[1]["first_step"]
    assert all(window["steps"] == 4 for window in windows)
    assert not (hosts[1] / "rank0").exists()


def test_gathered_runs_are_one_job(hosts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tmp_path / "both"
    assert main(["gather", *map(str, hosts), "-o", str(both), "--json"]) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["ranks"] == 2
    assert "rank 1's clock is" in answer.err
    events, warnings = read(both)
    assert {event.rank for event in events if isinstance(event, StepsSeen)} == {0, 1} and not warnings
    assert [event.at_ns for event in events[:-1]] == sorted(event.at_ns for event in events[:-1])
    assert [trace.rank for trace in open_traces([both])] == [0, 1]
    assert main(["ranks", str(both)]) == 0
    assert "rank 0 waits" in capsys.readouterr().out  # its host does not sleep in each step
    assert all(path.exists() for run in hosts for path in run.glob("rank*/trace.json.gz"))  # the originals stay


# What is refused


def host(folder: Path, rank: int, job: dict[str, Any] | None = None, world_size: int = 2) -> Path:
    """A run folder with one rank that was watched."""
    (folder / f"rank{rank}").mkdir(parents=True)
    facts = {"rank": rank, "world_size": world_size, "job": {"host": folder.name, **(job or {})}}
    (folder / f"rank{rank}" / "facts.json").write_text(json.dumps(facts))
    ends = "".join(json.dumps({"t": 10**18 + step * 10**7, "b": 1, "w": 0}) + "\n" for step in range(20))
    (folder / f"rank{rank}" / "steps.jsonl").write_text(ends)
    return folder


def refused(capsys: pytest.CaptureFixture[str], runs: list[Path], into: Path) -> str:
    """What is said of a call that ends with exit code 2 and writes nothing."""
    assert main(["gather", *map(str, runs), "-o", str(into)]) == 2
    assert not list(into.parent.glob(f"*{into.name}*"))
    return capsys.readouterr().err


def test_facts_that_are_damaged_are_no_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [host(tmp_path / "a", 0), host(tmp_path / "b", 0)]
    for run in runs:
        (run / "rank0" / "facts.json").write_text('{"job": null, "world_size": "two"}')
    assert "rank 0 is in" in refused(capsys, runs, tmp_path / "both")


def test_a_rank_that_is_in_two_folders_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [host(tmp_path / "a", 0), host(tmp_path / "b", 0)]
    assert "rank 0 is in" in refused(capsys, runs, tmp_path / "both")


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ({"run": "1f2e"}, {"run": "77aa"}, "their run id is 1f2e and 77aa"),
        ({"slurm": "311"}, {"slurm": "312"}, "their Slurm job is 311 and 312"),
        ({"port": "29500"}, {"port": "29501"}, "their port of the rendezvous is 29500 and 29501"),
    ],
)
def test_folders_of_different_jobs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: dict[str, str], two: dict[str, str], said: str
) -> None:
    runs = [host(tmp_path / "a", 0, one), host(tmp_path / "b", 1, two)]
    assert said in refused(capsys, runs, tmp_path / "both")


def test_jobs_of_different_sizes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [host(tmp_path / "a", 0, world_size=2), host(tmp_path / "b", 1, world_size=4)]
    assert "their number of ranks is 2 and 4" in refused(capsys, runs, tmp_path / "both")


def test_a_run_that_nobody_named_may_be_any(tmp_path: Path) -> None:
    runs = [host(tmp_path / "a", 0, {"run": "none"}), host(tmp_path / "b", 1, {"run": "none"})]
    assert main(["gather", *map(str, runs), "-o", str(tmp_path / "both")]) == 0


def test_a_run_is_named_by_its_journal_or_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host(tmp_path / "a", 0) / JOURNAL).touch()
    (host(tmp_path / ".diagnose" / "runs" / "first", 1) / JOURNAL).touch()
    monkeypatch.chdir(tmp_path)
    assert main(["gather", str(tmp_path / "a" / JOURNAL), "first", "-o", "both"]) == 0
    assert sorted(path.name for path in (tmp_path / "both").glob("rank*")) == ["rank0", "rank1"]


def test_a_project_stands_for_its_latest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("a", "b")):
        (host(tmp_path / name / ".diagnose" / "runs" / "first", number) / JOURNAL).touch()
    assert main(["gather", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "both")]) == 0
    assert sorted(path.name for path in (tmp_path / "both").glob("rank*")) == ["rank0", "rank1"]
    assert str(tmp_path / "b" / ".diagnose" / "runs" / "first") in capsys.readouterr().err


def test_fixes_are_tried_on_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "0"]
    for command in (["fix"], ["run", "--fix"]):
        assert main([*command, "--", *launcher, str(PROGRAMS / "two_hosts.py")]) == 2
        assert "arms of a trial live on one host" in capsys.readouterr().err


def test_a_missing_rank_is_named_and_the_others_are_gathered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [host(tmp_path / "a", 0, world_size=3), host(tmp_path / "b", 2, world_size=3)]
    assert main(["gather", *map(str, runs), "-o", str(tmp_path / "both")]) == 0
    assert "rank 1 is in none of them" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "both").glob("rank*")) == ["rank0", "rank2"]


def test_what_is_no_run_folder_or_is_there_already_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    first = host(tmp_path / "a", 0)
    assert "holds no rank's folder" in refused(capsys, [first, tmp_path / "empty"], tmp_path / "both")
    assert "no run of that name" in refused(capsys, [first, tmp_path / "nowhere"], tmp_path / "both")
    (tmp_path / "trace.json").touch()
    assert "is no folder" in refused(capsys, [first, tmp_path / "trace.json"], tmp_path / "both")
    assert "at least two" in refused(capsys, [first], tmp_path / "both")
    assert main(["gather", str(first), str(host(tmp_path / "b", 1)), "-o", str(tmp_path / "a")]) == 2
    assert "is there already" in capsys.readouterr().err


# The step at which all open their windows


class Store:
    """What `torch.distributed` offers of its store, for ranks of one process."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.distributed_c10d = self

    def _get_default_store(self) -> Store:
        return self

    def PrefixStore(self, prefix: str, _: Store) -> Store:  # noqa: N802 - torch's name
        assert prefix == "diagnose"
        return self

    def set(self, key: str, value: str) -> None:
        self.said[key] = value

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= set(self.said)

    def get(self, key: str) -> bytes:
        return self.said[key].encode()


@pytest.mark.parametrize(
    ("environment", "spans"),
    [
        ({}, False),
        ({"LOCAL_WORLD_SIZE": "8"}, False),
        ({"LOCAL_WORLD_SIZE": "4"}, True),
        ({"SLURM_JOB_NUM_NODES": "2"}, True),
        ({"LOCAL_WORLD_SIZE": "many"}, False),
    ],
)
def test_launchers_say_whether_a_job_spans_hosts(environment: dict[str, str], spans: bool) -> None:
    assert spans_hosts(8, environment) is spans


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, None),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, 4),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "8"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NUM_TASKS": "8"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "5,3", "SLURM_STEP_NUM_TASKS": "8"}, None),
        # One process a host, which makes the ranks itself.
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NUM_TASKS": "2"}, None),
        # srun starts one torchrun a host.
        (
            {
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                "SLURM_STEP_NUM_TASKS": "2",
                "LOCAL_WORLD_SIZE": "4",
                "WORLD_SIZE": "8",
            },
            4,
        ),
        ({"LOCAL_WORLD_SIZE": "many", "WORLD_SIZE": "8"}, None),
        ({"LOCAL_WORLD_SIZE": "0", "WORLD_SIZE": "8"}, None),
        ({"LOCAL_WORLD_SIZE": "9", "WORLD_SIZE": "8"}, None),
    ],
)
def test_launchers_say_how_many_ranks_a_host_has(environment: dict[str, str], count: int | None) -> None:
    assert ranks_on_host(8, environment) == count


def test_a_job_of_one_rank_has_it_here() -> None:
    assert ranks_on_host(1, {}) == 1


def test_on_one_host_a_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    store = Store()
    assert TraceAgreement(tmp_path, store, 1, 2).heard() is None
    assert TraceAgreement(tmp_path, store, 0, 2).say(10, 20_000_000, 4) == 10 + AHEAD
    assert TraceAgreement(tmp_path, store, 1, 2).heard() == (10 + AHEAD, 4)
    assert not store.said


def test_to_other_hosts_the_jobs_own_store_tells_early_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    store = Store()
    step = TraceAgreement(tmp_path / "..", store, 0, 2).say(10, 20_000_000, 4)
    assert step == 10 + 75  # a second and a half of steps of 20 ms
    far = tmp_path / "another"
    far.mkdir()
    other = TraceAgreement(far, store, 1, 2)
    first = other.heard()
    assert other._asking is not None
    other._asking.join(timeout=LIMIT_S)
    assert (first or other.heard()) == (step, 4)
    (tmp_path / ".." / WINDOW_AT).unlink()


# Which ranks are traced


def test_few_ranks_are_all_traced_and_of_many_the_first_the_last_and_the_slowest(tmp_path: Path) -> None:
    assert all(is_traced("some", rank, 4, tmp_path) for rank in range(4))
    assert [rank for rank in range(16) if is_traced("some", rank, 16, tmp_path)] == [0, 15]
    (tmp_path / SLOWEST).write_text("6")
    assert [rank for rank in range(16) if is_traced("some", rank, 16, tmp_path)] == [0, 6, 15]
    assert [rank for rank in range(16) if is_traced("all", rank, 16, tmp_path)] == list(range(16))
    assert [rank for rank in range(16) if is_traced([3, 5], rank, 16, tmp_path)] == [3, 5]


def test_the_slowest_rank_ends_its_steps_last_or_waits_for_its_input() -> None:
    assert Slowest().rank is None
    slowest = Slowest()
    for rank in range(4):
        late = 3 if rank == 2 else 0
        slowest.see(rank, [100 * step + late for step in range(1, 30)], [0] * 29)
    assert slowest.rank == 2
    waiting = Slowest()
    for rank in range(4):
        waiting.see(rank, [100 * step for step in range(1, 30)], [40 if rank == 1 else 0] * 29)
    assert waiting.rank == 1


def test_ranks_that_were_watched_only_are_named_and_answer_for_nothing() -> None:
    picture = "gpu : kkk.\nopt :   O."
    ends = {"end_ns": [step * 9_000_000 for step in range(1, 20)], "input_ns": [0] * 19}
    traced = [drawn(picture, repeat=4, rank=rank, world_size=3) for rank in (0, 2)]
    watched = drawn("opt : ...O", repeat=1, rank=1, world_size=3, step_log=StepLog.build(ends))
    diagnosis = diagnose([traced[0], watched, traced[1]], load_rules())
    assert diagnosis.ranks == 2
    assert diagnosis.steps.median_ns == 4_000_000
    assert any("rank 1 was watched and not traced" in text for text in diagnosis.warnings)
    assert not any("missing" in text for text in diagnosis.warnings)


def test_one_rank_of_two_is_traced_where_that_was_asked_for(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--json", "--trace-ranks", "1", "--stop-after-trace"]
    command = [sys.executable, "-m", "diagnose", "run", *options, "--", *launcher]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run(
        [*command, str(PROGRAMS / "two_ranks.py"), "600"],  # after 200 a program is traced even if it is not steady
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    (run,) = (tmp_path / ".diagnose" / "runs").iterdir()
    assert [path.parent.name for path in run.glob("rank*/trace.json.gz")] == ["rank1"]
    assert (run / "rank0" / "steps.jsonl").stat().st_size > 0
    assert json.loads(answer.stdout)["diagnosis"]["ranks"] == 1
    assert "rank 0 was watched and not traced" in answer.stdout
