"""A portrait as a file, to be kept beside a program and compared with what it does later."""

from __future__ import annotations

from pathlib import Path

import msgspec

from diagnose.comparison.portrait import PORTRAIT, Portrait
from diagnose.errors import InputError

_MOST_BYTES = 64 << 20


def to_baseline(portrait: Portrait) -> bytes:
    """The file's content: JSON that a version control system can show the changes of."""
    return msgspec.json.format(msgspec.json.encode(portrait), indent=1) + b"\n"


def read_baseline(path: Path) -> Portrait:
    """The portrait that a file keeps. Raises InputError where it holds none, or one of another version."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "is too large to be a baseline; name one that `diagnose compare --baseline` wrote")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    try:
        portrait = msgspec.json.decode(content, type=Portrait)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(path, f"is no baseline of diagnose ({error}); delete it, and the next run is kept") from error
    if portrait.version != PORTRAIT:
        raise InputError(path, "is the baseline of another version of diagnose; delete it, and the next run is kept")
    return portrait
