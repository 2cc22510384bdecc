"""The processes of a run, and ending them all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import psutil

from diagnose.collect.records import RECIPE_VARIABLE

GRACE_S = 5.0
"""Seconds between the request to end and the kill."""
HELD_S = 0.5
"""How long a launcher stands still that a rank may need: of ranks that end meanwhile it has no word to say."""
_POLL_S = 0.05
_NOTICE_S = 0.005
"""Well below the 0.1 s in which torch's launcher notices that a rank has ended."""
_STARTED = re.compile(r"\bmultiprocessing\.(?:spawn|forkserver)\b")
_MASKS = ("SigCgt", "SigIgn")
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""The variable that torch's launcher (torchrun, `accelerate launch`) puts into the environment of each rank."""


def of_run(root: int | None, folder: Path) -> list[psutil.Process]:
    """Process `root`, its descendants, and orphans that carry the recipe of run folder `folder`."""
    found: dict[int, psutil.Process] = {}
    if root is not None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(root)
            found = {child.pid: child for child in [process, *process.children(recursive=True)]}
    marker = f'"folder": "{folder.resolve()}"'
    for process in psutil.process_iter():
        if process.pid == os.getpid() or process.pid in found:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if marker in process.environ().get(RECIPE_VARIABLE, ""):
                found[process.pid] = process
    return list(found.values())


def run_folder_of(pid: int) -> Path | None:
    """The folder that a watched program writes to, by its process or by one that started it; None where there is none,
    or where it is another user's.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError, ValueError, KeyError, TypeError):
                return Path(json.loads(one.environ()[RECIPE_VARIABLE])["folder"])
    return None


def let_go_on(folder: Path) -> None:
    """Let processes of a run go on that stand still though what started them has ended: workers of a loader that were
    stopped for a profiler, and whose process was killed meanwhile. By themselves they find that it is gone, and end."""
    for process in of_run(None, folder):
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                process.send_signal(signal.SIGCONT)


def end_all(root: int, folder: Path, grace_s: float = GRACE_S) -> None:
    """End every process of the run: ask `root` first, then the rest, and kill what is left after `grace_s`.

    Workers of a process that dies of the signal stand still from before it does: else they find their connections
    broken, and say so at length on the user's terminal. So does torch's launcher, which would tell of the signal as of
    an error: its ranks are asked in its place.
    """
    family = of_run(root, folder)
    launchers, serving, ranks = _launched(family)
    still = [*launchers, *(process for process in family if _works_for_a_defenceless(process))]
    _signal([*still, *serving], signal.SIGSTOP)
    processes = [process for process in family if process not in still and process not in serving]
    first = [process for process in processes if process.pid == root or process in ranks]
    _signal(first or processes, signal.SIGTERM)
    held_s = min(HELD_S, grace_s / 4) if serving else grace_s / 2
    alive = _served(serving, ranks, _after(held_s, processes), grace_s / 2 - held_s)
    # In this order: whoever they work for shall be gone before it hears that they are.
    _signal(alive, signal.SIGTERM)
    _signal(still, signal.SIGKILL)
    alive = _served(serving, ranks, alive, grace_s / 2)
    # Whoever was started while we asked is still to be found.
    _signal([*serving, *alive, *_alive(of_run(root, folder))], signal.SIGKILL)


def _served(
    launchers: list[psutil.Process], ranks: list[psutil.Process], processes: list[psutil.Process], seconds: float
) -> list[psutil.Process]:
    """Those of the processes that live once all have ended or `seconds` are over, while their launchers serve ranks.

    A launcher stands still from when a first rank has ended, of which it would tell as of an error, until the others
    have. Where these take longer it goes on, for they may need it, and ends them and itself in its own way.
    """
    deadline = time.monotonic() + seconds
    there = len(_alive(ranks))
    if not launchers or not there:
        return _after(seconds, processes)
    _signal(launchers, signal.SIGCONT)
    while len(_alive(ranks)) == there and time.monotonic() < deadline:
        time.sleep(_NOTICE_S)
    if time.monotonic() < deadline:
        _signal(launchers, signal.SIGSTOP)
        if _after(min(HELD_S, seconds / 4), ranks):
            _signal(launchers, signal.SIGTERM)
            _signal(launchers, signal.SIGCONT)
    return _after(max(0.0, deadline - time.monotonic()), processes)


def _launched(
    family: list[psutil.Process],
) -> tuple[list[psutil.Process], list[psutil.Process], list[psutil.Process]]:
    """Launchers of torch whose ranks all die of SIGTERM, those with ranks that hear it, and the ranks of both.

    Ranks that hear the signal may need their launcher for what they do then: it keeps their store.
    """
    launched = {process.pid for process in family if _is_of_torchrun(process)}
    launchers: list[psutil.Process] = []
    serving: list[psutil.Process] = []
    ranks: list[psutil.Process] = []
    for launcher in family:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            its = [child for child in launcher.children() if child.pid in launched]
            if its and launcher.pid not in launched:
                (serving if any(_hears_sigterm(child.pid) for child in its) else launchers).append(launcher)
                ranks += its
    return launchers, serving, ranks


def _is_of_torchrun(process: psutil.Process) -> bool:
    try:
        return _OF_TORCHRUN in process.environ()
    except (psutil.Error, OSError):
        return False  # gone, or not ours


def _works_for_a_defenceless(process: psutil.Process) -> bool:
    """Whether Python's multiprocessing made it for a process that SIGTERM ends at once, whatever that is doing."""
    try:
        parent, words = process.parent(), process.cmdline()
        if parent is None:
            return False
        forked = bool(words) and words == parent.cmdline()
        return (forked or any(_STARTED.search(word) for word in words)) and not _hears_sigterm(parent.pid)
    except (psutil.Error, OSError, ValueError):
        return False  # gone, or a system that does not tell


def _hears_sigterm(pid: int) -> bool:
    """Whether a process handles or ignores SIGTERM. Raises OSError or ValueError where that cannot be read."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = {name: int(value, 16) for name, _, value in (line.partition(":") for line in lines) if name in _MASKS}
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks.values())


def _after(seconds: float, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still live once all have ended or `seconds` are over.

    psutil's own waiting would collect the exit code of our child, which is `subprocess`'s to collect.
    """
    deadline = time.monotonic() + seconds
    while (alive := _alive(processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
