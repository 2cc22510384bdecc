"""Runs a program, follows its heartbeats, tells what changes, and has a change traced and the trace read."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from diagnose.collect import launch
from diagnose.collect.counters import claims
from diagnose.collect.progress import CounterValues, Progress
from diagnose.collect.recipe import Recipe
from diagnose.collect.traced_ranks import MOST_TRACED_WHOLE
from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.atomic import write_atomic
from diagnose.session import Noticed, Session, Warned
from diagnose.trial.process.host_memory import free_bytes
from diagnose.units import NS_PER_S, format_share, printable
from diagnose.watching import metrics_file
from diagnose.watching.blocks import BLOCK_NS
from diagnose.watching.run_files import (
    HeartbeatFiles,
    is_traced,
    keep_within,
    request_trace,
    rotate_counters,
)
from diagnose.watching.watcher import Notice, Watcher

LOOK_S = 1.0
"""Heartbeats come once a second."""
METRICS_EVERY_S = 15.0
"""Prometheus scrapes every 15 s to 60 s as a rule."""
TRACES_APART_S = 600.0
"""A trace costs a job some seconds: at most one part in a hundred of its time."""
READING_S = 30.0
"""So long the end of a program waits for its trace to be read."""
_NICE = 19
"""The lowest priority: reading a trace must not slow the steps that are watched."""
_DIAGNOSIS = "diagnosis.json"
_FINDINGS = 3
"""Findings of a trace that are told."""


@dataclass
class _Pending:
    """A trace that was asked for, or that is being read."""

    folder: Path
    ranks: tuple[int, ...]
    reader: subprocess.Popen[bytes] | None = None


class Watching:
    """One watched program; `tell` is called with each event that the journal gets, on a thread of its own."""

    def __init__(
        self,
        program: Program,
        session: Session,
        most_bytes: int,
        metrics: Path | None,
        tell: Callable[[Noticed], None],
        block_ns: int = BLOCK_NS,
    ) -> None:
        """`most_bytes` bounds the traces; `metrics` is the file for Prometheus; blocks of steps last `block_ns`."""
        self._program = program
        self._session = session
        self._most_bytes = most_bytes
        self._metrics = metrics
        self._tell = tell
        self._watcher = Watcher(block_ns=block_ns)
        self._recipe = Recipe(mode="heartbeat", heartbeat_s=min(1.0, block_ns / NS_PER_S))
        self._counters: dict[int, Mapping[str, float]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pending: _Pending | None = None
        self._traces = 0
        self._traced_s = -TRACES_APART_S
        self._metrics_s = 0.0
        self.notices: Counter[str] = Counter()

    @property
    def steps(self) -> int:
        """Steps of the rank that took the most."""
        return max((int(beat["i"]) for beat in self._watcher.last.values()), default=0)

    @property
    def settled(self) -> bool:
        """Whether the usual time of a step is known, so that a change of it would be told."""
        return self._watcher.settled

    def run(self) -> launch.Outcome:
        """Run the program to its end. Raises InputError where the file for Prometheus cannot be written."""
        if self._metrics is not None:
            try:
                self._write_metrics(self._metrics)
            except OSError as error:
                said = f"cannot be written ({error.strerror}); name another file for --prometheus"
                raise InputError(self._metrics, said) from error
        following = threading.Thread(target=self._follow, name="heartbeats", daemon=True)
        following.start()
        try:
            command = self._program.command(sys.executable)
            return launch.run(command, self._recipe, self._session.path, self._progressed, cwd=self._program.cwd)
        finally:
            self._ended.set()
            following.join()
            if self._pending is not None and self._pending.reader is not None:
                with suppress(subprocess.TimeoutExpired):
                    self._pending.reader.wait(READING_S)
                self._pending.reader.kill()
                self._go_on_with_trace()

    def _progressed(self, record: Progress) -> None:
        if isinstance(record, CounterValues):
            with self._lock:
                self._counters[record.rank] = record.values

    def _follow(self) -> None:
        files = HeartbeatFiles(self._session.path)
        failed = False
        while True:
            ended = self._ended.wait(LOOK_S)
            try:
                self._look(files)
            except OSError:  # a full disk
                pass
            except Exception as error:  # noqa: BLE001 - what goes wrong once must not end the watching of days
                if not failed:
                    self._session.record(Warned(message=f"watching goes on after an error of diagnose: {error!r}"))
                failed = True
            if ended:
                return

    def _look(self, files: HeartbeatFiles) -> None:
        with self._lock:
            counters, self._counters = self._counters, {}
        for rank, values in counters.items():
            self._watcher.counters(rank, values)
        for rank, beat in files.new():
            for notice in self._watcher.beat(rank, beat):
                self._notice(notice)
        self._watcher.room["resident"] = float(free_bytes())
        if not self._ended.is_set():
            for notice in self._watcher.look(time.time_ns(), self._gone()):
                self._notice(notice)
        self._go_on_with_trace()
        rotate_counters(self._session.path)
        if self._metrics is not None and (
            self._ended.is_set() or time.monotonic() - self._metrics_s >= METRICS_EVERY_S
        ):
            self._write_metrics(self._metrics)

    def _gone(self) -> frozenset[int]:
        found = claims(self._session.path)
        return frozenset(rank for rank, claim in found.items() if not psutil.pid_exists(int(claim.get("pid", -1))))

    def _write_metrics(self, path: Path) -> None:
        self._metrics_s = time.monotonic()
        beats = self._watcher.last
        steps = {rank: self._watcher.step_ns(rank) for rank in beats}
        text = metrics_file.render(self._program.name, beats, steps, self._watcher.hanging, self.notices)
        write_atomic(path, text.encode(), 0o644)

    def _notice(self, notice: Notice) -> None:
        self.notices[notice.kind] += 1
        self._record(
            Noticed(
                kind=notice.kind,
                since_ns=notice.since_ns,
                since_step=notice.since_step,
                rank=notice.rank,
                message=notice.text,
                causes=[cause.kind for cause in notice.causes],
                stacks={str(rank): list(stack) for rank, stack in (notice.stacks or {}).items()},
            )
        )
        if notice.kind in ("slower", "faster"):
            self._ask_for_trace(notice)

    def _record(self, event: Noticed) -> None:
        self._session.record(event)
        self._tell(event)

    # -- traces ---------------------------------------------------------------------------------------------------

    def _ask_for_trace(self, notice: Notice) -> None:
        now = time.monotonic()
        beats = {rank: beat for rank, beat in self._watcher.last.items() if not beat.get("end")}
        is_reading = self._pending is not None and self._pending.reader is not None
        if is_reading or not beats or now - self._traced_s < TRACES_APART_S or self._ended.is_set():
            return
        ranks = tuple(sorted(beats))
        if len(ranks) > MOST_TRACED_WHOLE:
            ranks = tuple(sorted({ranks[0], ranks[-1], *({notice.rank} if notice.rank is not None else ())}))
        longest = max((self._watcher.step_ns(rank) or 0.0 for rank in ranks), default=0.0)
        last = max(int(beat["i"]) for beat in beats.values())
        self._traces += 1
        folder = request_trace(self._session.path, self._traces, last, longest, ranks)
        self._pending, self._traced_s = _Pending(folder, ranks), now

    def _go_on_with_trace(self) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.reader is None:
            if is_traced(pending.folder, pending.ranks):
                with (pending.folder / _DIAGNOSIS).open("wb") as answer:
                    # -P: no module of the working directory stands in for one of diagnose's.
                    pending.reader = subprocess.Popen(
                        [sys.executable, "-P", "-m", "diagnose", "analyze", str(pending.folder), "--json"],
                        stdin=subprocess.DEVNULL,
                        stdout=answer,
                        stderr=subprocess.DEVNULL,
                    )
                with suppress(psutil.Error):
                    psutil.Process(pending.reader.pid).nice(_NICE)
            return
        if pending.reader.poll() is None:
            return
        self._pending = None
        keep_within(self._session.path, self._most_bytes)
        self._record(_of_trace(pending.folder))


def _of_trace(folder: Path) -> Noticed:
    """Return the event that tells what a trace says of the steps now."""
    try:
        diagnosis = json.loads((folder / _DIAGNOSIS).read_bytes())
    except (OSError, ValueError):
        return _traced(f"traced, but the trace was not read: diagnose analyze {folder}")
    findings = [
        f"{one['summary']} ({format_share(one['share'])} of the step)" if one.get("share") else str(one["summary"])
        for one in diagnosis["findings"][:_FINDINGS]
    ]
    said = "; ".join(findings) or "no finding"
    return _traced(f"traced: {said}. All of it: diagnose analyze {folder}")


def _traced(words: str) -> Noticed:
    return Noticed(kind="traced", since_ns=time.time_ns(), since_step=0, rank=None, message=printable(words))
