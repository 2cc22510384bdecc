"""Unified diffs as git writes and reads them, on bytes: encodings, CRLF and a missing last newline are kept.

diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1,3 +1,3 @@
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from diagnose.errors import InputError, PatchConflict

_NO_NEWLINE = b"\\ No newline at end of file\n"
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {b"\a": b"a", b"\b": b"b", b"\t": b"t", b"\n": b"n", b"\v": b"v", b"\f": b"f", b"\r": b"r"}
_ESCAPES |= {b'"': b'"', b"\\": b"\\"}
_UNESCAPES = {escape: plain for plain, escape in _ESCAPES.items()}


@dataclass(frozen=True, slots=True)
class Hunk:
    """A stretch of lines that is replaced; each line with its end."""

    start: int
    """Line of the old file at which it begins, from 0."""
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file. `before` or `after` is None for a file that is new or goes away."""

    before: str | None
    after: str | None
    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> str:
        """The file, relative to the folder in which the diff applies."""
        path = self.after if self.after is not None else self.before
        assert path is not None  # parse_diff makes none without a name
        return path


def file_diff(path: str, before: bytes | None, after: bytes | None) -> bytes:
    """The diff of one file, empty where nothing changed; `path` is relative with forward slashes."""
    if before == after:
        return b""
    old, new = _quoted("a/" + path), _quoted("b/" + path)
    head = [b"diff --git " + old + b" " + new + b"\n"]
    if before is None:
        head.append(b"new file mode 100644\n")
    if after is None:
        head.append(b"deleted file mode 100644\n")
    body = b"".join(_hunk_lines(before or b"", after or b""))
    if body:
        head.append(b"--- " + (b"/dev/null" if before is None else old + _tab(path)) + b"\n")
        head.append(b"+++ " + (b"/dev/null" if after is None else new + _tab(path)) + b"\n")
    return b"".join(head) + body


def _tab(path: str) -> bytes:
    return b"\t" if " " in path and not _quoted(path).startswith(b'"') else b""


def _quoted(name: str) -> bytes:
    """A name as git prints it: in quotes with escapes where it holds control characters, quotes or backslashes."""
    raw = name.encode("utf-8", "surrogateescape")
    parts = []
    for value in raw:
        byte = bytes([value])
        if byte in _ESCAPES:
            parts.append(b"\\" + _ESCAPES[byte])
        elif value < 0x20 or value == 0x7F:
            parts.append(f"\\{value:03o}".encode())
        else:
            parts.append(byte)
    quoted = b"".join(parts)
    return quoted if quoted == raw else b'"' + quoted + b'"'


def _lines(data: bytes) -> list[str]:
    """Lines with their ends; git knows only the line feed. Latin-1 maps bytes to characters one to one."""
    return [line for line in re.split(r"(?<=\n)", data.decode("latin-1")) if line]


def _hunk_lines(before: bytes, after: bytes) -> Iterator[bytes]:
    lines = difflib.unified_diff(_lines(before), _lines(after), lineterm="\n")
    for number, line in enumerate(lines):
        if number < 2:  # the names, which are written elsewhere
            continue
        raw = line.encode("latin-1")
        yield raw if raw.endswith(b"\n") else raw + b"\n" + _NO_NEWLINE


def parse_diff(data: bytes, name: object = "diff") -> list[FileDiff]:
    """The changes of a unified diff, of git or plain. Raises InputError for what is none or cannot be applied."""
    lines = [line for line in re.split(rb"(?<=\n)", data) if line]
    files: list[FileDiff] = []
    at = 0
    names: tuple[str | None, str | None] | None = None
    while at < len(lines):
        line = lines[at].rstrip(b"\r\n")
        if line.startswith((b"GIT binary patch", b"Binary files ", b"rename from ", b"copy from ")):
            raise InputError(name, f"line {at + 1}: renamed, copied and binary files are not supported; use git apply")
        if line.startswith(b"diff --git "):
            names = None
            at, empty = _empty_file(lines, at)
            files += empty
            continue
        if line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            names = _names(line[4:], lines[at + 1].rstrip(b"\r\n")[4:], name)
            files.append(FileDiff(*names, ()))
            at += 2
        elif (match := _HUNK.match(line)) and names is not None:
            at, hunk = _parse_hunk(lines, at, match, name)
            files[-1] = FileDiff(*names, (*files[-1].hunks, hunk))
        else:
            at += 1
    if not files:
        raise InputError(name, "holds no unified diff")
    return files


