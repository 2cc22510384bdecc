"""The files that copies of a program may write, and those they wrote in common: files outside of every copy.

An absolute path leads each copy to the same file, with what the program left there before; so does a link of the
program's own. To refuse it would end programs that run well; the user has to know.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from diagnose.program import Program, guard

_TOLD = "elsewhere"
_FOLDERS_SHOWN = 2  # folders that a message names; chosen, not measured


def protection(program: Program, folder: Path) -> dict[str, Any]:
    """The part of a recipe that tells the guard in a trial's processes what to protect; copies lie below `folder`."""
    return {
        "module": str(Path(guard.__file__)),
        "originals": [str(program.root)],
        "copy": str(folder),
        "told": str(folder / _TOLD),
        "scratch": [tempfile.gettempdir()],
    }


def written_elsewhere(folder: Path) -> str | None:
    """Return a message about files that trials below `folder` wrote outside of it; None where there are none."""
    try:
        told = (folder / _TOLD).read_bytes()
    except FileNotFoundError:
        return None
    names = told.split(b"\0")[:-1]
    files = sorted({os.fsdecode(name) for name in names if name})
    if not files:
        return None
    counts = Counter(str(Path(file).parent) for file in files).most_common()
    shown = [f"{count} in {where}" for where, count in counts[:_FOLDERS_SHOWN]]
    if more := len(files) - sum(count for _, count in counts[:_FOLDERS_SHOWN]):
        shown.append(f"{more} in other folders")
    least = "at least " if b"" in names else ""
    number = f"{least}{len(files):,} file{'s' if len(files) > 1 else ''}"
    return (
        f"trials wrote, replaced or removed {number} outside of their copies, by absolute paths or links "
        f"({', '.join(shown)}): what a plain run had left there may be lost; take such results from another"
    )
