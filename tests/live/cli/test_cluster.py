"""A job is diagnosed of its ranks' digests alone, so it makes no difference where the ranks are read."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psutil
import pytest
from distributed import KilledWorker, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from watching import LIMIT_S, left_of

from diagnose import plugins
from diagnose.analysis.rank_digest import digest_of
from diagnose.cluster import Cluster, diagnose_on, parse, workers
from diagnose.cluster.rules import Rules, catalogue_of, fingerprint
from diagnose.cluster.workers import Workers, local_scheduler, workers_of
from diagnose.engine import diagnose, diagnose_digests
from diagnose.errors import DiagnoseError, EnvironmentLacks, UsageError
from diagnose.model import Diagnosis
from diagnose.rule import Trace
from diagnose.trace.readers import open_traces

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT.parent / "shared" / "traces"
NANOGPT = "KellerJordan__modded-nanogpt/records/track_1_short/2025-12-11_NorMuonOptimsAndFixes/profiler-example-traces"
DLRM = "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz.d/dlrm_kineto"
CATALOGUE = plugins.load_rules()
DRAWINGS = [trace for rule in CATALOGUE.rules.values() for trace in (*rule.fires, *rule.silent)]

COUNTING_RULE = """
from diagnose.rule import Claim, Confidence, Evidence, Intervals, Rule

def check(measures):
    trace = measures.trace
    evidence = [Evidence("rows", len(trace.counters) + len(trace.memory), "count")]
    yield Claim("counts", 0, Intervals.empty(), Confidence.HINT, evidence)

