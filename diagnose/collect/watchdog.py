"""Ends a watched program that is left behind and that nobody sees or waits for.

Under a screen it has a session of its own, which no hang-up reaches; and what runs for its trace alone has no end.

    with outlived(program.pid, folder): …       # however we end, the program does not go on unseen

A process of its own waits at a pipe that only we hold. If that ends without a word, we are gone: killed, hung up on
with our terminal, or left at once by the user; then the program and all that it has started are ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diagnose.collect import processes

_ROOT = Path(__file__).resolve().parent.parent.parent
_START = "import sys; sys.path.insert(0, sys.argv[1]); from diagnose.collect.watchdog import main; main()"
_DONE = b"done\n"


@contextmanager
def outlived(pid: int, folder: Path) -> Iterator[None]:
    """End process `pid` and the run of `folder` if this process ends while the context lasts."""
    waiting = subprocess.Popen(
        [sys.executable, "-I", "-c", _START, str(_ROOT), str(pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(OSError):
            waiting.communicate(_DONE)


def main() -> None:
    """Wait at standard input; arguments: a folder to import from, the program's process, the run folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != _DONE:
        processes.end_all(int(sys.argv[2]), Path(sys.argv[3]))
