"""Files that trials write outside of every copy are told of: an absolute path leads all of them to the same one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import traceback
from pathlib import Path

import pytest

from diagnose.program.guard import Guard
from diagnose.trial.process.write_guard import written_elsewhere


def ran(tmp_path: Path, line: str) -> str | None:
    """What is told of a process with this line, which runs in a copy beside its results and a folder for scratch."""
    for name in ("project", "trials/copy", "results/old", "scratch", "results/.cache"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "results" / "best.pt").write_text("best")
    (tmp_path / "results" / "old" / "1.pt").write_text("first")
    trials = tmp_path / "trials"
    names = {"results": str(tmp_path / "results"), "scratch": str(tmp_path / "scratch")}
    program = compile(line, "train.py", "exec")
    child = os.fork()  # an audit hook lasts as long as its process
    if child == 0:
        code = 1
        try:
            os.chdir(trials / "copy")
            guard = Guard(
                [str(tmp_path / "project")], str(trials), told=str(trials / "elsewhere"), scratch=[names["scratch"]]
            )
            guard.install()
            exec(program, {"contextlib": contextlib, "os": os, "pathlib": pathlib, "shutil": shutil, **names})
            code = 0
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return written_elsewhere(trials)


@pytest.mark.parametrize(
    "line",
    [
        "open(results + '/new.txt', 'w').write('x')",
        "pathlib.Path(results, 'best.pt').write_text('worse')",
        "for _ in range(9): open(results + '/log.csv', 'a').write('x')",
        "open('t', 'w').close(); os.replace('t', results + '/best.pt')",
        "os.remove(results + '/best.pt')",
        "os.chdir(results); open('by_a_relative_path', 'w').close()",
        "os.symlink(results, 'ours'); open('ours/by_a_link', 'w').close()",
        "if os.fork() == 0: open(results + '/of_a_worker', 'w').close(); os._exit(0)\nos.wait()",
    ],
)
def test_a_file_elsewhere_that_is_another_one_afterwards_is_told_of_once(tmp_path: Path, line: str) -> None:
    told = ran(tmp_path, line)
    assert told is not None
    assert f"1 file outside of their copies, by absolute paths or links (1 in {tmp_path / 'results'})" in told


@pytest.mark.parametrize(
    "line",
    [
        "open('out.txt', 'w').write('x')",
        "open(results + '/best.pt').read()",
        "os.makedirs(results + '/old', exist_ok=True)",
        "open(results + '/.cache/x', 'w').write('x')",
        "open(scratch + '/x', 'w').write('x')",
        "open('/dev/null', 'w').write('x')",
        "pathlib.Path(results, 'absent').unlink(missing_ok=True)",
        "shutil.rmtree(results + '/absent', ignore_errors=True)",
        "with contextlib.suppress(OSError): os.replace(results + '/absent', results + '/best.pt')",
        "with contextlib.suppress(OSError): open(results + '/no_such_folder/x', 'w')",
        "with contextlib.suppress(OSError): open(results + '/best.pt', 'x')",
        "with contextlib.suppress(OSError): os.symlink('old', results + '/best.pt')",
        "with contextlib.suppress(OSError): os.truncate(99, 0)",
    ],
)
def test_what_nobody_misses_is_not_told_of(tmp_path: Path, line: str) -> None:
    assert ran(tmp_path, line) is None


def test_many_files_are_told_by_their_folders(tmp_path: Path) -> None:
    told = ran(
        tmp_path,
        "for n in range(5): open(f'{results}/{n}.pt', 'w').close()\nshutil.rmtree(results + '/old')\n"
        "os.mkdir(results + '/a'); os.mkdir(results + '/b')\n"
        "for n in range(2): open(f'{results}/a/{n}', 'w').close()\nopen(results + '/b/0', 'w').close()",
    )
    assert told is not None
    results = tmp_path / "results"
    assert f"9 files outside of their copies, by absolute paths or links (6 in {results}, 2 in {results}/a" in told
    assert "1 in other folders)" in told


def test_more_files_than_are_told_are_said_to_be_more(tmp_path: Path) -> None:
    told = ran(tmp_path, "for n in range(1002): open(f'{results}/{n}.pt', 'w').close()")
    assert told is not None
    assert "removed at least 1,000 files outside" in told


def test_a_linked_folder_of_the_original_becomes_a_folder_of_links(tmp_path: Path) -> None:
    original, copy = tmp_path / "project", tmp_path / "copy"
    (original / "data").mkdir(parents=True)
    (original / "data" / "a.txt").write_text("a")
    copy.mkdir()
    (copy / "data").symlink_to(original / "data")
    assert Guard([str(original)], str(copy)).prepare(str(copy / "data")) == str(copy / "data")
    assert not (copy / "data").is_symlink()
    assert (copy / "data" / "a.txt").readlink() == original / "data" / "a.txt"
    assert (original / "data").is_dir()
