"""Whether all ranks of a trial run the same edited files, as those of several hosts may not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def digest_of(paths: Iterable[str]) -> str:
    """SHA-256 over the files one after the other; of one that is not there, over its absence."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not needed for this
                whole.update(hashlib.sha256(file.read()).digest())
        except OSError:
            whole.update(b"absent")
    return whole.hexdigest()
