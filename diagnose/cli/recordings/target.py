"""The target of `report` and `view`: a run by its folder, the latest run, or recordings that are diagnosed on
the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose import session
from diagnose.cli.streams import talk
from diagnose.errors import InputError, UsageError
from diagnose.model import Diagnosis
from diagnose.session import State

if TYPE_CHECKING:
    from diagnose.trace import Trace


_NAMED = 3
"""Runs that a message names: as many as fit a line or two."""


def run_of(target: Path | None) -> Path | None:
    """The journal that `target` means; None when it is no run, so that it must be a recording.

    Raises UsageError when nothing was named and there is no run, InputError when there is no such file.
    """
    if target is None:
        newest = session.latest()
        if newest is None:
            raise UsageError(f"there is no run below {session.RUNS}; start one with `diagnose run`, or name a trace")
        return newest
    for path in (target, session.RUNS / target):
        if (path / session.JOURNAL).is_file() or (path.is_file() and path.name == session.JOURNAL):
            return path
    if target.is_dir() and (newest := _newest_below(target)) is not None:
        return newest
    if target.name.isdecimal() and not target.exists() and (watched := _of_process(target.name)) is not None:
        return watched
    if not target.exists():
        raise InputError(target, f"no such file, and no run of that name below {session.RUNS}{names_of_runs()}")
    return None


def names_of_runs() -> str:
    """The newest runs by name, as the end of a sentence; empty where there is none."""
    names = [run.name for run in session.run_folders()]
    if not names:
        return ""
    older = f" and {len(names) - _NAMED} older" if len(names) > _NAMED else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names[:_NAMED])}{older}"


def _of_process(pid: str) -> Path | None:
    """The run that a process belongs to."""
    from diagnose.collect.processes import run_folder_of  # psutil, for the few who name a process

    folder = run_folder_of(int(pid))
    around = () if folder is None else (folder, *folder.parents)  # copies under trial lie within the run
    return next((path for path in around if (path / session.JOURNAL).is_file()), None)


def _newest_below(folder: Path) -> Path | None:
    """The latest run of a project that is named by its folder, by `.diagnose`, or by `.diagnose/runs`."""
    whole = folder.resolve()
    for project in (whole, whole.parent, whole.parent.parent):
        if whole in (project, project / session.RUNS.parent, project / session.RUNS):
            newest = session.latest(project)
            if newest is not None:
                return newest
    return None


def state_of(run: Path) -> State:
    """A run, folded; lines of its journal that could not be read become warnings of it."""
    events, warnings = session.read(run)
    state = session.fold(events)
    return replace(state, warnings=(*state.warnings, *warnings))


def diagnosis_of(target: Path) -> Diagnosis:
    """A recording, diagnosed."""
    return diagnose_ranks(target)[1]


def explore(target: Path) -> State:
    """A recording, diagnosed, with the tables and the timeline of its slowest rank."""
    from diagnose.measure.profile.step_profile import slowest_profile

    traces, diagnosis = diagnose_ranks(target)
    return State(diagnosis=diagnosis, profile=slowest_profile(traces, diagnosis))


def open_runs(paths: Sequence[Path], progress: Callable[[int, int], None] = lambda _done, _total: None) -> list[Trace]:
    """The ranks of runs and recordings. Raises InputError, also for a run that ended before anything was recorded."""
    from diagnose.trace.readers import open_traces

    folders = [path.parent if path.name == session.JOURNAL else path for path in paths]
    try:
        return open_traces(folders, progress)
    except InputError as error:
        raise without_recording(folders) or error from None


def without_recording(runs: Sequence[Path]) -> InputError | None:
    """Return the error for a program that ended before anything of it was recorded."""
    from diagnose.trace.readers.run_folder import is_run_folder

    for run in runs:
        if (run / session.JOURNAL).is_file() and not is_run_folder(run):
            return InputError(run, f"nothing was recorded in this run; `diagnose report {run}` says how it ended")
    return None


def diagnose_ranks(target: Path) -> tuple[list[Trace], Diagnosis]:
    """The ranks of a recording, and their diagnosis without what the project ignores."""
    # Readers, measures and rules bring numpy, 0.15 s that a report of a run does not need.
    from diagnose.engine import diagnose
    from diagnose.plugins import load_rules
    from diagnose.program.settings import drop_ignored, settings_of

    catalogue = load_rules()
    for problem in catalogue.problems:
        talk(f"diagnose: {problem.module} was left out: {problem.message}")
    traces = open_runs([target])
    return traces, drop_ignored(diagnose(traces, catalogue), settings_of(Path.cwd()))
