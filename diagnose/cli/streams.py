"""The only writers of the two streams: `result` for stdout, `talk` for stderr."""

from __future__ import annotations

import sys


def result(text: str) -> None:
    """Print a result on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def talk(text: str) -> None:
    """Say something about the work on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
