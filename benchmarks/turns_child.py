"""Runs one training script in turns: blocks of its steps, timed on demand, and nothing of ours inside but a step clock.

It imports torch, then speaks with the process that started it (`turns.py`) over its standard streams, JSON lines:

    ←  {"script": PATH, "arguments": […], "warm_up": STEPS}      begin
    →  {"step_ns": N}                                            warmed up; a step, while others may have run too
    ←  {"steps": N, "drop": N}                                   go on, unmeasured steps first
    →  {"block_ns": N}                                           from one device synchronise to another

Between blocks the script waits inside the call that ended its step, with the device idle.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from accuracy_child import follow

from diagnose.collect.inside.hooks.inductor_cache_workaround import refuse

_PR_SET_PDEATHSIG = 1
_STEADY = 5
"""Steps at the end of the warm-up that say how long one takes."""


def main() -> None:
    """Get ready, wait for the script's name, run it."""
    # A process that rests is stopped: nothing but this would end it with the one that started it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch

    commands = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the script prints goes to the log
    first = json.loads(commands.readline())
    refuse(torch)  # all versions share a cache of what is compiled
    turns = Turns(torch, commands, answers, int(first["warm_up"]))
    follow(torch, turns.ended)
    script = Path(first["script"])
    sys.argv = [str(script), *first["arguments"]]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
    raise SystemExit("the script ended before all was measured")


class Turns:
    """Counts steps, reports a block when it is done, and waits for the next one."""

    def __init__(self, torch: Any, commands: Any, answers: Any, warm_up: int) -> None:
        self._torch = torch
        self._commands = commands
        self._answers = answers
        self._count = 0
        self._begin_at = warm_up - _STEADY
        self._end_at = warm_up
        self._began_ns = 0
        self._warm = False

    def ended(self) -> None:
        """A step of the script ended; called on its training thread."""
        self._count += 1
        if self._count == self._begin_at:
            self._began_ns = self._now_ns()
        elif self._count == self._end_at:
            self._report(self._now_ns() - self._began_ns)

    def _report(self, took_ns: int) -> None:
        answer = {"block_ns": took_ns} if self._warm else {"step_ns": took_ns // _STEADY}
        self._warm = True
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
        line = self._commands.readline()
        if not line:
            os._exit(0)  # nobody is left to answer to
        command = json.loads(line)
        self._begin_at = self._count + command["drop"]
        self._end_at = self._begin_at + command["steps"]
        if not command["drop"]:
            self._began_ns = self._now_ns()

    def _now_ns(self) -> int:
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        return time.perf_counter_ns()


if __name__ == "__main__":
    main()
