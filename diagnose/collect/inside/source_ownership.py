"""Tells whether a source file is the user's, an installed package's, or torch's."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(__file__).resolve().parents[1])


def owned_roots() -> list[str]:
    """Folders whose files are the user's: the script's, the working directory, and the repositories around them."""
    places = [Path.cwd()]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        places.insert(0, Path(main).resolve().parent)
    roots: list[str] = []
    for place in places:
        top = next((folder for folder in (place, *place.parents) if (folder / ".git").exists()), None)
        for folder in (place, top):
            if folder is not None and str(folder) not in roots and folder != Path(folder.anchor):
                roots.append(str(folder))
    return roots


class Ownership:
    """Answers for files, remembering its answers."""

    def __init__(self) -> None:
        self.roots = owned_roots()
        self._library = [sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib")]
        torch = sys.modules.get("torch")
        self._machinery = [_OURS, *(getattr(torch, "__path__", None) or ())]
        self._answers: dict[str, bool] = {}

    @property
    def inside(self) -> tuple[str, ...]:
        """The path prefixes of the user's files."""
        return tuple(root.rstrip(os.sep) + os.sep for root in self.roots)

    @property
    def outside(self) -> tuple[str, ...]:
        """The path prefixes of other people's files, also below a folder of the user's."""
        return tuple(folder.rstrip(os.sep) + os.sep for folder in (*self._library, *self._machinery))

    def of_modules(self) -> dict[str, bool]:
        """The answers for the files of all loaded modules but the installed ones."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__dict__", {}).get("__file__")  # without waking a module that loads itself late
            if isinstance(file, str) and not file.startswith(self.outside) and "-packages" not in file:
                self.owns(file)
        return dict(self._answers)

    def owns(self, file: str) -> bool:
        """Whether `file` is the user's own."""
        answer = self._answers.get(file)
        if answer is None:
            # Generated code is named in angle brackets; as a path, that would lie in the working directory.
            answer = self._answers[file] = not file.startswith("<") and self._decide(os.path.realpath(file))
        return answer

    def _decide(self, file: str) -> bool:
        parts = Path(file).parts
        if any(name in parts for name in _INSTALLED) or any(_below(file, folder) for folder in self._library):
            return False
        return not self.is_machinery(file) and any(_below(file, root) for root in self.roots)

    def is_machinery(self, file: str) -> bool:
        """Whether code of `file` is torch's, ours or generated, which no finding points at."""
        return file.startswith("<") or "torchinductor_" in file or any(_below(file, top) for top in self._machinery)

    def caller(self, frame: FrameType | None, made: object = None) -> tuple[FrameType | None, FrameType | None]:
        """The innermost frame outside torch, and the innermost of the user's, from `frame` outwards.

        A library's methods of the object `made` belong to its construction, and are not what builds it.
        """
        caller: FrameType | None = None
        while frame is not None:
            file = frame.f_code.co_filename
            if not self.is_machinery(file):
                if self.owns(file):
                    return caller or frame, frame
                if made is None or not _is_method_of(made, frame):
                    caller = caller or frame
            frame = frame.f_back
        return caller, None


def _is_method_of(made: object, frame: FrameType) -> bool:
    """Whether a function got an object first: its own methods, and wrappers that a library puts around them."""
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is made


def _below(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip(os.sep) + os.sep)
