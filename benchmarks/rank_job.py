"""Runs the ranks of a benchmark under torchrun, and ends all of them where they take too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from diagnose.trial.process.stderr_tail import of_the_program

ROOT = Path(__file__).resolve().parent.parent
END_S = 60
"""torchrun itself waits half of it for ranks that do not end at once."""
LATE = "ended by its time limit"


def run_ranks(
    words: Sequence[str], ranks: int, log: Path, limit_s: float, variables: Mapping[str, str] | None = None
) -> str | None:
    """Run a script on this host's ranks to the end: None if that went well, else `LATE` or the program's last words."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *words]
    with log.open("wb") as out:
        code = exit_code(command, limit_s, {**os.environ, **(variables or {})}, stdout=out, stderr=out)
    if code is None:
        return LATE
    return f"failed: {of_the_program(log.read_text(errors='replace'))[-600:]}" if code else None


def exit_code(
    command: Sequence[str],
    limit_s: float,
    variables: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
) -> int | None:
    """Run a command that starts ranks, with this repository on its path; None where it was ended, with all of them."""
    environment = {**variables, "PYTHONPATH": os.pathsep.join(python_path())}
    job = subprocess.Popen(list(command), cwd=cwd, env=environment, stdout=stdout, stderr=stderr)
    try:
        return job.wait(limit_s)
    except subprocess.TimeoutExpired:
        end(job)
        return None
    except BaseException:
        end(job)
        raise


def python_path() -> list[str]:
    """Return the `PYTHONPATH` under which a process imports `diagnose` from this repository, whatever is installed."""
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


def leave_on_request() -> None:
    """Make a request to end an exception, so that ranks are ended first."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def end(job: subprocess.Popen[bytes]) -> None:
    """Have torchrun end its ranks: they have sessions of their own, and would outlive it if it were killed."""
    job.terminate()
    try:
        job.wait(END_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
