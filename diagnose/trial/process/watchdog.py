"""Outlives a controller that was killed, ends the process groups it left behind and takes their folder away.

Runs as its own process with the standard library alone. Its standard input is a pipe that only the controller holds:
lines `+GROUP` and `-GROUP` say what is running; the end of the pipe means that the controller is gone. SIGKILL also
ends processes that are stopped, which no signal handler and no socket of theirs could notice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Follow the list of groups; at the end of the pipe, kill those still on it. The argument is the folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        (groups.add if line[:1] == b"+" else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