def _empty_file(lines: list[bytes], at: int) -> tuple[int, list[FileDiff]]:
    """Read a `diff --git` header that stands alone: an empty file that is new or deleted has no hunks."""
    words = lines[at].rstrip(b"\r\n")[len(b"diff --git ") :]
    kind = b""
    at += 1
    while at < len(lines) and not lines[at].startswith((b"--- ", b"diff --git ", b"@@", b"GIT ", b"Binary ")):
        if lines[at].startswith((b"rename from ", b"copy from ")):
            break
        if lines[at].startswith((b"new file", b"deleted file")):
            kind = lines[at][:3]
        at += 1
    if not kind or (at < len(lines) and lines[at].startswith((b"--- ", b"GIT ", b"Binary "))):
        return at, []
    half = words[: len(words) // 2]  # both names are equal here, but for a/ and b/, with a space between them
    path = _plain_name(half, b"a/")
    return at, [FileDiff(None, path, ()) if kind == b"new" else FileDiff(path, None, ())]


def _names(old: bytes, new: bytes, diff: object) -> tuple[str | None, str | None]:
    both = _plain_name(old, b"a/"), _plain_name(new, b"b/")
    if both == (None, None):
        raise InputError(diff, "names /dev/null twice")
    for path in both:
        parts = PurePosixPath(path or ".").parts
        if path is not None and (path.startswith("/") or ".." in parts or ".git" in parts or not parts):
            raise InputError(diff, f"{path}: points out of the folder; nothing was written")
    if None not in both and both[0] != both[1]:
        raise InputError(diff, f"{both[0]} becomes {both[1]}: renamed files are not supported; use git apply")
    return both


def _plain_name(name: bytes, prefix: bytes) -> str | None:
    if name.startswith(b'"'):
        name = re.sub(rb'\\([0-7]{3}|["\\abtnvfr])', _unescape, name[1 : name.rindex(b'"')])
    else:
        name = name.split(b"\t")[0]
    if name == b"/dev/null":
        return None
    return name.removeprefix(prefix).decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return _UNESCAPES[code] if code in _UNESCAPES else bytes([int(code, 8) & 0xFF])


def _parse_hunk(lines: list[bytes], at: int, match: re.Match[bytes], name: object) -> tuple[int, Hunk]:
    olds, news = int(match[2] or 1), int(match[4] or 1)
    start = int(match[1]) - (1 if olds else 0)
    before: list[bytes] = []
    after: list[bytes] = []
    last: tuple[list[bytes], ...] = ()
    at += 1
    while at < len(lines) and (len(before) < olds or len(after) < news or lines[at].startswith(b"\\")):
        line = lines[at]
        if line.startswith(b"\\"):
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
        else:
            sides = {b"-": (before,), b"+": (after,), b" ": (before, after), b"\n": (before, after)}
            last = sides.get(line[:1], ())
            if not last:
                raise InputError(name, f"line {at + 1}: does not belong to a hunk; the diff is damaged")
            for side in last:
                side.append(line[1:] if line[:1] != b"\n" else line)
        at += 1
    if (len(before), len(after)) != (olds, news):
        raise InputError(name, f"line {at}: a hunk is cut off; the diff is damaged")
    return at, Hunk(start, tuple(before), tuple(after))


def apply_hunks(file: FileDiff, data: bytes | None) -> bytes | None:
    """The file after its hunks. A hunk that lies elsewhere is found if it fits in one place only.

    Raises PatchConflict.
    """
    if file.before is None and data is not None:
        raise PatchConflict(f"{file.path}: is there already, and the diff wants to make it")
    if file.before is not None and data is None:
        raise PatchConflict(f"{file.path}: no such file, and the diff wants to change it")
    lines = [line.encode("latin-1") for line in _lines(data or b"")]
    shift = 0
    for hunk in file.hunks:
        at = _place(lines, hunk, hunk.start + shift)
        if at is None:
            raise PatchConflict(f"{file.path}: line {hunk.start + 1} is not what the diff expects; nothing was written")
        lines[at : at + len(hunk.before)] = hunk.after
        shift = at - hunk.start + len(hunk.after) - len(hunk.before)
    if file.after is None:
        if lines:
            raise PatchConflict(f"{file.path}: holds more than the diff deletes; nothing was written")
        return None
    return b"".join(lines)


def _place(lines: list[bytes], hunk: Hunk, expected: int) -> int | None:
    height = len(hunk.before)
    wanted = list(hunk.before)
    if 0 <= expected <= len(lines) and lines[expected : expected + height] == wanted:
        return expected
    if not height:
        return None
    found = [at for at in range(len(lines) - height + 1) if lines[at : at + height] == wanted]
    return found[0] if len(found) == 1 else None
