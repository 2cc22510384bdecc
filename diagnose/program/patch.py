"""A patch to the user's files: made from edited texts, kept beside the run, applied and taken back byte for byte.

patch.diff       what `git apply` accepts, from the root of the user's files
patch.json       {"root", "root_from_here", "files": [{"path", "before", "after"}]}: sha256 of each side, null for a
                 file that is not; the root as a path, and as seen from the run folder, should both have been moved
                 and {"command": {"before", "after"}}: words, where the fix changes how the program is started
originals/       the bytes before; a patch that only this folder knows can be taken back without git
command.txt      the changed command, as it is typed
applied.json     there while the patch is in the user's files, or is being written
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from diagnose.errors import InputError, PatchConflict
from diagnose.program.atomic import clear_unfinished, write_atomic, write_sibling
from diagnose.program.diff import apply_hunks, file_diff, parse_diff
from diagnose.program.source import decode_source
from diagnose.source.settings.command_line import COMMAND_LINE, split_command

__all__ = [
    "Change",
    "CommandChange",
    "Patch",
    "applied_at",
    "apply",
    "apply_edits",
    "check",
    "diff",
    "from_diff",
    "load",
    "make",
    "parse_diff",
    "revert",
    "store",
]

DIFF = "patch.diff"
MANIFEST = "patch.json"
ORIGINALS = "originals"
APPLIED = "applied.json"
COMMAND = "command.txt"


@dataclass(frozen=True, slots=True)
class Change:
    """One file before and after; None where it is not there."""

    path: str
    """Relative to the root, with forward slashes."""
    before: bytes | None
    after: bytes | None

    def line_counts(self) -> tuple[int, int]:
        """Lines added and removed."""
        lines = file_diff(self.path, self.before, self.after).split(b"\n")
        body = [line for line in lines if not line.startswith((b"+++ ", b"--- "))]
        return sum(line.startswith(b"+") for line in body), sum(line.startswith(b"-") for line in body)


@dataclass(frozen=True, slots=True)
class CommandChange:
    """The words of the program's command line, before and after."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The command after, as one line of shell."""
        return shlex.join(self.after)

    @property
    def typed_before(self) -> str:
        """The command before, as one line of shell."""
        return shlex.join(self.before)

    @property
    def text(self) -> str:
        """Both for reading, as a diff shows lines."""
        return f"command line\n-{self.typed_before}\n+{self.typed}\n"


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes to files below one folder, and perhaps to the command that starts the program."""

    root: Path
    changes: tuple[Change, ...]
    command: CommandChange | None = None

    def diff_bytes(self) -> bytes:
        """The diff of the files as it is written to disk."""
        return b"".join(file_diff(change.path, change.before, change.after) for change in self.changes)

    @property
    def text(self) -> str:
        """The diff for reading, after the command line where that changes; bytes of another encoding than UTF-8 are
        shown as replacement characters."""
        command = self.command.text if self.command is not None else ""
        return command + self.diff_bytes().decode("utf-8", "replace")


def diff(before: Mapping[str, str], after: Mapping[str, str], root: Path) -> str:
    """The git-style diff between two sets of texts; paths absolute or relative to `root`. Files as they lie there
    decide on encoding and byte-order mark, so that the diff fits their bytes."""
    return make(after, root, before).text


def make(edits: Mapping[str, str], root: Path, before: Mapping[str, str] | None = None) -> Patch:
    """The patch that brings the files below `root` to the texts of `edits`.

    `before` gives texts that count as the old ones instead of the files on disk. Raises InputError for a path outside
    of the root, or for text that the file's encoding cannot hold.
    """
    changes = []
    command = None
    for path, text in edits.items():
        if path == COMMAND_LINE:
            command = _command_change((before or {})[path], text)
            continue
        relative = _relative(path, root)
        on_disk = _read(root / relative)
        source = decode_source(on_disk, path) if on_disk is not None else decode_source(b"")
        old = source.encode(before[path]) if before is not None and path in before else on_disk
        new = source.encode(text)
        if old != new:
            changes.append(Change(relative, old, new))
    # What a reviewer looks for comes first: the lines of the user's own files, then files that are new.
    return Patch(root, tuple(sorted(changes, key=lambda change: (change.before is None, change.path))), command)


def _command_change(before: str, after: str) -> CommandChange | None:
    return None if before == after else CommandChange(split_command(before), split_command(after))


def apply_edits(files: Mapping[str, str], *, root: Path, copy: Path) -> list[Path]:
    """Write edited texts of files below `root` into a copy of that tree; encodings as in the copy. Where they lie."""
    written: list[Path] = []
    for path, text in files.items():
        target = copy / _relative(path, root)
        data = _read(target)
        source = decode_source(data, path) if data is not None else decode_source(b"")
        if target.is_symlink():  # the copy shares what is large by link; an edit must not reach through it
            target.unlink()
        write_atomic(target, source.encode(text), target.stat().st_mode & 0o7777 if target.exists() else None)
        written.append(target)
    return written


def from_diff(data: bytes, root: Path, name: object = "diff") -> Patch:
    """The patch that a unified diff means for the files below `root` as they are. Raises PatchConflict, InputError."""
    files = parse_diff(data, name)
    paths = [file.path for file in files]
    if len(set(paths)) < len(paths):
        raise InputError(name, "changes one file twice")
    contents = [(file, _read(root / file.path)) for file in files]
    return Patch(root, tuple(Change(file.path, data, apply_hunks(file, data)) for file, data in contents))


def store(patch: Patch, folder: Path) -> None:
    """Keep a patch in a run folder; files that it leaves as they are do not count."""
    changes = tuple(change for change in patch.changes if change.before != change.after)
    patch = Patch(patch.root, changes, patch.command)
    manifest: dict[str, object] = {
        "root": str(patch.root),
        "root_from_here": os.path.relpath(patch.root.resolve(), folder.resolve()),
        "files": [
            {"path": change.path, "before": _sha256(change.before), "after": _sha256(change.after)}
            for change in patch.changes
        ],
    }
    if patch.command is not None:
        manifest["command"] = {"before": patch.command.before, "after": patch.command.after}
        write_atomic(folder / COMMAND, f"{patch.command.typed}\n".encode())
    for change in patch.changes:
        if change.before is not None:
            write_atomic(folder / ORIGINALS / change.path, change.before)
    write_atomic(folder / DIFF, patch.diff_bytes())
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=True).encode())


def load(folder: Path) -> Patch:
    """The patch of a run folder, checked against its own hashes. Raises InputError."""
    manifest, data = _read(folder / MANIFEST), _read(folder / DIFF)
    if manifest is None or data is None:
        raise InputError(folder, "holds no patch: that run kept no fix")
    try:
        content = json.loads(manifest)
        rows = [(str(row["path"]), row["before"], row["after"]) for row in content["files"]]
        by_path = {file.path: file for file in parse_diff(data, folder / DIFF)} if rows else {}
        changes = []
        for path, before_hash, after_hash in rows:
            before = _read(folder / ORIGINALS / path) if before_hash is not None else None
            after = apply_hunks(by_path[path], before)
            if (_sha256(before), _sha256(after)) != (before_hash, after_hash):
                raise InputError(
                    folder, f"{path}: the kept patch does not match its own record; run `diagnose fix` again"
                )
            changes.append(Change(path, before, after))
        kept = content.get("command")
        command = CommandChange(tuple(kept["before"]), tuple(kept["after"])) if kept is not None else None
        return Patch(_root(folder, content, changes), tuple(changes), command)
    except (ValueError, KeyError, TypeError, PatchConflict) as error:
        raise InputError(folder / MANIFEST, f"is damaged ({error}); run `diagnose fix` again") from error


def _root(folder: Path, manifest: dict[str, object], changes: list[Change]) -> Path:
    """Return the root of the files: its place beside the run folder, which holds also where both were moved or copied
    together; else the path that was noted."""
    noted = Path(str(manifest["root"]))
    seen = manifest.get("root_from_here")  # runs of earlier versions do not say
    if not isinstance(seen, str):
        return noted
    beside = (folder.resolve() / seen).resolve()
    if beside == noted.resolve() or not beside.is_dir():
        return noted
    there = all((beside / change.path).exists() for change in changes if change.before is not None)
    return beside if there else noted


def applied_at(folder: Path) -> int | None:
    """Return when a folder's patch was applied to the user's files, in ns since the epoch; None where it is not."""
    try:
        return (folder / APPLIED).stat().st_mtime_ns
    except OSError:
        return None


def check(patch: Patch) -> None:
    """Raise PatchConflict where a file is no longer what the patch was made for."""
    changed = [change.path for change in patch.changes if _read(patch.root / change.path) != change.before]
    if not changed:
        return
    if not patch.root.is_dir():
        raise PatchConflict(f"{patch.root}, where the program was when it was measured, is not there")
    if all(_read(patch.root / change.path) == change.after for change in patch.changes):
        raise PatchConflict("the files hold this patch already; `diagnose revert` takes it back")
    raise PatchConflict(
        f"{_listed(changed)} changed since the fix was measured; nothing was written. Run `diagnose fix` again"
    )


def apply(patch: Patch, folder: Path) -> None:
    """Write the patch into the user's files, all of them or none; `folder` keeps what `revert` needs.

    Raises PatchConflict where a file is no longer what the patch was made for, and InputError where one cannot be
    written.
    """
    check(patch)
    _clear_unfinished(patch)
    # Kept first: should the machine stop between two files, `revert` finds each as it was or as it shall be.
    write_atomic(folder / APPLIED, json.dumps({"root": str(patch.root)}).encode())
    try:
        _write_all(patch.root, [(change.path, change.before, change.after) for change in patch.changes])
    except InputError:
        if all(_read(patch.root / change.path) == change.before for change in patch.changes):
            (folder / APPLIED).unlink(missing_ok=True)
        raise


def revert(patch: Patch, folder: Path) -> None:
    """Give the user's files their bytes from before. Raises PatchConflict where one was changed since."""
    changed = [
        change.path for change in patch.changes if _read(patch.root / change.path) not in (change.before, change.after)
    ]
    if changed:
        raise PatchConflict(f"{_listed(changed)} changed since the patch was applied; nothing was written")
    _clear_unfinished(patch)
    _write_all(patch.root, [(change.path, change.after, change.before) for change in patch.changes])
    (folder / APPLIED).unlink(missing_ok=True)


