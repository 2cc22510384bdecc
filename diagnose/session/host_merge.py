"""Puts the run folders of one job's hosts together into one, as if one host had watched all ranks.

Each host's `diagnose run` leaves a run folder with the ranks of that host. The gathered one has the ranks of all, and
the journal of the one that has the lowest rank, with what the others' journals say of their ranks in between, by time.
Folders of different jobs are refused: what the launcher called the job, and how many ranks it has, must agree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.errors import InputError, UsageError
from diagnose.session.events import AnyEvent, CountersRead, DiagnosisMade, FactsLearned, StepsSeen, TraceWritten
from diagnose.session.journal import JOURNAL, Session, read

_RANK = re.compile(r"rank(\d+)")
_OF_RANKS = (StepsSeen, CountersRead, FactsLearned, TraceWritten)
_FACTS = "facts.json"
_JOB = {"run": "run id", "slurm": "Slurm job", "port": "port of the rendezvous"}
_UNNAMED = {"run": "none"}
"""The name that torchrun gives a run that nobody named."""


@dataclass(frozen=True)
class HostRun:
    """One host's run folder."""

    folder: Path
    ranks: dict[int, Path]
    facts: dict[int, dict[str, Any]]
    """The facts by rank, where they were written."""

    @property
    def host(self) -> str:
        """The host of its ranks; the folder's name where none was recorded."""
        jobs = (one.get("job") for one in self.facts.values())
        hosts = (job.get("host") for job in jobs if isinstance(job, dict))
        return next((str(host) for host in hosts if host), self.folder.name)

    def said(self, name: str) -> Any:
        """Return a value that the ranks' records give for the job; None where none gives it."""
        for one in self.facts.values():
            job = one.get("job")
            value = one.get(name) if name == "world_size" else job.get(name) if isinstance(job, dict) else None
            if value not in (None, "", _UNNAMED.get(name)):
                return value
        return None


def read_host_run(folder: Path) -> HostRun:
    """Return the contents of a run folder. Raises InputError where it is none."""
    if not folder.is_dir():
        raise InputError(folder, "is no folder; name run folders as `diagnose run` leaves them")
    found = {int(match[1]): path for path in folder.iterdir() if (match := _RANK.fullmatch(path.name))}
    ranks = {rank: path for rank, path in sorted(found.items()) if path.is_dir()}
    if not ranks:
        raise InputError(folder, "holds no rank's folder (rank0, …); name run folders as `diagnose run` leaves them")
    facts = {rank: record for rank, path in ranks.items() if (record := _record(path / _FACTS))}
    return HostRun(folder, ranks, facts)


def check(folders: Sequence[HostRun]) -> None:
    """Raise UsageError where a rank is in two of the folders, or where they are of different jobs."""
    first = folders[0]
    for other in folders[1:]:
        for name, words in (("world_size", "number of ranks"), *_JOB.items()):
            one, two = first.said(name), other.said(name)
            if one is not None and two is not None and one != two:
                raise UsageError(
                    f"{first.folder} and {other.folder} are of different jobs: their {words} is {one} and {two}"
                )
    for number, one in enumerate(folders):
        for two in folders[:number]:
            both = sorted(set(one.ranks) & set(two.ranks))
            if both:
                raise UsageError(
                    f"rank {', '.join(map(str, both[:8]))} is in {two.folder} and in {one.folder}: leave one of them "
                    "out, or name the runs of one job"
                )


def missing(folders: Sequence[HostRun]) -> list[int]:
    """Ranks of the job that are in none of the folders."""
    world = next((size for one in folders if isinstance(size := one.said("world_size"), int)), 0)
    present = {rank for one in folders for rank in one.ranks}
    return [rank for rank in range(min(world, 1 << 20)) if rank not in present]


def gather(folders: Sequence[HostRun], into: Path) -> None:
    """Copy all ranks and write the journal; nothing is left behind where that fails. The folders stay as they are.

    Raises UsageError where `into` is there already or cannot be written.
    """
    if into.exists():
        raise UsageError(f"{into} is there already; name a new folder with -o")
    building = into.with_name(f".{into.name}.{os.getpid()}.tmp")
    try:
        building.mkdir(parents=True)
        for one in folders:
            for rank, path in one.ranks.items():
                shutil.copytree(path, building / f"rank{rank}")
        session = Session(building)
        for event in _events(sorted(folders, key=lambda one: min(one.ranks))):
            session.record(event)
        session.close()
        building.replace(into)
    except OSError as error:
        raise UsageError(f"cannot write {into}: {error.strerror or error}; name another folder with -o") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _events(folders: Sequence[HostRun]) -> Iterator[AnyEvent]:
    """The first folder's events without its diagnosis, and those of the others that tell of their ranks, by time."""
    together: list[AnyEvent] = []
    for number, one in enumerate(folders):
        if (one.folder / JOURNAL).is_file():
            events, _ = read(one.folder)
            kept = (event for event in events if not isinstance(event, DiagnosisMade))
            together += [event for event in kept if number == 0 or isinstance(event, _OF_RANKS)]
    yield from sorted(together, key=lambda event: event.at_ns)


def _record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
