"""Every public recording there is: each is opened once, and read and diagnosed, or refused in one sentence.

The recordings are no part of this repository; the tests are skipped where they are not beside it. What became of each
is counted by format at the end of the run.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import TALLY

from diagnose import plugins
from diagnose.cli import main
from diagnose.engine import diagnose
from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers import formats, open_traces
from diagnose.trace.readers.io.blocks import read_head

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = sorted(path for path in TRACES.rglob("*") if path.is_file()) if TRACES.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason="no collection of public traces lies beside the repository")

_RECORDINGS = re.compile(
    r"(?:\.pt\.trace\.json|_trace\.csv|\.rpd|\.pftrace|results\.(?:db|json|csv)|memory_snapshot\.pickle)(?:\.gz)?$"
)
"""Names that a recording bears: such files must not be refused, unless `UNREADABLE` says why."""

UNREADABLE = {
    "empty.pt.trace.json": "the file is empty",
    "no_traceEvents.pt.trace.json": "no traceEvents",
    "basic_example/test_files/test_trace.pt.trace.json": "Git LFS pointer",
    "truncated_snapshot.pickle": "ends in the middle",
    "cloverleaf-cuda_api_trace.csv": "not a timeline",  # a table of Pandas
    "cloverleaf_gpu_trace.csv": "not a timeline",
    "3634736_results.pftrace": "13 packets",
    "3634743_results.pftrace": "13 packets",
    "3635367_results.pftrace": "13 packets",
    "3635373_results.pftrace": "13 packets",
    "JACC.jl/results.db": "no kernel and no call was recorded",
    "JACC.jl/results.json": "no kernel and no call was recorded",
    "pc_sampling": "not a timeline",
    "memory_allocation_trace.csv": "without any device work",
    "scratch_memory_trace.csv": "without any device work",
}
"""By a part of the path, what a refusal says; files that no part of fits are not checked for their words."""

SOUND = ("facebookresearch__HolisticTraceAnalysis", "pytorch__kineto")
"""Collections of recordings in which nothing is wrong, so that none may be warned of."""


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", "off")


def name_of(path: Path) -> str:
    return str(path.relative_to(TRACES))[-90:]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_is_read_and_diagnosed_or_refused_in_one_sentence(
    path: Path, record_property: Callable[[str, object], None]
) -> None:
    form = format_of(path)
    expected = next((words for part, words in UNREADABLE.items() if part in str(path)), None)
    try:
        traces = open_traces([path])
    except InputError as error:
        said = str(error).removeprefix(f"{path}: ")
        assert said != str(error)
        assert said.isprintable()
        assert len(said) < 400
        assert (expected or "") in said
        assert expected is not None or not _RECORDINGS.search(path.name), said
        record_property(TALLY, f"{form}|refused ({kind_of(said)})")
        return
    assert expected is None
    assert traces
    for trace in traces:
        check(trace)
        assert not form.startswith("roc") or not any(name.endswith((".kd", "[clone .kd]")) for name in trace.names)
        assert path.relative_to(TRACES).parts[0] not in SOUND or trace.warnings == ()
    answer = diagnose(traces, plugins.load())
    assert not [warning for warning in answer.warnings if "failed and was left out" in warning]
    for rank in answer.per_rank:
        spent = rank.accounting
        parts = spent.compute + spent.exposed_comm + spent.exposed_copy + sum(spent.idle.values())
        assert parts == rank.steps.total_ns
    if any(trace.has_device and trace.device.end_ns.max() > trace.device.start_ns[0] for trace in traces):
        steps = [rank.accounting for rank in answer.per_rank]
        assert any(one.compute + one.exposed_comm + one.exposed_copy for one in steps), "steps without device work"
    record_property(TALLY, f"{form}|read")


def check(trace: Trace) -> None:
    """What holds of every trace, whatever wrote it."""
    for table in (trace.device, trace.calls, trace.ops, trace.frames, trace.ranges, trace.device_ranges):
        assert (table.end_ns >= table.start_ns).all()
        assert (table.start_ns[1:] >= table.start_ns[:-1]).all()
        assert ((table.name >= 0) & (table.name < len(trace.names))).all()
    for table in (trace.calls, trace.ops, trace.frames, trace.ranges):
        assert (table.thread < len(trace.threads)).all()
    assert (trace.device.collective < len(trace.collectives)).all()
    assert (trace.memory.stack < len(trace.stacks)).all()
    assert ((trace.counters.name >= 0) & (trace.counters.name < len(trace.names))).all()
    timed = any(map(len, (trace.device, trace.calls, trace.ops, trace.frames, trace.ranges)))
    assert trace.window_ns is not None or not timed
    if trace.window_ns is not None:
        assert trace.window_ns[0] <= trace.window_ns[1]


def format_of(path: Path) -> str:
    head = read_head(path)
    return next((reader.name for reader in formats() if reader.sniffs(head, path)), "of no format that is read")


def kind_of(refusal: str) -> str:
    """The beginning of a refusal, without what is special to one file."""
    first = re.split(r"[;:(]|, (?:which|whose|for)", refusal)[0].strip()
    return re.sub(r"\b\d+\b", "N", first)


def printed(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that `analyze` prints of a file, in both forms, and all that the traces hold."""
    said = ""
    for options in (["--json"], []):
        assert main(["analyze", *options, str(path)]) == 0
        answer = capsys.readouterr()
        said += answer.out + answer.err
    traces = open_traces([path])
    return said + repr([(t.names, t.texts, t.threads, t.warnings, t.facts, t.device_names, t.source) for t in traces])


