"""Runs programs, each in a process of its own that has loaded nothing but torch.

Reads one job a line from stdin, as JSON, and answers one line for each: exit codes by rank, and of rank 0 the number of
optimizer steps, and where the program builds optimizers, by what their first steps showed. Loading torch once and
forking makes a run take a tenth of a second instead of seconds.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 - loaded before the fork
import torch
import torch._dynamo
import torch.utils.data  # loaded before the fork
from torch.optim.optimizer import register_optimizer_step_pre_hook

_LIMIT_S = 60
_RELATIVE = 2.0**-22
_LOOKED_AT = 10
"""The first steps of an optimizer whose gradients are noted, as many as in a run that is watched."""


class Injected(RuntimeError):
    """What goes wrong in mid-run."""


def main() -> None:
    """Serve jobs until stdin ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        ranks = [_start(job, rank) for rank in range(job["ranks"])]
        codes = [_waited(pid, time.monotonic() + _LIMIT_S) for pid in ranks]
        told = Path(job["folder"], "steps")
        steps = json.loads(told.read_text()) if told.exists() else {"steps": 0, "noted": []}
        sys.stdout.write(json.dumps({"codes": codes, **steps}) + "\n")
        sys.stdout.flush()


def _start(job: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    code = 70
    try:
        code = _run(job, rank)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(job: dict[str, Any], rank: int) -> int:
    folder = Path(job["folder"])
    os.chdir(folder / "work")
    for stream, name in ((1, "stdout"), (2, "stderr")):
        target = os.open(folder / f"{name}.{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(target, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if job["ranks"] > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_WORLD_SIZE=str(job["ranks"]),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]),
        )  # fmt: skip
    sys.argv = ["train.py"]
    program = str(folder / "program" / "train.py")
    sys.path[0] = str(folder / "program")
    done = _watch_steps(job)
    noted = _watch_gradients(folder / "program")
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 130
    except BaseException:  # noqa: BLE001 - a program may raise anything
        traceback.print_exc()
        code = 1
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if rank == 0:
        (folder / "steps").write_text(json.dumps({"steps": done[0], "noted": sorted(noted)}))
    return code


def _watch_steps(job: dict[str, Any]) -> list[int]:
    """Count the optimizer steps, and do in one of them what the job says."""
    done = [0]

    def before_step(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        done[0] += 1
        if job["mode"] == "disturbed" and done[0] == 1:
            own = torch.Generator().manual_seed(20)
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for each in group["params"]:
                        noise = torch.randn(each.shape, generator=own, dtype=torch.float32).to(each.dtype)
                        each.mul_(1 + _RELATIVE * noise)
        if done[0] == job["at"]:
            if job["mode"] == "exception":
                raise Injected("raised in mid-run")
            if job["mode"] == "interrupt":
                raise KeyboardInterrupt

    register_optimizer_step_pre_hook(before_step)
    return done


def _watch_gradients(program: Path) -> set[tuple[str, str, int]]:
    """Note of each optimizer, in its first steps, what a watched run notes: the kind of site, the file, the line."""
    noted: set[tuple[str, str, int]] = set()
    built: dict[int, tuple[str, int]] = {}
    steps: dict[int, int] = {}
    init = torch.optim.Optimizer.__init__

    @functools.wraps(init)
    def watched(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        init(optimizer, *args, **kwargs)
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            not frame.f_code.co_filename.startswith(str(program)) or frame.f_locals.get("self") is optimizer
        ):
            frame = frame.f_back
        built[id(optimizer)] = str(Path(frame.f_code.co_filename).relative_to(program)), frame.f_lineno
        steps[id(optimizer)] = 0

    def before_step(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        steps[id(optimizer)] += 1
        if steps[id(optimizer)] > _LOOKED_AT:
            return
        where = built[id(optimizer)]
        weights = [each for group in optimizer.param_groups for each in group["params"]]
        if all(steps[each] for each, line in built.items() if line == where):
            noted.add(("stepped", *where))
        if any(each.requires_grad and each.grad is None for each in weights):
            noted.add(("idle parameters", *where))
        if not all(each.requires_grad for each in weights):
            noted.add(("frozen parameters", *where))

    torch.optim.Optimizer.__init__ = watched  # type: ignore[assignment]
    register_optimizer_step_pre_hook(before_step)
    return noted


def _waited(pid: int, until: float) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 124
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
