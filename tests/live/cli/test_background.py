"""Work under a screen is in a process of its own: it can be left, and ends where the screen ends without a word."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

from watching import LIMIT_S

from diagnose.cli.recordings.target import run_of
from diagnose.session import AnyEvent, JournalTail, RunEnded, fold

ROOT = Path(__file__).resolve().parents[3]

PARENT = """
import os, sys, threading
from diagnose.cli.programs import background
from diagnose.errors import InputError
from diagnose.cli.recordings.target import run_of
from diagnose.session import Warned
from diagnose.trial.skip_request import SkipRequest

stop, skip = threading.Event(), SkipRequest()
wrote, parent = os.fdopen(int(sys.argv[1]), "w", buffering=1), os.getpid()

def work(tell):
    tell(Warned(message="begun"))
    {work}

def leave(event):
    print(event.message, flush=True)
    {leave}

behind = background.start(work, stop, skip, lambda: wrote.write("kept the page\\n"))
wrote.close()
print("ended with", behind.follow(leave, stop, skip), flush=True)
"""


class Screen:
    """A process that follows work in another one, and a pipe on which only that other one writes."""

    def __init__(self, work: str, leave: str = "pass") -> None:
        heard, wrote = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(work=work, leave=leave), str(wrote)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[wrote],
        )
        os.close(wrote)
        self._heard = heard

    def ended(self) -> tuple[str, str]:
        """What it said on its standard streams, once it is gone."""
        return self.process.communicate(timeout=LIMIT_S)

    def written(self) -> list[str]:
        """Lines that the work wrote, once its process is gone: nobody else holds the pipe."""
        with os.fdopen(self._heard) as file:
            return file.read().splitlines()


STOPPED = "stop.wait(); wrote.write('stopped\\n'); return 130"


def test_events_and_exit_code_arrive() -> None:
    screen = Screen("tell(Warned(message='more')); return 3")
    assert screen.ended()[0].splitlines() == ["begun", "more", "ended with 3"]
    assert screen.written() == []


def test_what_the_work_raises_is_raised_where_it_is_followed() -> None:
    screen = Screen("raise InputError('trace.json', 'is empty')")
    assert "diagnose.errors.InputError: trace.json: is empty" in screen.ended()[1]


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    screen = Screen("error = ValueError('odd'); error.lock = threading.Lock(); raise error")
    assert "ValueError: odd" in screen.ended()[1]


def test_the_screen_asks_the_work_to_stop() -> None:
    screen = Screen(STOPPED, leave="stop.set()")
    assert screen.ended()[0].splitlines() == ["begun", "ended with 130"]
    assert screen.written() == ["stopped"]


def test_the_screen_asks_to_skip_a_trial_once() -> None:
    screen = Screen("while not skip.asked: pass\n    return 0", leave="skip.ask()")
    assert screen.ended()[0].splitlines() == ["begun", "ended with 0"]


def test_detached_work_goes_on_without_the_screen_and_leaves_its_page() -> None:
    screen = Screen(
        "while os.getppid() == parent: os.sched_yield()\n"
        "    tell(Warned(message='nobody is told'))\n"
        "    wrote.write('worked on\\n')\n"
        "    return int(stop.is_set())",
        leave="behind.detach(); os._exit(0)",
    )
    assert screen.ended()[0] == "begun\n"
    assert screen.written() == ["worked on", "kept the page"]


def test_work_whose_screen_is_killed_is_stopped() -> None:
    screen = Screen(STOPPED, leave="os.kill(os.getpid(), 9)")
    screen.ended()
    assert screen.written() == ["stopped"]


def test_a_request_to_end_stops_detached_work() -> None:
    screen = Screen(STOPPED, leave="behind.detach(); os.kill(behind.pid, 15); os._exit(0)")
    screen.ended()
    assert screen.written() == ["stopped", "kept the page"]


def test_work_that_was_killed_is_said_to_be() -> None:
    screen = Screen("os.kill(os.getpid(), 9)")
    assert "was killed" in screen.ended()[1]


PROGRAM = """
import sys
print("begun", flush=True)
open(sys.argv[1]).read()
print("went on", flush=True)
"""


class Terminal:
    """The other end of a terminal."""

    def __init__(self, master: int) -> None:
        self._master = master

    def until(self, words: str) -> str:
        """Read until `words` are drawn, and return all that was."""
        drawn = b""
        while words.encode() not in drawn:
            drawn += os.read(self._master, 65536)
        return drawn.decode(errors="replace")

    def close(self) -> None:
        """Read what is left, so that nobody waits for a reader."""
        with contextlib.suppress(OSError):
            while os.read(self._master, 65536):
                pass
        os.close(self._master)


def test_a_program_is_left_on_the_screen_and_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "train.py").write_text(PROGRAM)
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (30, 100))
    with subprocess.Popen(
        [sys.executable, "-m", "diagnose", "run", "train.py", str(gate)],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
    ) as screen:
        os.close(slave)
        terminal = Terminal(master)
        terminal.until("Waiting for the first")
        os.write(master, b"q")
        terminal.until("detach")
        os.write(master, b"d")
        said = terminal.until("End:    kill")
        terminal.close()
        assert screen.wait(LIMIT_S) == 0
    assert "keeps running" in said
    (run,) = (tmp_path / ".diagnose" / "runs").iterdir()
    pid = re.search(r"kill (\d+)", said)
    assert pid is not None
    assert run_of(Path(pid[1])) == run, "the run is found by its process, from any folder"
    tail = JournalTail(run)
    events: list[AnyEvent] = []
    assert tail.goes_on()
    gate.write_text("go on")  # waits for the program to read it
    tail.follow(events.append, threading.Event())
    assert "went on" in fold(events).output
    assert isinstance(events[-1], RunEnded)
    assert events[-1].exit_code == 0
