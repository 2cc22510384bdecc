"""Processes that read beside this one, and hand back what they read through files that lie in memory only.

    with process("package.module", job, results=2) as child:       # it calls package.module.serve(job, files)
        child.wait()
        child.result(0)                                             # the bytes that it wrote, or None

Decoding holds Python's lock, so threads would not help. How many processes there are is bounded by the cores that
this process may use, and by `DIAGNOSE_PROCESSES`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import diagnose

START_BYTES = 50 << 20
"""The bytes that could be read in the time that a process takes to start."""
MOST_PROCESSES = 16
GZIP_RATIO = 13
"""Traces compress about so many times."""

_LIMIT = "DIAGNOSE_PROCESSES"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_share: ContextVar[int] = ContextVar("share", default=MOST_PROCESSES)

_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from diagnose.trace.readers.io.reader_processes import serve
serve(*sys.argv[2:])
"""


@dataclass(frozen=True)
class Child:
    """A process at work."""

    running: subprocess.Popen[bytes]
    files: list[int]

    def wait(self) -> None:
        """Wait until the process has ended, in whatever way."""
        self.running.wait()

    def ended_within(self, seconds: float) -> bool:
        """Whether the process has ended, or ends within this time."""
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(seconds)
        return self.running.returncode is not None

    def finished(self) -> int:
        """The number of results that the process has begun to hand back; its next task follows at once."""
        return sum(os.fstat(number).st_size > 0 for number in self.files)

    def result(self, number: int) -> mmap | None:
        """Return the file that the process wrote; None where it wrote nothing."""
        with suppress(ValueError):  # an empty file cannot be mapped
            return mmap(self.files[number], 0)
        return None


@contextmanager
def process(module: str, job: Any, results: int) -> Iterator[Child]:
    """Start a process; it is stopped when nobody waits for it any more."""
    with ExitStack() as stack:
        files = [os.memfd_create("diagnose") for _ in range(results)]
        for number in files:
            stack.callback(os.close, number)
        root = str(Path(diagnose.__file__).resolve().parent.parent)
        # Without -P, a file of the user's beside the traces could take the place of a library.
        command = [sys.executable, "-P", "-c", _CHILD, root, module, json.dumps(job), json.dumps(files)]
        quiet = subprocess.DEVNULL
        environment = {**os.environ, _LIMIT: str(cores())}
        running = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=files, env=environment)
        try:
            yield Child(running, files)
        finally:
            running.kill()
            running.wait()


def serve(module: str, job: str, files: str) -> None:
    """Carry out a job with the `serve` of a reader's `module`; `job` and `files`, where its answers go, are JSON."""
    __import__(module)
    sys.modules[module].serve(json.loads(job), json.loads(files))


def hand_back(file: int, pieces: Iterable[bytes | memoryview]) -> None:
    """Write the pieces of a result into an open `file`, which stays open for the process that asked for it."""
    with open(file, "wb", closefd=False) as out:
        out.writelines(pieces)


def cores() -> int:
    """Return the number of processes that may read at once, this one included; 1 without memory files."""
    if not hasattr(os, "memfd_create"):
        return 1
    allowed = [len(os.sched_getaffinity(0)), _share.get()]
    with suppress(OSError, ValueError):
        quota, period = map(int, _QUOTA.read_text().split())
        allowed.append(round(quota / period))
    with suppress(ValueError):
        allowed.append(int(os.environ.get(_LIMIT, "")))
    return max(1, min(allowed))


@contextmanager
def sharing(processes: int) -> Iterator[None]:
    """Within this, each of so many processes has its part of the cores."""
    token = _share.set(max(1, cores() // processes))
    try:
        yield
    finally:
        _share.reset(token)


def estimated_bytes(path: Path) -> int:
    """About how much there is to decode in a file; 0 where it cannot be opened."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(2) != b"\x1f\x8b":
                return size
            file.seek(-4, os.SEEK_END)
            # Where it is one member, gzip ends with its length, as far as 32 bits tell it.
            rest = int.from_bytes(file.read(4), "little")
    except OSError:
        return 0
    return rest + max(0, round((size * GZIP_RATIO - rest) / 2**32)) * 2**32
