"""Captures that began early stand still between two of their steps: the controller's side of
`inside.modes.capture_pause`.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from diagnose.collect.records import CLAIM, STAND, STANDS
from diagnose.trial.process.process_group import Group


def ask_to_stand(folder: Path) -> None:
    """Ask the capture that writes to `folder` to pause behind its next step."""
    (folder / STAND).touch()


def stands(folder: Path) -> bool:
    """Whether the capture that writes to `folder` has paused."""
    return any(folder.glob(f"rank*/{STANDS}"))


def stop(group: Group, folder: Path) -> None:
    """Stop a paused capture, with all its processes but a launcher that leads no rank's group."""
    group.adopt_descendants()
    ranks: list[int] = []
    for claim in folder.glob(f"rank*/{CLAIM}"):
        with contextlib.suppress(OSError, ValueError):
            ranks.append(os.getpgid(int(json.loads(claim.read_bytes())["pid"])))
    if ranks:
        group.keep_awake_but(ranks)
    group.pause()


def let_go_on(group: Group, folder: Path) -> None:
    """Take back what was asked, and continue it where it was stopped."""
    (folder / STAND).unlink(missing_ok=True)
    group.resume()
