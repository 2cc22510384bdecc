"""Starts the user's command under a recipe and follows it until it ends.

In plain mode the program has our terminal, our process group and our standard streams: signals and exit code are as
without us. With `on_output` a screen owns the terminal: the program gets a pseudo-terminal and a session of its own.
There, and where the program runs for its trace alone, it is ended when we are gone (`watchdog`).
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from diagnose.collect import environment, processes
from diagnose.collect.counters import Counters, claims
from diagnose.collect.progress import CounterValues, PhaseBegan, Progress, StepsEnded, Tail
from diagnose.collect.recipe import Recipe
from diagnose.collect.records import END
from diagnose.collect.terminal import output_terminal
from diagnose.collect.traced_ranks import SLOWEST, Slowest
from diagnose.collect.watchdog import outlived
from diagnose.errors import UsageError
from diagnose.program.atomic import write_atomic
from diagnose.units import format_seconds

LOOK_EVERY_S = 0.1
"""A screen shows steps as they end; a run that heartbeats follow is looked at as often as they come."""
COUNTERS_EVERY_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a watched program ended."""

    returncode: int
    """The program's own; negative for the signal that ended it."""
    stopped: bool
    """Whether `diagnose` ended the program, after its trace or because the caller asked: no failure of the
    program's."""
    interrupted: bool
    """The user pressed Ctrl-C (or sent SIGINT) while it ran."""
    ranks: tuple[int, ...]
    """Ranks that took at least one step and left a folder `rank<k>`."""


def run(
    command: Sequence[str],
    recipe: Recipe,
    folder: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    on_output: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    cwd: Path | None = None,
    base: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `command` to its end and leave `rank<k>/` in `folder`.

    `on_progress` and `on_output` are called on this thread and on one of its own, respectively. Setting `stop` ends
    the program and all it has started; so does an exception in `on_progress`. Raises UsageError where the command
    cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = environment(recipe.to_json(folder), os.environ if base is None else base)
    with ExitStack() as cleaning:
        signals = cleaning.enter_context(_forwarded_signals())
        streams = cleaning.enter_context(output_terminal(on_output)) if on_output is not None else {}
        try:
            program = subprocess.Popen(list(command), env=variables, cwd=cwd, **streams)
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {_why_not(command[0], error)}") from error
        signals.child = program
        if on_output is not None or recipe.stop_after_trace:
            cleaning.enter_context(outlived(program.pid, folder))
        try:
            stopped = _follow(program, recipe, folder, on_progress, stop or threading.Event())
        except BaseException:
            processes.end_all(program.pid, folder)
            program.wait()
            raise
        processes.let_go_on(folder)
    ranks = tuple(sorted(claims(folder)))
    if stopped:
        _note_the_stop(folder, ranks)
    return Outcome(program.returncode, stopped, signals.interrupted, ranks)


def _why_not(name: str, error: OSError) -> str:
    """Why a command does not start, and what to do about it."""
    if isinstance(error, FileNotFoundError) and os.sep not in name:
        return "no command of that name is on the PATH; activate the environment that has it, or name it by its path"
    return f"{error.strerror}; check the name and its permissions"


def _follow(
    program: subprocess.Popen[bytes],
    recipe: Recipe,
    folder: Path,
    on_progress: Callable[[Progress], None] | None,
    stop: threading.Event,
) -> bool:
    """Look at the run folder until the program has ended; True if we ended it."""
    tell = on_progress or (lambda _: None)
    tail, counters = Tail(folder, recipe.steps), Counters(folder)
    read_counters_at, silence = time.monotonic() + COUNTERS_EVERY_S, StallNotice(time.monotonic())
    log = LogLength(recipe)
    stopped, slowest, told = False, Slowest(), None
    look_every_s = recipe.heartbeat_s if recipe.mode == "heartbeat" else LOOK_EVERY_S
    ends_at = time.monotonic() + recipe.most_s if recipe.most_s is not None else math.inf
    ended = _end_of(program)
    while True:
        is_over = ended.wait(look_every_s)
        for record in tail.new():
            if isinstance(record, StepsEnded):
                slowest.see(record.rank, record.ends_ns, record.input_ns)
                log.grew(record.rank, record.count, anew=record.anew)
                silence.broken(time.monotonic())
            tell(record)
        if (waited := silence.words(time.monotonic())) is not None:
            tell(PhaseBegan(tail.phase, waited))
        if slowest.rank is not None and slowest.rank != told:
            told = slowest.rank
            with suppress(OSError):  # a full disk must not end the program
                write_atomic(folder / SLOWEST, json.dumps(told).encode())
        if is_over:
            return stopped
        if time.monotonic() >= read_counters_at:
            read_counters_at = time.monotonic() + COUNTERS_EVERY_S
            for rank, values in _read(counters).items():
                tell(CounterValues(rank, values))
        enough = tail.all_traced and log.suffices(time.monotonic())
        if not stopped and (stop.is_set() or enough or time.monotonic() >= ends_at):
            stopped = True
            processes.end_all(program.pid, folder)


def _end_of(program: subprocess.Popen[bytes]) -> threading.Event:
    """Return what is set once the program has ended: to wait for it with a timeout, Popen looks 20 times a second."""
    ended = threading.Event()

    def wait() -> None:
        program.wait()
        ended.set()

    threading.Thread(target=wait, name="program end", daemon=True).start()
    return ended


def _read(counters: Counters) -> dict[int, dict[str, float]]:
    """Return what the counters say; nothing on a full disk, which must not end the program."""
    try:
        return counters.read()
    except OSError:
        return {}


def _note_the_stop(folder: Path, ranks: Sequence[int]) -> None:
    for rank in ranks:
        path = folder / f"rank{rank}" / END
        if not path.exists():
            with suppress(OSError):
                path.write_text(json.dumps({"reason": "stopped"}))


@dataclass
class _Signals:
    child: subprocess.Popen[bytes] | None = None
    interrupted: bool = False

    def received(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.interrupted = True
            if _terminal_interrupts_all():
                return  # the terminal has sent it to the program as well
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)


@contextmanager
def _forwarded_signals() -> Iterator[_Signals]:
    """Forward signals to the program, once each, while it runs; what they lead to is its decision."""
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # Handlers, not SIG_IGN: that is inherited by the program, as it shall be where we were started so.
    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signals.received) for number in heard}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal_interrupts_all() -> bool:
    """Whether we share the foreground of a terminal with the program, which Ctrl-C reaches by itself."""
    with suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) == os.getpgrp()
    return False


