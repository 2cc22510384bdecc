"""A copy of the user's program that runs as the original does, for trials.

The copy lies under its own folder at the same absolute path: `/home/u/train.py` becomes `FOLDER/home/u/train.py`.
Every folder on the way holds links to what the original has beside it, so that `../data` and a working directory
outside of the root lead where they led. Sources are copied; what is large is linked, since copying a dataset costs
minutes, and `guard` keeps writes from reaching through a link.
"""

from __future__ import annotations

import os
import re
import shutil
import site
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.source import text_if_there

LARGEST_COPIED_BYTES = 64 << 20
"""A file above this is linked."""
MOST_COPIED_BYTES = 256 << 20
"""What is copied of one program: each trial has copies of its own, and beyond this large files are linked."""
SMALLEST_LINKED_BYTES = 1 << 20
"""A file below this is copied, however many there are: such are sources and their settings."""
MOST_COPIED_FILES = 2_000
"""A folder with more files than this, none of them Python, is data: it is linked as a whole."""

_LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "__pycache__", ".diagnose", "node_modules"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs"}
)


def copy_program(program: Program, folder: Path) -> Program:
    """A copy of the program below `folder`, with entry, working directory and root of its own. Raises InputError."""
    try:
        _copy_tree(program.root, in_copy(program.root, folder), program.root)
        _link_surroundings(program.root, folder)
        if program.root not in (program.cwd, *program.cwd.parents):
            _link_all(program.cwd, folder)
            _link_surroundings(program.cwd, folder)
        elif not in_copy(program.cwd, folder).exists():  # inside of something that copies leave out
            _link_all(program.cwd, folder)
    except OSError as error:
        raise InputError(error.filename or program.root, f"cannot be copied ({error.strerror})") from error
    return replace(
        program,
        words=tuple(_moved_word(word, program, folder) for word in program.words),
        entry=program.entry and in_copy(program.entry, folder),
        cwd=in_copy(program.cwd, folder),
        root=in_copy(program.root, folder),
    )


def copy_environment(program: Program, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for the copy: search paths that lead into the root lead into the copy, PWD too.

    A package of the user's that is installed in editable mode would otherwise be imported from the original.
    """
    moved = dict(environment)
    listed = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    listed = [in_copy(path, folder) if program.root in (path, *path.parents) else path for path in listed]
    editable = [in_copy(path, folder) for path in editable_paths(program.root)]
    if listed or editable:
        moved["PYTHONPATH"] = os.pathsep.join(map(str, [*listed, *(path for path in editable if path not in listed)]))
    moved["PWD"] = str(in_copy(program.cwd, folder))
    return moved


_ABSOLUTE_TEXT = re.compile(r"""['"](/[^'"]+)['"]""")


def editable_paths(root: Path, site_folders: Iterable[str] | None = None) -> list[Path]:
    """Folders below `root` from which this interpreter imports packages that are installed in editable mode."""
    found: dict[Path, None] = {}
    for site_folder in site.getsitepackages() if site_folders is None else site_folders:
        folder = Path(site_folder)
        for pth in sorted(folder.glob("*.pth")):
            lines = [Path(line.strip()) for line in text_if_there(pth).splitlines() if line.startswith("/")]
            found |= dict.fromkeys(path for path in lines if root in (path, *path.parents))
        for finder in sorted(folder.glob("__editable__*finder.py")):
            packages = [Path(match) for match in _ABSOLUTE_TEXT.findall(text_if_there(finder))]
            found |= dict.fromkeys(path.parent for path in packages if root in path.parents)
    return list(found)


def in_copy(path: Path, folder: Path) -> Path:
    """Return the path in the copy below `folder` that stands for an absolute path of the original."""
    return folder / path.relative_to(path.anchor)


def _moved_word(word: str, program: Program, folder: Path) -> str:
    """A word of the command line; an absolute path into the root, alone or after `--flag=`, leads to the copy."""
    head, equals, tail = word.rpartition("=")
    path = Path(tail)
    if path.is_absolute() and program.root in (path, *path.parents):
        return f"{head}{equals}{in_copy(path, folder)}"
    return word


def _copy_tree(source: Path, target: Path, root: Path, copied_bytes: int = 0) -> int:
    """Copies of `root` that lie below it, this one among them, are no part of it. How many bytes were copied so far."""
    target.mkdir(parents=True, exist_ok=True)
    for item in sorted(os.scandir(source), key=lambda item: item.name):
        if item.name in _LEFT_OUT or item.name.endswith(".egg-info") or in_copy(root, Path(item.path)).is_dir():
            continue
        there = target / item.name
        if item.is_symlink():
            there.symlink_to(Path(item.path).readlink())  # relative links lead within the copy, or to its surroundings
        elif item.is_dir():
            if (Path(item.path) / "pyvenv.cfg").exists() or _is_data(Path(item.path)):
                there.symlink_to(item.path, target_is_directory=True)
            else:
                copied_bytes = _copy_tree(Path(item.path), there, root, copied_bytes)
        elif item.is_file():
            size = item.stat().st_size
            too_much = size >= SMALLEST_LINKED_BYTES and copied_bytes + size > MOST_COPIED_BYTES
            if size > LARGEST_COPIED_BYTES or too_much:
                there.symlink_to(item.path)
            else:
                # Times are kept: programs that compare them with caches must see what they saw.
                shutil.copy2(item.path, there)
                copied_bytes += size
    return copied_bytes


def _is_data(folder: Path) -> bool:
    """Whether a folder is to be linked: much in it, and no Python among it."""
    count = size = 0
    pending = [str(folder)]
    while pending:
        with suppress(PermissionError), os.scandir(pending.pop()) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if item.name not in _LEFT_OUT:
                        pending.append(item.path)
                    continue
                if item.name.endswith((".py", ".pyx", ".pyi")):
                    return False
                count += 1
                size += item.stat(follow_symlinks=False).st_size
                if count > 10 * MOST_COPIED_FILES:  # more than a package holds: whatever else it has, it is data
                    return True
    return count > MOST_COPIED_FILES or size > LARGEST_COPIED_BYTES


def _link_surroundings(inner: Path, folder: Path) -> None:
    """Beside the copy of `inner`, on every level up to the top, links to what the original has there."""
    for original in inner.parents:
        _link_all(original, folder)


def _link_all(original: Path, folder: Path) -> None:
    """Links in the copy of a folder to everything in it that the copy does not have yet."""
    mirror = in_copy(original, folder)
    mirror.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError), os.scandir(original) as items:
        for item in items:
            there = mirror / item.name
            if not os.path.lexists(there) and item.name not in _LEFT_OUT:
                there.symlink_to(item.path, target_is_directory=item.is_dir())
