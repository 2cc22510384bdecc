"""The command line from outside: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from watching import LIMIT_S

from diagnose.cli import main

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [],
    "traceEvents": [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 1,
            "tid": 1,
            "ts": 1000 * step,
            "dur": 1000,
        }
        for step in range(4)
    ]
    + [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1000 * step + 100, "dur": 800}
        for step in range(4)
    ],
}


def diagnose(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diagnose", *words]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    return path


def test_analyze_prints_the_diagnosis_on_stdout_and_nothing_else(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "1.00 ms per step" in out
    assert err == ""


def test_analyze_json_is_one_object_with_the_contract_s_keys(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--json", str(trace)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert answer["steps"] == answer["steps"] | {"count": 4, "median_ns": 1_000_000}
    accounting = answer["accounting"]
    spent = accounting["compute"] + accounting["exposed_comm"] + accounting["exposed_copy"]
    assert spent + sum(accounting["idle"].values()) == 1_000_000
    assert accounting["compute"] == 800_000


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.json", None, "missing.json"),
        ("empty.json", b"", "empty"),
        ("prose.json", b"Dear diary", "prose.json"),
        ("list.json", b'{"loss": [1, 2, 3]}', "list.json"),
        ("binary.bin", bytes(range(256)), "binary.bin"),
        ("pointer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "LFS"),
    ],
)
def test_what_is_no_trace_gets_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert main(["analyze", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("diagnose: ")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "script is missing"),
        (["run", "nowhere.py"], "nowhere.py"),
        (["run", "-m"], "module"),
        (["run", "--"], "command"),
        (["run", "--steps", "none", "train.py"], "--steps"),
        (["run", "--steps", "0", "train.py"], "less than 1"),
        (["fix", "--budget", "soon", "train.py"], "not a duration"),
        (["frobnicate"], "frobnicate"),
        (["explain", "input-bond"], "did you mean input-bound?"),
        (["explain", "anomaly"], "about it are debug-leftovers"),
        (["explain", "xyzzy plugh"], "`diagnose explain` lists all"),
        (["analyze"], "PATH"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_call_gets_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err


def test_run_without_torch_says_what_to_install(tmp_path: Path) -> None:
    """`-S` leaves site-packages out; what analysis needs is put back, torch is not."""
    (tmp_path / "train.py").write_text("print('never runs')\n")
    code = (
        "import sys, importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from diagnose.cli import main; sys.exit(main(['run', 'train.py']))"
    )
    command = [sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environ)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "install diagnose into the environment in which the program runs" in answer.stderr
    assert not (tmp_path / ".diagnose").exists()


def test_fail_on_turns_a_finding_into_exit_code_1(tmp_path: Path) -> None:
    events = [dict(event) for event in TRACE["traceEvents"]]  # type: ignore[attr-defined]  # a plain JSON tree
    for event in events:
        if event["cat"] == "cpu_op":
            event |= {"dur": 100}
    wait = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 700}
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events += [wait | {"name": name, "ts": 1000 * step + 250} for step in range(4)]
    path = tmp_path / "slow.json"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    answer = diagnose("analyze", "--fail-on", "high", str(path), cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "input-bound" in answer.stdout


def test_a_closed_pipe_ends_quietly(trace: Path) -> None:
    pipe = f"{sys.executable} -m diagnose analyze {trace} | head -1"
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    answer = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False, env=environ)
    assert answer.stderr == ""


def test_help_names_every_command_and_loads_nothing_heavy(tmp_path: Path) -> None:
    answer = diagnose("--help", cwd=tmp_path)
    for command in (
        "run",
        "watch",
        "fix",
        "check",
        "apply",
        "revert",
        "analyze",
        "view",
        "report",
        "compare",
        "explain",
        "doctor",
        "cache",
        "demo",
    ):
        assert command in answer.stdout


def test_doctor_answers_on_any_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {check["name"] for check in checks} >= {"Python", "PyTorch", "GPU", "CPU cores"}
    assert all(check["without"] for check in checks)


def test_explain_lists_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert "input-bound" in capsys.readouterr().out
    assert main(["explain", "loader-workers"]) == 0
    assert "Fix safety" in capsys.readouterr().out


def test_explain_takes_a_name_in_several_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "host", "sync"]) == 0
    assert capsys.readouterr().out.startswith("host-sync (rule)")


def test_explain_lists_names_with_their_first_lines_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["input-bound"]["kind"] == "rule"
    assert all(one["summary"].endswith(".") for one in listed.values())


def test_explain_says_which_fixes_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gc-pause"]) == 0
    assert capsys.readouterr().out.endswith("Tried by `diagnose fix`\n    gc-schedule\n")
    assert main(["explain", "throttled"]) == 0
    assert capsys.readouterr().out.endswith("to be fixed by hand.\n")


def test_explain_says_which_findings_call_for_a_fixer_and_how_to_try_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "powersgd-gradients"]) == 0
    said = capsys.readouterr().out
    assert "Called for by\n    exposed-communication, slow-link\n" in said
    assert said.endswith("diagnose fix --only powersgd-gradients --allow training SCRIPT\n")


@pytest.mark.parametrize("words", ["host sync", "Host_Sync", "host-sync"])
def test_a_rule_is_explained_by_the_words_of_its_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", words]) == 0
    assert capsys.readouterr().out.startswith("host-sync (rule)\n")