class LogLength:
    """Counts the steps of its ranks, and the time since all were traced."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._steps: Counter[int] = Counter()
        self._since_s: float | None = None

    def grew(self, rank: int, steps: int, *, anew: bool = False) -> None:
        """A rank has come so many steps further; `anew`: in a log that has begun again."""
        self._steps[rank] = steps + (0 if anew else self._steps[rank])

    def suffices(self, now_s: float) -> bool:
        """Asked once all ranks are traced: whether the log is long enough too, or has had its time."""
        if self._since_s is None:
            self._since_s = now_s
        recipe = self._recipe
        long = max(self._steps.values(), default=0) >= recipe.log_steps
        return recipe.stop_after_trace and (long or now_s - self._since_s >= recipe.most_log_s)


FIRST_S = 15.0
"""Silence is told after so long, then whenever it has become twice as long."""


class StallNotice:
    """Asked again and again, it answers when a wait has become worth a word. Times are seconds of any one clock."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._tell_after_s = FIRST_S
        self._stepped = False

    def broken(self, now_s: float) -> None:
        """A step has ended."""
        self._stepped = True
        self._since_s, self._tell_after_s = now_s, FIRST_S

    def words(self, now_s: float) -> str | None:
        """`30 s so far`; None where there is nothing new to say."""
        silent_s = now_s - self._since_s
        if silent_s < self._tell_after_s:
            return None
        while self._tell_after_s <= silent_s:
            self._tell_after_s *= 2
        return f"{format_seconds(silent_s)} {'since the last step' if self._stepped else 'so far'}"
