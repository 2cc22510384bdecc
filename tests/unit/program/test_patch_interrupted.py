"""A kill or an error of the disk at any operation: each file is as before or as patched, and `revert` helps."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.program import patch
from diagnose.program.patch import Change, Patch

FILES: dict[str, tuple[bytes | None, bytes | None]] = {
    "dos.py": (b"a\r\nb\r\n", b"a\r\nB\r\n"),
    "marked.py": (b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbfx = 2\n"),
    "latin.py": (b"# coding: latin-1\n# \xe9\nx = 1\n", b"# coding: latin-1\n# \xe9\nx = 2\n"),
    "linked.py": (b"y = 1\n", b"y = 2\n"),
    "shim.py": (None, b"z = 1\n"),
    "old.py": (b"w = 1\n", None),
}
WRITES = {"open", "os.mkdir", "os.chmod", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
"""Python tells audit hooks of each such operation before it is done: an error raised by a hook is the operation's."""
FULL, FAILED, KILLED = errno.ENOSPC, errno.EIO, -signal.SIGKILL
MOST = 100
"""More operations than `apply` and `revert` do."""


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses nothing that it gave to the system."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Patch, Path]:
    """A patch of a tree, kept in a run folder."""
    tree, folder = tmp_path / "tree", tmp_path / "run"
    (tmp_path / "elsewhere").mkdir()
    tree.mkdir()
    for name, (before, _) in FILES.items():
        if before is not None:
            (tree / name).write_bytes(before)
    (tree / "dos.py").chmod(0o755)
    (tree / "linked.py").rename(tmp_path / "elsewhere" / "linked.py")
    (tree / "linked.py").symlink_to(tmp_path / "elsewhere" / "linked.py")
    patch.store(Patch(tree, tuple(Change(name, *sides) for name, sides in FILES.items())), folder)
    return patch.load(folder), folder


def state(root: Path) -> dict[str, bytes | None]:
    return {name: (root / name).read_bytes() if (root / name).exists() else None for name in FILES}


BEFORE = {name: before for name, (before, _) in FILES.items()}
AFTER = {name: after for name, (_, after) in FILES.items()}


def disturbed(work: Callable[[], None], at: int, how: int, lasting: bool) -> int | None:
    """How a process ends that does `work` with the operation number `at` disturbed; None: there were fewer of them.

    It exits with 0 where all went well, with 1 where InputError or OSError was raised, else with a traceback and 2.
    """
    child = os.fork()
    if child == 0:
        done = 0
        reached = False

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done, reached
            if event not in WRITES or (event == "open" and not _writes(arguments)):
                return
            done += 1
            if done == at or (lasting and done > at):
                reached = True
                if how == KILLED:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(how, os.strerror(how))

        sys.addaudithook(hook)
        code = 0
        try:
            work()
        except (InputError, OSError):
            code = 1
        except BaseException:  # noqa: BLE001 - told by the exit code
            code = 2
        os._exit(code if reached else 9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 9 else code


def _writes(arguments: tuple[object, ...]) -> bool:
    return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@pytest.mark.parametrize(
    ("how", "lasting"),
    [(KILLED, False), (FULL, False), (FULL, True), (FAILED, False), (FAILED, True)],
    ids=["killed", "no space once", "no space from then on", "failed once", "failed from then on"],
)
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_each_file_is_as_before_or_as_patched(made: tuple[Patch, Path], command: str, how: int, lasting: bool) -> None:
    change, folder = made
    root = change.root
    start, goal = (BEFORE, AFTER) if command == "apply" else (AFTER, BEFORE)
    work = {"apply": patch.apply, "revert": patch.revert}[command]
    for at in range(1, MOST):
        if command == "revert" and patch.applied_at(folder) is None:
            patch.apply(change, folder)
        code = disturbed(lambda: work(change, folder), at, how, lasting)
        if code is None:
            break
        found = state(root)
        assert code == (how if how == KILLED else code), f"operation {at}"
        assert code != 2, f"operation {at}"
        assert all(found[name] in sides for name, sides in FILES.items()), f"operation {at}"
        if found not in (start, goal):
            assert patch.applied_at(folder) is not None, f"operation {at}: nothing could restore it"
        if how != KILLED and not lasting:
            assert found in (start, goal), f"operation {at}"
            if command == "apply" and found == start:
                assert patch.applied_at(folder) is None, f"operation {at}: nothing is applied"
        # What was left is restored, and nothing stays beside the files.
        if patch.applied_at(folder) is not None:
            patch.revert(change, folder)
        assert state(root) == BEFORE
        patch.apply(change, folder)
        assert state(root) == AFTER
        patch.revert(change, folder)
        assert sorted(path.name for path in root.iterdir()) == sorted(
            name for name in BEFORE if BEFORE[name] is not None
        )
        assert (root / "linked.py").is_symlink()
        assert (root / "dos.py").stat().st_mode & 0o777 == 0o755
    else:
        pytest.fail(f"more than {MOST} operations")
    assert at > 10


def test_a_file_that_the_disk_does_not_hold_whole_changes_none(made: tuple[Patch, Path]) -> None:
    change, folder = made
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    (folder / patch.APPLIED).write_text("-" * 8)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
        with pytest.raises((InputError, OSError)) as refused:
            patch.apply(change, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert "too large" in str(refused.value)
    assert state(change.root) == BEFORE
    assert sorted(path.name for path in change.root.iterdir()) == sorted(n for n in BEFORE if BEFORE[n] is not None)


@pytest.mark.parametrize("how", [KILLED, FULL], ids=["killed", "no space"])
def test_a_patch_that_is_kept_half_is_none(tmp_path: Path, how: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, before in BEFORE.items():
        if before is not None:
            (tree / name).write_bytes(before)
    whole = Patch(tree, tuple(Change(name, *sides) for name, sides in FILES.items()))
    for at in range(1, MOST):
        folder = tmp_path / f"run{at}"
        code = disturbed(lambda folder=folder: patch.store(whole, folder), at, how, False)  # type: ignore[misc]
        if code is None:
            break
        if code:
            with pytest.raises(InputError, match="holds no patch"):
                patch.load(folder)
        patch.store(whole, folder)
        assert patch.load(folder) == whole
        assert state(tree) == BEFORE
