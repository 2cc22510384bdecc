"""The user's program as data: what was typed, the file that starts, and the files that are the user's own."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from diagnose.errors import InputError, UsageError

__all__ = ["Kind", "Program"]

Kind = Literal["script", "module", "launcher"]

_NO_PROGRAMS = frozenset(
    {".cfg", ".csv", ".gz", ".ini", ".json", ".jsonl", ".md", ".pickle", ".pkl", ".pt", ".pth", ".toml", ".txt"}
    | {".yaml", ".yml"}
)
"""Files that are given to a program; some of them read as Python by chance, as `{}` does."""
_FOREIGN = frozenset({"site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox", "node_modules", ".diagnose"})


@dataclass(frozen=True, slots=True)
class Program:
    """A training program that can be started, and copied.

    `words` is the command as the user typed it after our options: the script or the module and its arguments, or a
    launcher and all of its words.
    """

    words: tuple[str, ...]
    kind: Kind
    entry: Path | None
    """The file that runs as `__main__`; None where it is not a file of the user's."""
    cwd: Path
    root: Path
    """The tree that is the user's: the git work tree around the entry, else the entry's folder. Never `/` or a home."""

    @classmethod
    def parse(
        cls, words: Sequence[str], *, module: bool = False, launcher: bool = False, cwd: Path | None = None
    ) -> Program:
        """The program that `words` start from `cwd`. Raises UsageError or InputError in one line."""
        here = _absolute(cwd or Path.cwd())
        _check_text(str(here), *words)
        if not words:
            raise UsageError("no program was named; write for example: diagnose run train.py")
        if module:
            entry: Path | None = _module_file(words[0], here)
            kind: Kind = "module"
        elif launcher:
            entry, kind = _launched_file(words, here), "launcher"
        else:
            entry, kind = _script_file(words[0], here), "script"
        return cls(tuple(words), kind, entry, here, _root_of(entry.parent if entry else here))

    @property
    def name(self) -> str:
        """A short name for folders and titles: the script's stem, the module's last part, the launcher's word."""
        if self.kind == "module":
            return self.words[0].rpartition(".")[2]
        return self.entry.stem if self.entry else Path(self.words[0]).stem

    @property
    def home(self) -> Path | None:
        """The user's folder that the interpreter imports from first: the script's, or for `-m` where it was started."""
        by_path = self.entry is not None and any(_absolute(self.cwd / word) == self.entry for word in self.words)
        if self.kind == "script" or by_path:
            return self.entry.parent if self.entry else None
        return self.cwd if self.owned(self.cwd / "__init__.py") else None

    @property
    def typed(self) -> str:
        """The words that the user typed after the options, as one line of shell."""
        return {"script": "", "module": "-m ", "launcher": "-- "}[self.kind] + shlex.join(self.words)

    @property
    def own_arguments(self) -> int | None:
        """The index of the first of `words` that the program itself reads; None where it is unknown, as in a line for
        a shell."""
        if self.kind != "launcher":
            return 1
        for at, word in enumerate(self.words[1:], 1):
            if self.entry is not None and self._names_entry(self.words[at - 1], word):
                return at + 1
        return None

    def _names_entry(self, before: str, word: str) -> bool:
        """Whether a launcher's word is the script that starts, or the module that it is."""
        if before in _LAUNCHED_MODULE and word.replace(".", "").isidentifier():
            try:
                return _module_file(word, self.cwd) == self.entry
            except UsageError:  # a package that cannot be started; the launcher's own, perhaps
                return False
        return _absolute(self.cwd / word) == self.entry

    def command(self, python: str) -> list[str]:
        """The words that start it with the interpreter `python`."""
        if self.kind == "script":
            return [python, *self.words]
        if self.kind == "module":
            return [python, "-m", *self.words]
        first = self.words[0]
        if os.sep not in first and shutil.which(first) is None:
            # An environment that is used without being activated has its launchers beside its interpreter.
            beside = Path(python).parent / first
            first = str(beside) if beside.is_file() else first
        return [first, *self.words[1:]]

    def owned(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is one of the user's: below the root, and not of an environment or of `.diagnose`."""
        try:
            relative = _absolute(self.cwd / path).relative_to(self.root)
        except ValueError:
            return False
        return not _FOREIGN.intersection(relative.parts) and not any(
            (parent / "pyvenv.cfg").is_file() for parent in _between(self.root, self.root / relative)
        )


def _check_text(*names: str) -> None:
    """Raise UsageError for a name whose bytes are no text: a journal, a trace and a diff could not hold it."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{os.fsencode(name)!r} is not text in UTF-8; rename it, or name a link to it") from None


def _absolute(path: Path) -> Path:
    # Not `resolve`: a link keeps the name under which the interpreter, and so every recorded site, knows the file.
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`


def _exists(path: Path) -> bool:
    # A line for a shell is often longer than the name of a file may be.
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises there


def _between(root: Path, path: Path) -> list[Path]:
    """The folders strictly below `root` on the way to `path`."""
    return [parent for parent in path.parents if root in parent.parents]


def _script_file(word: str, cwd: Path) -> Path:
    path = _absolute(cwd / word)
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return path / "__main__.py"
        raise UsageError(f"{word}: is a folder; name the script that trains, or use -m for a package")
    if not path.exists():
        hint = " (a launcher goes after `--`)" if shutil.which(word) else ""
        raise UsageError(f"{word}: no such script{hint}")
    _check_python(path, word)
    return path


def _check_python(path: Path, word: str) -> None:
    from diagnose.program.source import read_source  # parsing is not needed to start a launcher or a module

    if path.suffix == ".ipynb":
        raise InputError(
            word,
            f"is a notebook; `jupyter nbconvert --to script {word}` writes its cells to {path.stem}.py: "
            "take out the lines with get_ipython(), which only notebooks have, and name that",
        )
    if path.suffix.lower() in _NO_PROGRAMS:
        raise InputError(
            word, "is a file of data, not a program; name the script that trains, and this as an argument after it"
        )
    if not os.access(path, os.R_OK):
        raise InputError(word, "may not be read by this user; change its permissions (`chmod u+r`) or the user")
    try:
        text = read_source(path).text
    except InputError as error:
        raise InputError(word, "is not a Python script; name the file that trains") from error
    named = path.suffix in {".py", ".pyw"}  # also `#!/usr/bin/env uv run`
    shell = not named and "#!" in text[:2] and "python" not in text.split("\n", 1)[0]
    if shell or path.suffix in {".sh", ".bash", ".zsh", ".slurm", ".sbatch"}:
        raise InputError(
            word, f"is not a Python script; name the file that trains, or start it by its shell: `-- bash {word}`"
        )
    if named:
        return  # its own interpreter reports a syntax error better than we can
    first = text.split("\n", 1)[0]
    if not (first.startswith("#!") and "python" in first):
        try:
            compile(text, word, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise InputError(word, "is not a Python script; name the file that trains") from error


def _module_file(name: str, cwd: Path) -> Path | None:
    """The file of a module that lies below the working directory; None where the import system finds it elsewhere."""
    if not name.replace(".", "").isidentifier() or (name.endswith(".py") and (cwd / name).is_file()):
        raise UsageError(f"-m {name}: is not the name of a module; leave .py and slashes away")
    stem = cwd.joinpath(*name.split("."))
    for candidate in (stem / "__main__.py", stem.with_name(stem.name + ".py")):
        if candidate.is_file():
            return candidate
    if stem.is_dir():
        raise UsageError(f"-m {name}: the package has no __main__.py")
    return None


_LAUNCHED_MODULE = frozenset({"-m", "--module"})


def _split(line: str) -> list[str]:
    """The words of a line for a shell; `;` and `&&` are none of the words beside them."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    words.commenters = ""
    return list(words)


def _within_shells(words: Sequence[str], cwd: Path) -> list[str]:
    """The words of a command line, those of a line for a shell among them (`bash -c "cd run && python train.py"`)."""
    found: list[str] = []
    for word in words:
        if any(letter.isspace() for letter in word) and not _exists(cwd / word):
            try:
                found += _split(word)
            except ValueError:  # an open quote: it is no line for a shell
                found.append(word)
        else:
            found.append(word)
    return found


def _launched_file(typed: Sequence[str], cwd: Path) -> Path | None:
    """The script among a launcher's words: the first that is a Python file of the user's, else the module after -m."""
    words = _within_shells(typed, cwd)
    for word in words[1:]:
        path = _absolute(cwd / word)
        if word.endswith(".py") and _exists(path) and path.is_file() and not _FOREIGN.intersection(path.parts):
            return path
    for flag, word in pairwise(words):
        if flag in _LAUNCHED_MODULE and word.replace(".", "").isidentifier():
            try:
                found = _module_file(word, cwd)
            except UsageError:
                continue
            if found is not None:
                return found
    if os.sep not in typed[0] and shutil.which(typed[0]) is None:
        beside = Path(sysconfig.get_path("scripts")) / typed[0]
        if not beside.is_file():
            raise UsageError(f"{typed[0]}: no such command; is its environment active?")
    named = [word for word in typed[1:] if word.endswith(".py") and not word.startswith("-")]
    missing = next((word for word in named if len(word.split()) == 1), None)
    if missing is not None and not _exists(cwd / missing):
        raise UsageError(f"{missing}: no such script")
    return None


def _root_of(folder: Path) -> Path:
    """The git work tree around `folder`, else `folder`."""
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return folder if _too_wide(candidate) else candidate
    return folder


def _too_wide(folder: Path) -> bool:
    home = Path.home()
    return folder == Path(folder.anchor) or folder == home or folder in home.parents
