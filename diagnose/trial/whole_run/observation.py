"""The observation of one whole run: what it printed, its files, its losses, how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnose.collect.inside.probes.file_events import COMPILERS
from diagnose.collect.records import STDERR, STDOUT, WHOLE_RUN
from diagnose.trial.whole_run.figures import Text, read_text
from diagnose.trial.whole_run.file_history import history
from diagnose.trial.whole_run.told_options import Told

_LARGEST_READ_BYTES = 256 << 20  # of one file that is compared as text; chosen, not measured
_LEFT_OUT = frozenset({"__pycache__", ".diagnose", ".git"})


@dataclass(frozen=True)
class Observation:
    """One run, of all its ranks."""

    folder: Path
    """The folder of its record and its streams."""
    returncode: int | None
    """None: it had to be ended."""
    printed: Text
    errors: Text
    """The lines of the error stream; only the exception of a traceback."""
    files: Mapping[str, Path]
    """Files that the run made or changed, by their names relative to the program's folder."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Folders of this run, and what stands for them in what it printed."""
    told: Told = field(default_factory=Told)
    """What it may say of its options, which does not count."""
    records: Sequence[Mapping[str, Any]] = ()
    """Per rank, its record as `collect.inside.modes.whole_run` left it; none where the process ended without its
    exit handlers."""

    def without(self, told: Told) -> Observation:
        """The run with what it says of its options left out."""
        return replace(self, printed=told.without(self.printed), errors=told.without(self.errors), told=told)

    @property
    def last_words(self) -> str:
        """The last line of the error stream."""
        return self.errors.lines[-1].text[:160] if self.errors.lines else ""

    @property
    def cut(self) -> bool:
        """Whether the run was interrupted for lack of time."""
        return any(record["cut"] for record in self.records)

    @property
    def left(self) -> bool:
        """Whether the exception or the interrupt that was asked for has been raised."""
        return any(record["left"] for record in self.records)

    @property
    def steps(self) -> int:
        """Training steps, of the rank with the most."""
        return max((int(record["steps"]) for record in self.records), default=0)

    @property
    def calls(self) -> int:
        """Calls of optimizers, of the rank with the fewest."""
        return min((int(record["calls"]) for record in self.records), default=0)

    @property
    def step_ns(self) -> int:
        """Median time of a step; -1 where there is none."""
        return max((int(record["step_ns"]) for record in self.records), default=-1)

    @property
    def losses(self) -> list[float | None]:
        """The losses that each backward pass started from, rank by rank."""
        return [loss for record in self.records for loss in record["losses"]]

    @property
    def parameters(self) -> list[str]:
        """Hashes of the final parameters, rank by rank."""
        return [one for record in self.records for one in record["parameters"]]

    @property
    def elsewhere(self) -> list[str]:
        """Files outside of the program's folder that it wrote."""
        return sorted({path for record in self.records for path in record["elsewhere"]})

    @property
    def histories(self) -> list[dict[str, list[str]]]:
        """The file events, rank by rank."""
        return [history(record["files"]) for record in self.records]


def listed(root: Path) -> dict[str, tuple[int, int]]:
    """The files below a folder, links left out: name → size and time of the last change."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(COMPILERS)]
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink() and path.is_file():
                status = path.stat()
                found[str(path.relative_to(root))] = (status.st_size, status.st_mtime_ns)
    return found


def observe(
    folder: Path, root: Path, scratch: Path, before: Mapping[str, tuple[int, int]], returncode: int | None
) -> Observation:
    """Read what a run left: its record in `folder`, the copy in `root`, temporary files in `scratch`."""
    after = listed(root)
    files = {name: root / name for name, status in after.items() if before.get(name) != status}
    files |= {f"<tmp>/{name}": scratch / name for name in listed(scratch)}
    names = {str(root): "<root>", os.path.realpath(root): "<root>", str(scratch): "<tmp>"}
    records = [json.loads(path.read_bytes()) for path in sorted(folder.glob(f"rank*/{WHOLE_RUN}"))]
    printed, errors = (read_text(_streams(folder, name), names) for name in (STDOUT, STDERR))
    return Observation(folder, returncode, printed, errors, files, names, records=records)


def _streams(folder: Path, name: str) -> str:
    """Return what was printed: rank by rank where ranks have streams of their own; the common one is the launcher's
    then."""
    apart = sorted(folder.glob(f"rank*/{name}"))
    return "\n".join(map(_stream, apart or [folder / name]))


def _stream(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
