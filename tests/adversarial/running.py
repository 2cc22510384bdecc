"""Runs programs whole, each in a process of its own, and keeps what a user would see of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from diagnose.model import Site

_SERVER = Path(__file__).parent / "injected" / "server.py"
_ROOT = Path(__file__).resolve().parents[2]
TIMED_OUT = 124
"""The exit code of a rank that the server ends (`_SERVER`)."""


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    codes: tuple[int, ...]
    """Exit codes by rank."""
    printed: tuple[str, ...]
    """Standard output by rank."""
    complained: tuple[str, ...]
    """Standard error by rank."""
    files: Mapping[str, bytes]
    """Files in its folder: name → contents. Folders, whose names end in a slash, have none."""
    steps: int
    """Optimizer steps that rank 0 made."""
    noted: tuple[Site, ...]
    """Where it built optimizers, by what their first steps showed of their gradients."""

    @property
    def ended_in_time(self) -> bool:
        """Whether no rank was ended for taking too long: what the others left says nothing then."""
        return TIMED_OUT not in self.codes


class Runner:
    """Starts programs. Use it as a context."""

    def __enter__(self) -> Runner:
        """Load torch, once."""
        settings = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",  # a compiler takes minutes, and the edit is what is tried
            "PYTHONPATH": str(_ROOT),
            "PYTHONHASHSEED": "0",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._server = subprocess.Popen(
            [sys.executable, str(_SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process that has torch."""
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait()

    def run(self, files: Mapping[str, str], *, ranks: int = 1, mode: str = "whole", at: int = 0) -> Outcome:
        """Run a program. `mode`: `whole`, `disturbed` (weights by a rounding error), `exception`, `interrupt`."""
        folder = Path(tempfile.mkdtemp(prefix="safety"))
        try:
            (folder / "work").mkdir()
            for name, text in files.items():
                path = folder / "program" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            job = {"folder": str(folder), "ranks": ranks, "mode": mode, "at": at, "port": _free_port()}
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            answer = json.loads(self._server.stdout.readline())
            work = folder / "work"
            return Outcome(
                tuple(answer["codes"]),
                tuple((folder / f"stdout.{rank}").read_text() for rank in range(ranks)),
                tuple((folder / f"stderr.{rank}").read_text() for rank in range(ranks)),
                dict(_left(work, one) for one in sorted(work.rglob("*"))),
                answer["steps"],
                tuple(Site(*each) for each in answer["noted"]),
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _left(work: Path, one: Path) -> tuple[str, bytes]:
    name = str(one.relative_to(work))
    return (f"{name}/", b"") if one.is_dir() else (name, one.read_bytes())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
