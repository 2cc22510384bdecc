"""Records what a program does to files that it made itself, in the order in which the program sees it.

Events, each [kind, path, path after a rename]: `made`, `written` (a file that was there is opened for writing),
`removed`, `renamed`, `read` (a file that this run made or wrote is opened for reading), `listed` (a folder is looked
into), `started` (another program is started: it may read anything). Paths are relative to the folder of the program, or
below `<tmp>` to that for temporary files; files that are written in neither are in `elsewhere`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from ..transparency import unseen

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_LISTS = frozenset({"os.listdir", "os.scandir", "glob.glob"})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
_MOST_EVENTS = 20_000
_IGNORED = frozenset({"__pycache__"})
COMPILERS = "torchinductor_"
"""A folder for temporary files whose name begins so is the compiler's, whatever program it compiles for."""


class FileEvents:
    """Begins to record when it is made; an audit hook lasts as long as the process."""

    def __init__(self, root: str, scratch: str, private: str, pid: int) -> None:
        """`private` is the trial's own folder, which `root` and `scratch` lie in."""
        self._roots = [(os.path.realpath(root), ""), (os.path.realpath(scratch), "<tmp>")]
        self._private = os.path.realpath(private)
        self._pid = pid
        self._busy = threading.local()
        self._known: set[str] = set()
        self.events: list[list[str]] = []
        self.elsewhere: set[str] = set()
        sys.addaudithook(self._audit)

    def watch_torch(self, torch: ModuleType) -> None:
        """See `torch.save` to a path, which opens its file in C++."""
        save = torch.save

        @unseen
        @functools.wraps(save)
        def watched(obj: object, f: Any, *args: Any, **keywords: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self._note_event("opened", os.fspath(f))
            return save(obj, f, *args, **keywords)

        torch.save = watched  # type: ignore[attr-defined]  # a module of whose attributes the type knows nothing

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            by_flags = bool(flags & _WRITE_FLAGS) if isinstance(flags, int) else False
            writes = by_flags or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))
            self._note_event("opened" if writes else "read", path)
        elif event in ("os.remove", "os.rmdir", "shutil.rmtree"):
            self._note_event("removed", args[0])
        elif event == "os.rename":
            self._note_event("renamed", args[0], args[1])
        elif event == "os.mkdir":
            self._note_event("made", args[0])
        elif event in _LISTS:
            self._note_event("listed", args[0] if args and args[0] is not None else ".")
        elif event in _STARTS:
            self._note_event("started", "")

    def _note_event(self, kind: str, path: object, after: object = "") -> None:
        # What is done here raises events too; children of a fork are other programs.
        if getattr(self._busy, "now", False) or os.getpid() != self._pid or len(self.events) >= _MOST_EVENTS:
            return
        if not isinstance(path, str | bytes | os.PathLike):
            return
        self._busy.now = True
        try:
            self._note(
                kind, os.fsdecode(path), os.fsdecode(after) if isinstance(after, str | bytes | os.PathLike) else ""
            )
        finally:
            self._busy.now = False

    def _note(self, kind: str, path: str, after: str) -> None:
        if kind == "started":
            self.events.append([kind, "", ""])
            return
        name = self._named(path, outside=kind in ("opened", "made", "renamed"))
        if name is None:
            return
        if kind == "opened":
            kind = "written" if os.path.lexists(path) else "made"
        if kind in ("made", "written"):
            self._known.add(name)
        elif kind in ("read", "removed") and name not in self._known:
            if kind == "read" or not os.path.lexists(path):
                return
        elif kind == "renamed":
            self._known.add(self._named(after, outside=True) or "")
        elif kind == "listed" and not any(known.startswith(name.rstrip("*.")) for known in self._known):
            return
        self.events.append([kind, name, (self._named(after, outside=True) or "") if kind == "renamed" else ""])

    def _named(self, path: str, *, outside: bool) -> str | None:
        """The path as two runs share it; None where it is not the program's."""
        real = os.path.realpath(path)
        for root, title in self._roots:
            if real == root or real.startswith(root + os.sep):
                relative = os.path.relpath(real, root)
                parts = Path(relative).parts
                hidden = any(part in _IGNORED or part == ".diagnose" or part.startswith(COMPILERS) for part in parts)
                return None if hidden else str(Path(title) / relative)
        system = real.startswith(("/dev", "/proc", "/sys", "/run")) or any(p.startswith(".") for p in Path(real).parts)
        if outside and not system and not real.startswith(self._private + os.sep):
            self.elsewhere.add(real)
        return None
