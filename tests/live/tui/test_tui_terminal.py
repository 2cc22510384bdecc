"""A terminal that goes away: a window that is closed, a connection that drops."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread
from textual.drivers.linux_driver import LinuxDriver
from watching import LIMIT_S

from diagnose.session import State
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.terminal import TerminalDriver, Unheard

SAMPLE = Path(__file__).resolve().parents[3] / "sample_traces" / "h200_naive_gpt"
CHILD = """
import os, sys
from diagnose.cli.streams import talk
from diagnose.tui.terminal import forgotten_when_lost

with forgotten_when_lost():
    print("ready", flush=True)
    sys.stdin.readline()
    talk("nobody is there, and that is no error")
os.write(2, b"nor is this")
print("ended", flush=True)
"""


@pytest.fixture
def lost() -> Iterator[IO[str]]:
    """A terminal whose other end is closed."""
    master, slave = os.openpty()
    file = os.fdopen(slave, "w")
    os.close(master)
    yield file
    with contextlib.suppress(OSError):  # what it still holds goes nowhere
        file.close()


def test_what_is_written_to_a_lost_terminal_fails(lost: IO[str]) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        print("somebody?", file=lost, flush=True)


def test_the_screen_s_writer_outlives_its_terminal(lost: IO[str]) -> None:
    writer = WriterThread(cast("IO[str]", Unheard(lost)))
    writer.start()

    def draw() -> None:
        for _ in range(3 * MAX_QUEUED_WRITES):
            writer.write("a line")
        writer.stop()

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    drawing.join(LIMIT_S)
    assert not drawing.is_alive()


def test_all_else_is_asked_of_the_terminal(lost: IO[str]) -> None:
    assert Unheard(lost).fileno() == lost.fileno()


def test_the_screen_draws_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    assert issubclass(TerminalDriver, LinuxDriver)
    assert DiagnoseApp(Feed(State())).driver_class is TerminalDriver


def test_nothing_that_is_said_afterwards_fails() -> None:
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=slave, text=True
    ) as child:
        try:
            os.close(slave)
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            os.close(master)
            told, _ = child.communicate("lost\n", timeout=LIMIT_S)
        finally:
            child.kill()
    assert told == "ended\n"
    assert child.returncode == 0


def test_the_screen_opens_in_a_browser_that_textual_serve_shows_it_to() -> None:
    """It starts the command without a terminal, names Textual's driver for the web, and speaks to it over pipes."""
    command = [sys.executable, "-m", "diagnose", "view", str(SAMPLE)]
    web = {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "COLUMNS": "100", "ROWS": "30"}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | web)
    assert child.stdin is not None and child.stdout is not None
    drawn = b""
    while b"Fix first" not in drawn and (more := os.read(child.stdout.fileno(), 1 << 16)):
        drawn += more
    leave = b'{"type": "quit"}'
    child.communicate(b"M" + len(leave).to_bytes(4, "big") + leave, timeout=LIMIT_S)
    assert drawn.startswith(b"__GANGLION__")
    assert b"fp32-matmul" in drawn
    assert child.returncode == 0