RULE = Rule("{name}", check)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers, as `--on dask` starts them."""
    with local_scheduler() as address:
        yield Cluster(address)


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A folder with two ranks, what was recorded beside each, and a file that is no trace."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text(json.dumps(recording(rank)))
    entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": []}
    (folder / "memory.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]]}))
    (folder / "a_note.txt").write_text("measured on a Tuesday\n")
    return folder


def recording(rank: int) -> dict[str, Any]:
    """Four steps with 5 ms of work and then, on rank 1, more."""
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 9_000}
    marks = [mark | {"name": f"ProfilerStep#{step}", "ts": 10_000 * step} for step in range(4)]
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
    ops = [op | {"ts": 10_000 * step + 100, "dur": 5_000 + 1_000 * rank} for step in range(4)]
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": marks + ops}


def read_here(*paths: Path) -> Diagnosis:
    return diagnose(open_traces(paths), CATALOGUE)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, len(DRAWINGS) - 1), st.none() | st.integers(0, 9)), max_size=6))
def test_digests_that_travelled_give_the_diagnosis_of_their_traces(picked: list[tuple[int, int | None]]) -> None:
    traces = [replace(DRAWINGS[number], rank=rank, world_size=8) for number, rank in picked]
    digests = [pickle.loads(pickle.dumps(digest_of(trace, CATALOGUE))) for trace in traces]
    assert diagnose_digests(digests, CATALOGUE) == diagnose(traces, CATALOGUE)


def test_a_digest_of_a_real_recording_is_small() -> None:
    (trace,) = open_traces([ROOT / "sample_traces" / "h200_naive_gpt"])
    digest = digest_of(trace, CATALOGUE)
    assert len(digest.findings) > 1
    assert len(pickle.dumps(digest)) < 20_000 < trace.device.start_ns.nbytes


@pytest.mark.parametrize("name", ["cpu_demo", "h200_expert_gpt", "h200_naive_gpt"])
def test_our_own_recordings_say_the_same_on_a_cluster(cluster: Cluster, name: str) -> None:
    path = ROOT / "sample_traces" / name
    assert diagnose_on(cluster, [path], CATALOGUE) == read_here(path)


@pytest.mark.parametrize("name", [NANOGPT, DLRM])
def test_eight_ranks_say_the_same_on_a_cluster(cluster: Cluster, name: str) -> None:
    path = TRACES / name
    if not path.is_dir():
        pytest.skip("the public traces are not here")
    here = read_here(path)
    assert here.ranks == 8
    assert diagnose_on(cluster, [path], CATALOGUE) == here


def test_what_lies_beside_the_ranks_and_what_is_no_trace_is_treated_alike(
    cluster: Cluster, two_ranks: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "counting"
    rules.mkdir()
    (rules / "counting.py").write_text(COUNTING_RULE.format(name="counting"))
    catalogue = plugins.load_rules(rules)
    here = diagnose(open_traces([two_ranks]), catalogue)
    assert here.findings[-1].evidence[0].value == 1  # the snapshot was read into the first rank
    assert here.ranks == 2
    assert "1 files in it are no traces" in " ".join(here.warnings)
    assert diagnose_on(cluster, [two_ranks], catalogue, rules) == here


def test_a_worker_goes_by_the_rules_as_they_are_now(cluster: Cluster, two_ranks: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / "changing").mkdir(exist_ok=True)
        (tmp_path / "changing" / "changing.py").write_text(COUNTING_RULE.format(name=name))
        found = diagnose_on(cluster, [two_ranks], CATALOGUE, tmp_path / "changing").findings
        assert found[-1].rule == name


@pytest.mark.parametrize("bad", ["absent.json", "note.txt", "empty", "cut.json"])
def test_bad_input_is_said_in_the_same_sentence(cluster: Cluster, tmp_path: Path, bad: str) -> None:
    (tmp_path / "good.json").write_text(json.dumps(recording(0)))
    (tmp_path / "note.txt").write_text("measured on a Tuesday\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.json").write_text('{"traceEvents": [{"ph": ')
    paths = [tmp_path / "good.json", tmp_path / bad]
    with pytest.raises(DiagnoseError) as here:
        read_here(*paths)
    with pytest.raises(DiagnoseError) as there:
        diagnose_on(cluster, paths, CATALOGUE)
    assert (str(there.value), type(there.value)) == (str(here.value), type(here.value))
    assert bad in str(here.value)


def test_the_command_prints_the_same_and_leaves_nothing_running(two_ranks: Path) -> None:
    def said(*options: str) -> tuple[str, str]:
        command = [sys.executable, "-m", "diagnose", "analyze", "--json", *options, two_ranks.name]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, cwd=two_ranks.parent, env=environ, text=True, start_new_session=True, stdout=-1, stderr=-1
        ) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        assert left_of(of_group(process.pid)) == []
        return out, err

    assert said("--on", "dask") == said()


def of_group(number: int) -> list[psutil.Process]:
    """What is left of a group of processes, if only on its way out."""
    left = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == number:
                left.append(process)
    return left


def test_workers_of_our_own_listen_on_loopback_only_and_end() -> None:
    before = worker_processes()
    with local_scheduler():
        started = worker_processes() - before
        assert len(started) == 2
        family = started | {psutil.Process()}
        sockets = [one for process in family for one in process.net_connections() if one.status == "LISTEN"]
        assert {one.laddr.ip for one in sockets} == {"127.0.0.1"}
    assert left_of(started) == []


def worker_processes() -> set[psutil.Process]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # those of other tests end when they like
            if "spawn_main" in " ".join(process.cmdline()):
                found.add(process)
    return found


@pytest.mark.parametrize("text", ["", "dask=", "ray", "dask:8786", "Dask"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write `dask`"):
        parse(text)


def test_a_place_is_workers_here_or_a_scheduler() -> None:
    assert parse("dask") == Cluster(None)
    assert parse("dask=tcp://10.0.0.1:8786") == Cluster("tcp://10.0.0.1:8786")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense", "tcp://no.host.invalid:80", "what://x:1"])
def test_a_scheduler_that_does_not_answer_is_said(address: str) -> None:
    with pytest.raises(EnvironmentLacks, match="no Dask scheduler answers at"), workers_of(Cluster(address)):
        pass


def test_a_scheduler_without_workers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKERS_S", 0.1)
    none = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, host="127.0.0.1", scheduler_kwargs=none, processes=True) as empty:
        place = Cluster(empty.scheduler_address)
        with pytest.raises(EnvironmentLacks, match="has no workers"), workers_of(place):
            pass


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EnvironmentLacks, match=r"pip install 'dask\[distributed\]'"), workers_of(Cluster()):
        pass


def test_workers_with_another_diagnose_are_refused(tmp_path: Path) -> None:
    assert catalogue_of(Rules(None, fingerprint(None))).rules.keys() == CATALOGUE.rules.keys()
    (tmp_path / "mine.py").write_text("")
    assert fingerprint(tmp_path) != fingerprint(None)
    with pytest.raises(EnvironmentLacks, match="another diagnose"):
        catalogue_of(Rules(None, fingerprint(tmp_path)))


class Failing:
    """A client whose workers fail in one way."""

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self.error = error

    def map(self, *_: object, key: list[str], **__: object) -> list[str]:
        return key

    def gather(self, futures: list[str]) -> None:
        raise self.error(futures[1])


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (lambda key: KilledWorker(key, ANY, 3), "b.json: the workers that read it died"),
        (lambda _: ModuleNotFoundError(name="diagnose.cluster"), "the workers have no such diagnose"),
        (lambda _: OSError("broken pipe"), "the connection to the Dask scheduler broke: broken pipe"),
    ],
)
def test_what_goes_wrong_on_the_way_is_one_sentence(error: Callable[[str], Exception], sentence: str) -> None:
    failing: Any = Failing(error)
    parts = [(Path("a.json"),), (Path("b.json"),)]
    with pytest.raises(EnvironmentLacks, match=sentence):
        Workers(failing).map(lambda part, _: part, parts, Rules(None, ""))


def test_a_job_of_no_rank_is_empty() -> None:
    nothing: list[Trace] = []
    assert diagnose_digests([], CATALOGUE) == diagnose(nothing, CATALOGUE)
