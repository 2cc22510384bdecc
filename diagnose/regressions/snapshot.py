"""A copy of a program as it was at a commit: the tracked files from git, everything else from the work tree."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.program import Program
from diagnose.program.copy import copy_program, in_copy

WORK_TREE = "."
"""Named in the place of a commit: the files as they are."""


def commit_id(root: Path, name: str) -> str:
    """Return the id of a commit, or `.` for the work tree. Raises UsageError for what is no commit."""
    if name == WORK_TREE:
        return name
    done = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode:
        raise UsageError(
            f"{name} is no commit of {root}; `git log` lists them, `git fetch` brings those of a shallow checkout, "
            "and `.` stands for the files as they are"
        )
    return done.stdout.decode().strip()


def program_at(program: Program, commit: str, folder: Path) -> Program:
    """Return a copy of the program below `folder` as it was at a commit. Raises InputError."""
    copied = copy_program(program, folder)
    if commit != WORK_TREE:
        _restore(program.root, commit, copied.root)
    if copied.entry is not None and not copied.entry.is_file():
        raise InputError(program.entry, f"is no file of commit {commit[:12]}; name commits that both have it")
    return copied


def changed_files(root: Path, base: str, head: str) -> list[str]:
    """Return the paths, below the root, that differ between two commits."""
    ends = [commit for commit in (base, head) if commit != WORK_TREE]
    done = _git(root, "diff", "--name-only", "-z", "--no-renames", "--relative", *ends)
    return sorted(name for name in done.stdout.decode(errors="replace").split("\0") if name)


def in_original(file: str, root: Path, folder: Path) -> str:
    """Return a file of a copy by its path below the program's root; other files by their path."""
    copy = in_copy(root, folder)
    path = Path(file)
    return path.relative_to(copy).as_posix() if copy in path.parents else file


def _restore(root: Path, commit: str, copy: Path) -> None:
    """Make the tracked files of a copy those of a commit. What lies behind a link is left: it is the original's."""
    done = _git(root, "ls-files", "-z")
    if done.returncode:
        raise InputError(root, "is no git repository; check-pr compares two commits of one")
    for name in done.stdout.decode(errors="surrogateescape").split("\0"):
        path = copy / name
        if name and _inside(path, copy) and (path.is_file() or path.is_symlink()):
            path.unlink()
    archive = _git(root, "archive", "--format=tar", commit)
    if archive.returncode:
        raise InputError(root, f"git archive failed ({archive.stderr.decode(errors='replace').strip()})")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in files:
            if member.isfile() and _inside(copy / member.name, copy):
                (copy / member.name).parent.mkdir(parents=True, exist_ok=True)
                (copy / member.name).unlink(missing_ok=True)
                files.extract(member, copy, filter="data")
            elif member.issym() and _inside(copy / member.name, copy) and not (copy / member.name).is_symlink():
                files.extract(member, copy, filter="tar")


def _inside(path: Path, copy: Path) -> bool:
    """Whether a file lies in the copy itself, not behind a link out of it."""
    return path.parent.resolve().is_relative_to(copy.resolve())


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not on the PATH; check-pr reads two commits with it") from None