def _clear_unfinished(patch: Patch) -> None:
    for change in patch.changes:
        clear_unfinished((patch.root / change.path).resolve())


def _write_all(root: Path, states: list[tuple[str, bytes | None, bytes | None]]) -> None:
    """Bring files from their old to their new bytes: all of them are on the disk before the first one is replaced."""
    files = [_Written((root / path).resolve(), old) for path, old, _ in states]  # a link to a source file stays a link
    at = root
    try:
        for file, (path, _, new) in zip(files, states, strict=True):
            at = root / path
            file.prepare(new)
        for file, (path, _, _) in zip(files, states, strict=True):
            at = root / path
            file.put()
    except OSError as error:
        changed = [file for file in reversed(files) if not file.take_back()]
        state = "some files are changed; `diagnose revert` restores them" if changed else "all files are as before"
        raise InputError(at, f"cannot be written ({error.strerror}); {state}") from error


@dataclass
class _Written:
    """A file of the user's that is being replaced or removed."""

    target: Path
    old: bytes | None
    removed: bool = False
    sibling: Path | None = None
    is_put: bool = False

    def prepare(self, new: bytes | None) -> None:
        """Write the new bytes beside the file; nothing where it holds them already."""
        if new is None:
            self.removed = True
        elif _read(self.target) != new:
            mode = self.target.stat().st_mode & 0o7777 if self.target.exists() else None
            self.sibling = write_sibling(self.target, new, mode)

    def put(self) -> None:
        self.is_put = True
        if self.removed:
            self.target.unlink(missing_ok=True)
        elif self.sibling is not None:
            self.sibling.replace(self.target)
            self.sibling = None

    def take_back(self) -> bool:
        """Undo what was done; whether the file is as it was."""
        with suppress(OSError):
            if self.sibling is not None:
                self.sibling.unlink(missing_ok=True)
        with suppress(OSError):
            if self.is_put and self.old is None:
                self.target.unlink(missing_ok=True)
            elif self.is_put and self.old is not None and _read(self.target) != self.old:
                mode = self.target.stat().st_mode & 0o7777 if self.target.exists() else None
                write_atomic(self.target, self.old, mode)
        return _read(self.target) == self.old


def _relative(path: str, root: Path) -> str:
    absolute = Path(os.path.abspath(root / path))  # noqa: PTH100 - links keep the name the user knows
    try:
        return PurePosixPath(absolute.relative_to(root)).as_posix()
    except ValueError as error:
        raise InputError(path, f"lies outside of {root}") from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(path, error.strerror or "cannot be read") from error


def _sha256(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
