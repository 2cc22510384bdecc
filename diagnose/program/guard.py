"""Keeps a copy of a program from writing into the original. Runs inside the trial's process: standard library alone.

An audit hook sees every file that Python opens for writing, renames, removes or makes. A path inside the copy that goes
through a link into the original gets a file of its own first (the link is opened up level by level, files that are not
overwritten whole are copied), so that output lands in the copy. A path that names the original itself is refused, and
kept in `Guard.refused`. A file that lies in neither is written as the program would, and told of: all trials share it.
What a program does in other programs it starts, or in C without an audit event, is not seen;
`watch_torch` closes the one such hole that every training script has, `torch.save` to a path.
"""

# Calls of os, not pathlib, which makes several of them each: this runs on every file that the program opens.
# ruff: noqa: PTH102,PTH108,PTH109,PTH112,PTH113,PTH114,PTH118,PTH206,PTH211
from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

REFUSAL = "a trial on a copy may not write into the original"
"""What a program is told that names the original by an absolute path."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_PATHS_WRITTEN = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
"""Audit events that change files, with the positions of the paths that they change."""
_FOLDER_DESCRIPTORS = {"os.remove": (1,), "os.rmdir": (1,), "os.mkdir": (2,), "os.rename": (2, 3)}
"""The positions at which these events carry an open folder to which a path is relative (-1: none)."""
_TOLD = frozenset({"os.remove", "os.rename", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"})
"""The events among these after which a file holds something else, or is gone."""
_MOST_TOLD = 1000
"""Files elsewhere that one process tells of; after these it says that there are more."""
_OF_THE_SYSTEM = ("/dev", "/proc", "/run", "/sys")
_LINKS = frozenset({"os.link", "os.symlink"})
_REMOVES = frozenset({"os.remove", "os.rename", "os.rmdir", *_LINKS})
"""Events that act on a last link itself, not on what it leads to."""


class Guard:
    """Refuses writes below `originals`, save below `copy`; `refused` holds the paths, in order, once each.

    The file `told`, below `copy`, gets the paths of files that are written elsewhere, each ended by a zero byte, and an
    empty one for more than are told. Files below `scratch`, of the system, and in hidden folders, where programs keep
    their caches, are not meant.
    """

    def __init__(
        self,
        originals: Sequence[str],
        copy: str,
        on_refused: Callable[[str], None] | None = None,
        told: str | None = None,
        scratch: Sequence[str] = (),
    ) -> None:
        self._originals = tuple(os.path.realpath(path) for path in originals)
        self._copy = os.path.realpath(copy)
        self._on_refused = on_refused
        self._told = told
        self._known = (self._copy, *(os.path.realpath(path) for path in scratch), *_OF_THE_SYSTEM)
        self._elsewhere: set[str] = set()
        self._busy = threading.local()
        self.refused: list[str] = []

    def install(self) -> None:
        """Begin. An audit hook cannot be taken back: it lasts as long as the process."""
        sys.addaudithook(self._audit)

    def watch_torch(self, torch: ModuleType) -> None:
        """See `torch.save` to a path, which opens its file in C++."""
        save = torch.save

        @functools.wraps(save)
        def watched(obj: object, f: Any, *args: Any, **keywords: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self._tell(self.prepare(os.fspath(f), truncates=True))
            return save(obj, f, *args, **keywords)

        torch.save = watched  # type: ignore[attr-defined]  # a module of whose attributes the type knows nothing

    def prepare(self, path: str, *, truncates: bool = False, follow: bool = True) -> str:
        """Make `path` safe to write, or raise PermissionError; the path of the file that is then written.

        `truncates`: what is in the file is not needed. `follow`: the last part of the path is followed if it is a link.
        """
        absolute = os.path.join(os.path.realpath(os.getcwd()), path)
        head, tail = os.path.split(os.path.normpath(absolute) if ".." not in absolute else absolute)
        named = os.path.join(self._opened(head), tail)
        if follow and os.path.islink(named) and self._protects(os.path.realpath(named)):
            if not self._below(named, self._copy):
                self._refuse(named)
            self._own(named, truncates)
        real = os.path.realpath(named) if follow else named
        if self._protects(real):
            self._refuse(named)
        return real

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = bool(flags & _WRITE_FLAGS) if isinstance(flags, int) else False
            if writes or (isinstance(mode, str) and any(letter in mode for letter in "wax+")):
                truncates = bool(flags & os.O_TRUNC) if isinstance(flags, int) else False
                tells = not (isinstance(flags, int) and flags & os.O_EXCL and _is_there(path))
                self._note_write(path, truncates or (isinstance(mode, str) and "w" in mode), follow=True, tells=tells)
        elif event in _PATHS_WRITTEN:
            if any(args[position] != -1 for position in _FOLDER_DESCRIPTORS.get(event, ())):
                return  # within `shutil.rmtree`, whose own event named the folder
            # What is not there cannot be removed, nor a link be made of what is: the program is told so, and goes on.
            tells = event in _TOLD and (not _is_there(args[1]) if event in _LINKS else _is_there(args[0]))
            for position in _PATHS_WRITTEN[event]:
                self._note_write(args[position], event == "os.rename", event not in _REMOVES, tells=tells)

    def _note_write(self, path: object, truncates: bool, follow: bool, tells: bool) -> None:
        # What the guard itself does raises events too.
        if not isinstance(path, str | bytes | os.PathLike) or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            real = self.prepare(os.fsdecode(path), truncates=truncates, follow=follow)
            if tells:
                self._tell(real)
        finally:
            self._busy.now = False

    def _tell(self, real: str) -> None:
        """Write down, once, that a file outside of the copy is another one now."""
        if self._told is None or real in self._elsewhere or len(self._elsewhere) > _MOST_TOLD:
            return
        folder, _ = os.path.split(real)
        hidden = any(name.startswith(".") or name == "__pycache__" for name in folder.split(os.sep))
        if hidden or not os.path.isdir(folder) or any(self._below(real, root) for root in self._known):
            return
        self._elsewhere.add(real)
        name = real if len(self._elsewhere) <= _MOST_TOLD else ""
        # One write at the end of the file: ranks and workers tell into the same one.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, os.fsencode(name) + b"\0")
            finally:
                os.close(descriptor)

    def _opened(self, folder: str) -> str:
        """The real path of a folder, after links of the copy on the way into the original became folders of links."""
        real = os.path.realpath(folder)
        if not self._protects(real):
            return real
        parent, name = os.path.split(folder)
        if parent == folder:
            return real
        named = os.path.join(self._opened(parent), name)
        if os.path.islink(named) and self._below(named, self._copy):
            target = os.path.realpath(named)
            os.unlink(named)
            os.mkdir(named)
            for item in os.scandir(target):
                os.symlink(item.path, os.path.join(named, item.name))
        return named

    def _own(self, link: str, truncates: bool) -> None:
        """Put a file of the copy's own in the place of a link to one of the original's."""
        target = os.path.realpath(link)
        if os.path.isdir(target):
            self._opened(link)
            return
        os.unlink(link)
        if os.path.isfile(target) and not truncates:
            shutil.copy2(target, link)

    def _protects(self, real: str) -> bool:
        return any(self._below(real, root) for root in self._originals) and not self._below(real, self._copy)

    @staticmethod
    def _below(path: str, root: str) -> bool:
        return path == root or path.startswith(root.rstrip(os.sep) + os.sep)

    def _refuse(self, path: str) -> None:
        if path not in self.refused:
            self.refused.append(path)
            if self._on_refused is not None:
                self._on_refused(path)
        raise PermissionError(13, REFUSAL, path)


def _is_there(path: object) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.path.lexists(path)
