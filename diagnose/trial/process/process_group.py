"""Process groups: started, paused, resumed and ended as a whole, and never outliving the controller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from diagnose.collect.terminal import input_terminal
from diagnose.errors import Cancelled
from diagnose.trial.process import watchdog
from diagnose.trial.process.stderr_tail import code_of_rank, of_the_program, where_it_crashed
from diagnose.units import NS_PER_S

_GRACE_S = 1.0  # between SIGTERM and SIGKILL: nothing that a trial's process still does is of use
_POLL_S = 0.01
_LEAST_OF_SIGNALS = 128
"""A shell gives the number of a signal plus this for the exit code of what it ended."""
_GIVES_WAY = 10
"""More of niceness for what others go before: a tenth of their weight, so that it goes on. Chosen, not measured."""
_TAIL_BYTES = 1 << 16
"""Bytes that are kept of an error stream's end: a crash dumps the stacks of all threads, and the head of that says
what it was."""


def never() -> bool:
    """Return False: nobody cancels."""
    return False


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore another Ctrl-C while things are cleared away, since it would leave them behind."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is None:  # elsewhere no signal arrives; a handler that Python did not set could not be put back
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_all(groups: Iterable[Group]) -> None:
    """End all of these; they have their moment to end by themselves together."""
    groups = list(groups)
    for group in groups:
        group.ask_to_end()
    for group in groups:
        group.end()


class Groups:
    """All process groups of one controller. Use it as a context manager: leaving it ends every group."""

    def __init__(self, cancelled: Callable[[], bool] = never) -> None:
        """`cancelled` is asked while a program is waited for, so that a silent one keeps nobody from leaving."""
        self.cancelled = cancelled
        self._running: list[Group] = []
        self._terminal = contextlib.ExitStack()
        self._input = self._terminal.enter_context(input_terminal())
        self.room = Path(tempfile.mkdtemp(prefix="diagnose-"))
        """A folder for sockets, whose names must be short; the warden removes it, whatever becomes of this process."""
        # -I: neither the user's environment nor a sitecustomize of ours reaches the warden.
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), str(self.room)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def place(self) -> tempfile.TemporaryDirectory[str]:
        """A folder of its own for the sockets of one program; what is left in it goes with it."""
        return tempfile.TemporaryDirectory(dir=self.room, prefix="", ignore_cleanup_errors=True)

    def start(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], output: Path) -> Group:
        """Start `command` as a new group; its streams go to `output`.out and `output`.err."""
        output.parent.mkdir(parents=True, exist_ok=True)
        stdout, stderr = output.with_name(output.name + ".out"), output.with_name(output.name + ".err")
        with stdout.open("wb") as out, stderr.open("wb") as err:
            leader = subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(environment),
                stdin=self._input,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        group = Group(leader, stderr, self)
        self._running.append(group)
        group.add(leader.pid)
        return group

    def go_on(self) -> None:
        """Raise Cancelled if the user has left: whoever waits for a program asks this now and then."""
        if self.cancelled():
            raise Cancelled

    def close(self) -> None:
        """End every group, then the warden."""
        with undisturbed():
            end_all(self._running)
            if self._warden.stdin is not None:
                with contextlib.suppress(OSError):
                    self._warden.stdin.close()
            self._warden.wait()
            self._terminal.close()

    def tell_warden(self, sign: str, group: int) -> None:
        """`+` or `-`: the group is running, or is no more."""
        if self._warden.stdin is not None:
            with contextlib.suppress(OSError):
                self._warden.stdin.write(f"{sign}{group}\n".encode())
                self._warden.stdin.flush()

    def forget(self, group: Group) -> None:
        """The group has ended."""
        self._running = [other for other in self._running if other is not group]


class Group:
    """A program with all its processes. A launcher's ranks may lead groups of their own: they belong to it too."""

    def __init__(self, leader: subprocess.Popen[bytes], stderr: Path, owner: Groups) -> None:
        self._leader = leader
        self._stderr = stderr
        self._owner = owner
        self._ids: list[int] = []
        self._awake: set[int] = set()
        self._held = contextlib.ExitStack()
        self._ended = False
        self._asked_ns: int | None = None
        """The time at which it was asked to end."""

    @property
    def pid(self) -> int:
        """The id of the process that was started."""
        return self._leader.pid

    def add(self, group_id: int) -> None:
        """A process group that belongs to this program."""
        if group_id not in self._ids and group_id != os.getpgid(0):
            self._ids.append(group_id)
            self._owner.tell_warden("+", group_id)

    def adopt_descendants(self) -> None:
        """Add the groups of all descendants (`torchrun` starts each rank in a session of its own)."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._leader.pid).children(recursive=True):
                with contextlib.suppress(OSError):
                    self.add(os.getpgid(child.pid))

    def keep_until_its_end(self, held: contextlib.ExitStack) -> None:
        """Close this once no process of the program is left."""
        self._held.enter_context(held)

    def keep_awake_but(self, ranks: Collection[int]) -> None:
        """Let a launcher that leads no rank's group go on while they rest: others hear its heartbeat."""
        self._awake = {self._leader.pid} - set(ranks)

    def give_way(self) -> None:
        """Let the program's processes have cores where others leave them. Called before it starts any."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._leader.pid, os.getpriority(os.PRIO_PROCESS, 0) + _GIVES_WAY)

    def host_bytes(self) -> int | None:
        """Resident memory of all its processes together; None once it is gone."""
        try:
            leader = psutil.Process(self._leader.pid)
            family = [leader, *leader.children(recursive=True)]
            return sum(process.memory_info().rss for process in family)
        except psutil.Error:
            return None

    def pause(self) -> None:
        """Stop every process where it stands, but a launcher that only looks after them."""
        self._signal(signal.SIGSTOP, self._awake)

    def resume(self) -> None:
        """Let every process go on."""
        self._signal(signal.SIGCONT)

    def rest(self) -> None:
        """A moment without looking; raises Cancelled."""
        self.go_on()
        time.sleep(_POLL_S)

    def go_on(self) -> None:
        """Raise Cancelled if the user has left."""
        self._owner.go_on()

    def wait(self, limit_ns: int) -> int | None:
        """The leader's exit code (negative: a signal), or None if it still runs after `limit_ns`.

        Of a launcher that tells it, that of the rank that failed. Raises Cancelled.
        """
        end = time.monotonic_ns() + limit_ns
        while not self.exited:
            if time.monotonic_ns() >= end:
                return None
            self.rest()
        code = self.returncode
        return code if code == 0 else code_of_rank(self._error_text()) or code

    @property
    def exited(self) -> bool:
        """Whether the leader is no more. It is not reaped before the group's end, so that its id stays ours."""
        if self._leader.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._leader.pid, flags) is not None

    @property
    def returncode(self) -> int | None:
        """The leader's exit code as `subprocess` gives it; None while it runs."""
        if self._leader.returncode is not None:
            return self._leader.returncode
        status = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def last_words(self, lines: int = 12) -> str:
        """The end of what the program wrote to its error stream; of one that a signal ended, where it was."""
        text = self._error_text()
        code = code_of_rank(text) or self.returncode
        by_signal = code is None or not 0 <= code <= _LEAST_OF_SIGNALS  # else a child crashed, and it went on
        said = (where_it_crashed(text, lines) if by_signal else None) or of_the_program(text)
        return "\n".join(said.rstrip().splitlines()[-lines:])

    def _error_text(self) -> str:
        try:
            with self._stderr.open("rb") as file:
                file.seek(max(0, self._stderr.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def ask_to_end(self) -> None:
        """Continue and terminate it, and wait for nothing."""
        if self._asked_ns is None:
            self._asked_ns = time.monotonic_ns()
            self.adopt_descendants()
            if not self.exited and not self._owner.cancelled():
                self._signal(signal.SIGCONT)
                self._signal(signal.SIGTERM)

    def end(self) -> int | None:
        """End the whole group: continue, terminate, then kill. Returns the leader's exit code.

        Once the user has left, nothing has a second to end by itself.
        """
        if not self._ended:
            self._ended = True
            self.ask_to_end()
            if not self._owner.cancelled() and self._asked_ns is not None:
                with contextlib.suppress(Cancelled):
                    self.wait(self._asked_ns + int(_GRACE_S * NS_PER_S) - time.monotonic_ns())
            self._signal(signal.SIGKILL)
            self._leader.wait()
            for group_id in self._ids:
                self._owner.tell_warden("-", group_id)
            self._held.close()
            self._owner.forget(self)
        return self._leader.returncode

    def _signal(self, number: signal.Signals, spared: Collection[int] = ()) -> None:
        for group_id in self._ids:
            if group_id in spared:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group_id, number)
