"""What people and machines do to a command: a slip of the pen, an encoding without our letters, a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import journals
import pytest
from test_cli import PYTHONPATH, TRACE, diagnose
from watching import LIMIT_S

from diagnose.cli import COMMANDS, main
from diagnose.cli.encoding_fallback import _PLAIN, speak
from diagnose.cli.programs.watched_run import Watching
from diagnose.collect.recipe import Recipe
from diagnose.errors import InputError, UsageError
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.report.style.vocabulary import CLASSES, DECISIONS, MEMORY, SEVERITIES, how_it_ended
from diagnose.session import AnyEvent, PhaseChanged, Session, Warned, fold, read
from diagnose.trace.readers import open_traces


def printed(text: str, encoding: str) -> str:
    """What a reader of a stream in `encoding` sees of `text`."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    speak(stream)
    stream.write(text)
    stream.flush()
    return raw.getvalue().decode(encoding)


class TestLettering:
    def test_what_the_encoding_has_stays(self) -> None:
        text = "3.0 µs · ±2 % → kept … 日本語"
        assert printed(text, "utf-8") == text
        assert printed("±2 µs ·", "latin-1") == "±2 µs ·"

    def test_what_it_lacks_is_spelt_out(self) -> None:
        assert printed("−3.0 µs · ±2 % → kept…", "ascii") == "-3.0 us | +/-2 % -> kept..."
        assert printed("a\udcff日.py", "ascii") == "a\\xff\\u65e5.py"
        assert printed("a\udcff.py", "utf-8") == "a\\xff.py"

    def test_every_mark_of_ours_has_a_plain_form(self) -> None:
        looks = [*CLASSES.values(), *MEMORY.values(), *SEVERITIES.values(), *DECISIONS.values()]
        assert [look.mark for look in looks if not look.mark.isascii() and look.mark not in _PLAIN] == []

    def test_fills_of_a_bar_stay_apart(self) -> None:
        """Compute, communication, copies, input and Python are what most steps are made of."""
        marks = [CLASSES[kind].mark for kind in ("compute", "exposed_comm", "exposed_copy", "input", "python", "sync")]
        assert len({printed(mark, "ascii") for mark in marks}) == len(marks)


def test_a_stream_that_lacks_letters_gets_the_answer_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACE))
    answer = diagnose("analyze", "trace.json", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "1.00 ms per step" in answer.stdout
    assert answer.stdout.isascii()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "diagnose", "explain", "input-bound"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left" in ended.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "`diagnose run train.py`"),
        (["rnu", "train.py"], "did you mean run?"),
        (["train.py"], "did you mean `diagnose run train.py`?"),
        (["trace.json.gz"], "did you mean `diagnose analyze trace.json.gz`?"),
        (["run", "--step-count", "train.py"], "`diagnose run --help`"),
        (["run", "--steps", "some", "train.py"], "'some' is not a whole number"),
        (["report", "one", "two"], "`diagnose report --help`"),
        (["run", "notes.ipynb"], "jupyter nbconvert --to script notes.ipynb"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "notes.ipynb").write_text('{"cells": []}\n')
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err


def test_help_says_what_to_start_with_and_keeps_a_command_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert "diagnose run train.py" in said
    assert all(f"    {command} " in said for command in COMMANDS)


def test_a_run_folder_that_cannot_be_made_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / ".diagnose").write_text("a file in the way\n")
    with pytest.raises(InputError, match=r"\.diagnose.* start in a folder that you may write to"):
        Session.create("train", root=tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_journal_that_finds_no_room_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    session = Session(tmp_path)
    with pytest.raises(InputError, match=r"journal\.jsonl: cannot be written \(No space left on device\); free some"):
        session.record(PhaseChanged(phase="watching"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_where_a_journal_finds_no_room_the_run_goes_on_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    told: list[AnyEvent] = []
    session = Session(tmp_path, told.append)
    for phase in ("watching", "reading the trace"):
        session.record(PhaseChanged(phase=phase))
    watching, warned, reading = told
    assert [getattr(event, "phase", None) for event in (watching, reading)] == ["watching", "reading the trace"]
    assert isinstance(warned, Warned)
    assert warned.message.startswith("nothing more is recorded, and the program goes on")
    assert "No space left on device" in warned.message


def test_a_pipe_is_no_recording_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(InputError, match=r"trace\.json: is neither a file nor a folder"):
        open_traces([tmp_path / "trace.json"])
    with pytest.raises(InputError, match="no journal of a run"):
        read(tmp_path)


def test_a_name_that_is_no_text_is_refused_before_anything_runs(tmp_path: Path) -> None:
    name = os.fsdecode(b"tr\xff.py")
    with pytest.raises(UsageError, match=r"xff\.py' is not text in UTF-8; rename it"):
        Program.parse([name], cwd=tmp_path)


def test_a_script_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match=r"train\.py: may not be read"):
        Program.parse(["train.py"], cwd=tmp_path)


def test_doctor_tells_a_missing_gpu_from_one_that_pytorch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    from diagnose.cli.machine import doctor

    monkeypatch.setattr(doctor, "_with_nvml", lambda _: None)
    assert "host rules can" in doctor._without_gpu()
    monkeypatch.setattr(doctor, "_with_nvml", lambda _: 2)
    assert "the driver has 2, but this PyTorch" in doctor._without_gpu()


def test_doctor_sees_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diagnose.cli.machine.doctor import _writable

    assert str(tmp_path) in (_writable(tmp_path) or "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert _writable(tmp_path) is None


def test_a_run_keeps_its_report_as_a_page_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    watched = Watching(Program.parse(["train.py"]), Recipe(), Catalogue({}, {}, ()), "run")
    watched.state = fold(journals.diagnosed())
    watched._keep_page()
    (page,) = tmp_path.glob(".diagnose/runs/*/report.html")
    assert "Fix this first: input-bound" in page.read_text()
    assert f"Report: {page.relative_to(tmp_path)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returncode", "said"),
    [
        (2, "exit code 2"),
        (-11, "signal 11 (SIGSEGV)"),
        (-9, "memory runs out"),
        (137, "exit code 137, which stands for signal 9 (SIGKILL"),
        (-99, "signal 99"),
    ],
)
def test_how_a_program_failed_is_told_by_name(returncode: int, said: str) -> None:
    assert said in how_it_ended(returncode)


def test_what_it_prints_to_nobody_is_no_failure_of_its_own() -> None:
    master, slave = os.openpty()
    ask = "import sys; sys.stdin.readline(); from diagnose.cli import main; sys.exit(main(['explain', 'gc-pause']))"
    with subprocess.Popen(
        [sys.executable, "-c", ask],
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    ) as child:
        try:
            os.close(slave)
            os.close(master)
            _, said = child.communicate("go on\n", timeout=LIMIT_S)
        finally:
            child.kill()
    assert said == ""
    assert child.returncode == 130


def test_a_disk_that_fails_is_told_and_not_taken_for_a_terminal_that_went_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")  # as reading an open file does: without its name

    monkeypatch.setattr("diagnose.cli.explain.run", fail)
    monkeypatch.setattr("diagnose.cli.abandon", lambda _stream: None)
    assert main(["explain"]) == 2
    assert "Input/output error; the storage fails" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "command"), [(["run", "t.py"], "run"), (["run", "--fix", "t.py"], "fix")])
def test_a_run_that_goes_on_to_fixes_is_told_as_one_that_fixes(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def watching(_args: object, name: str) -> object:
        asked.append(name)
        raise UsageError("no further")

    monkeypatch.setattr("diagnose.cli.programs.watched_run.watching", watching)
    assert main(words) == 2
    assert asked == [command]
