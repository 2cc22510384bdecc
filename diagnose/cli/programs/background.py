"""Work under a screen, in a process of its own, so that the screen can be left and the work goes on.

    the screen's process   ◀── events, then how it ended ──   the work's process ── the program
                           ──▶ words: stop, skip, detach ──▶

The work's process holds everything that the program needs: its pseudo-terminal, the watchdog, the journal. It is in a
session of its own, which no hang-up reaches. Where the screen's process ends without a word, killed or hung up on, the
work is stopped, and the program with it, as if they were one process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from diagnose.collect.terminal import input_terminal
from diagnose.session import AnyEvent
from diagnose.trial.skip_request import SkipRequest

LOOK_EVERY_S = 0.1
_STOP, _SKIP, _DETACH = "stop", "skip", "detach"

Tell = Callable[[AnyEvent], None]


@dataclass(frozen=True)
class _Ended:
    """The last message of the work's process: the exit code, or what was raised instead."""

    code: int
    error: BaseException | None = None


class Background:
    """Work in a process of its own, from the side of the screen's process."""

    def __init__(self, pid: int, heard: Connection, said: Connection) -> None:
        self.pid = pid
        self._heard = heard
        self._said = said

    def follow(self, tell: Tell, stop: threading.Event, skip: SkipRequest) -> int:
        """Tell the events of the work until it ends, and pass on requests to stop it or to skip a trial.

        Returns its exit code and raises what it raised. Raises RuntimeError where its process was killed.
        """
        told_to_stop = False
        while True:
            if stop.is_set() and not told_to_stop:
                told_to_stop = True
                self._say(_STOP)
            if skip.asked:
                skip.begin()  # what was asked is passed on
                self._say(_SKIP)
            try:
                if not self._heard.poll(LOOK_EVERY_S):
                    continue
                message = self._heard.recv()
            except (EOFError, OSError):
                raise RuntimeError("the process that watches the program was killed, and the program ended") from None
            if isinstance(message, _Ended):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self.pid, 0)
                if message.error is not None:
                    raise message.error
                return message.code
            tell(message)

    def detach(self) -> None:
        """Let the work go on when this process ends."""
        self._say(_DETACH)

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._said.send(word)


def start(
    work: Callable[[Tell], int], stop: threading.Event, skip: SkipRequest, left_alone: Callable[[], None]
) -> Background:
    """Carry out `work(tell)` in a process of its own, where `stop` and `skip` are set as the screen asks.

    `left_alone` is called there once work that went on without the screen has ended. To be called before this process
    has threads.
    """
    heard, events = Pipe(duplex=False)
    words, said = Pipe(duplex=False)
    with warnings.catch_warnings():
        # Python counts the threads of libraries as well, which take care of themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        events.close()
        words.close()
        return Background(pid, heard, said)
    code = 1
    try:
        heard.close()
        said.close()
        with input_terminal() as stdin:
            _leave_terminal(stdin, stop)
            code = _Served(events, words, stop, skip).carry_out(work, left_alone)
    finally:
        os._exit(code)  # whatever the screen's process had planned for its end is not ours


def _leave_terminal(stdin: int, stop: threading.Event) -> None:
    """Have no terminal but `stdin`, where nobody types; a request to end stops the work."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate((nowhere if stdin == subprocess.DEVNULL else stdin, nowhere, nowhere)):
        os.dup2(stream, number)
    os.close(nowhere)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class _Served:
    """The work, from the side of its own process."""

    def __init__(self, events: Connection, words: Connection, stop: threading.Event, skip: SkipRequest) -> None:
        self._events = events
        self._words = words
        self._stop = stop
        self._skip = skip
        self._sending = threading.Lock()
        self._detached = False

    def carry_out(self, work: Callable[[Tell], int], left_alone: Callable[[], None]) -> int:
        """Work in a thread, so that this one hears signals; returns the exit code."""
        ended = [_Ended(1)]

        def run() -> None:
            try:
                ended[0] = _Ended(work(self._send))
            except BaseException as error:  # noqa: BLE001 - carried to the screen's process and raised there
                ended[0] = _Ended(1, _portable(error))

        working = threading.Thread(target=run, name="diagnose-work")
        working.start()
        while working.is_alive():
            if not self._heed(LOOK_EVERY_S):
                working.join()
        self._heed(0)  # what was said last
        if self._detached:
            left_alone()
        self._send(ended[0])
        return ended[0].code

    def _heed(self, seconds: float) -> bool:
        """Do as the screen says, and stop where it is gone without a word; False once nothing more can be said."""
        try:
            while self._words.poll(seconds):
                word = self._words.recv()
                if word == _DETACH:
                    self._detached = True
                elif word == _SKIP:
                    self._skip.ask()
                else:
                    self._stop.set()
        except (EOFError, OSError):
            if not self._detached:
                self._stop.set()
            return False
        return True

    def _send(self, message: AnyEvent | _Ended) -> None:
        with self._sending, contextlib.suppress(OSError):  # the screen is gone
            self._events.send(message)


def _portable(error: BaseException) -> BaseException:
    """An error as another process can raise it, with where it came from."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error may hold anything, and refuse the way in any manner
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