def needs(path: Path) -> Path:
    if not path.exists():
        pytest.skip("this recording is not in the collection")
    return path


SECRETS = ("--token=hunter2-0451", "DATABASE_PASSWORD=swordfish")


def test_environments_in_nsight_databases_stay_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.sqlite"
    shutil.copyfile(needs(TRACES / "GindaChen__nsys-ai/tests/fixtures/h100_2gpu_1s.sqlite"), path)
    fill(path, "TARGET_INFO_SYSTEM_ENV")
    said = printed(path, capsys)
    assert "a device of unknown name" in said
    assert not any(secret in said for secret in SECRETS)


def test_environments_and_commands_in_rocpd_stay_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.db"
    shutil.copyfile(needs(TRACES / "JoursBleu__llama.cpp/R9700-Workstation-SH/32432_results.db"), path)
    fill(path, "rocpd_info_process")
    said = printed(path, capsys)
    assert "AMD Radeon AI PRO R9700" in said
    assert not any(secret in said for secret in SECRETS)


def fill(path: Path, table: str) -> None:
    """Put secrets into every column of texts of a table whose rows were blanked for publication."""
    with sqlite3.connect(path) as database:
        (name,) = database.execute("SELECT name FROM sqlite_master WHERE name LIKE ?", (f"{table}%",)).fetchone()
        columns = {row[1]: row[2] for row in database.execute(f"PRAGMA table_info({name})")}
        texts = [column for column, kind in columns.items() if kind == "TEXT" and column != "guid"]  # guids join tables
        assert texts
        if database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] == 0:
            database.execute(f"INSERT INTO {name} VALUES ({', '.join('0' for _ in columns)})")
        for number, column in enumerate(texts):
            database.execute(f"UPDATE {name} SET {column} = ?", (SECRETS[number % 2],))
    database.close()


def test_command_lines_stay_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = needs(TRACES / "AMD-AGI__TraceLens/tests/rocprof/908_results.json.gz")
    (tool,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    words = [word for word in tool["metadata"]["command"] if len(word) > 12]
    assert words, "the recording has a command line"
    said = printed(path, capsys)
    assert sum(word in said for word in words) == 0
