"""Mode "ab_worker": this training process takes turns with another one, a block of steps at a time.

It speaks with the controller of a trial (`diagnose.trial.process.arm`) over a Unix socket, a JSON object a line:

    →  {"hello":  {"rank", "world_size", "pid", "group", "sources"}} at the first step; a hash of the edited files
    →  {"ready":  {"steps", "step_ns", "at_ns", "memory": {…}, "stock", "left"}}  after the warm-up, on all processes'
                                                                                 clock; `left`: by a probe, as it is
    ←  {"run":    {"steps", "drop"}}     drop unmeasured steps, then measured ones
    →  {"block":  {"total_ns", "steps_ns": […], "input_ns", "memory": {…}, "stock"}}
    ←  {"trace":  {"steps", "path"}}     the same steps under the profiler
    →  {"traced": {"path"}}
    ←  {"end": {}}                       exit quietly
    →  {"ended":  {"steps"}}             the program came to its own end
    →  {"refused": {"reason"}}           a probe would mislead in this program
    →  {"broken": {"message"}}           this module failed, not the program

Between blocks the process waits inside the call that ended the step, with the device idle. A block is timed from one
device synchronise to another; nothing is inserted between its steps. A controller that is gone ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ..change import Change, begin
from ..hooks.loader_stock import stock_of
from ..hooks.paused_loader_workers import PausedLoaderWorkers
from ..probes.compilation import Compiling
from ..process.rendezvous import meet_apart
from ..process.source_digest import digest_of
from ..process.write_protection import protect
from ..window.profiler_window import Window

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

WARM_UP_STEPS = 5
"""Unless the recipe says otherwise: allocator pools, kernel choices and DDP's buckets have settled by then."""
LONG_STEP_NS = 1_000_000_000
LONG_WARM_UP_STEPS = 3
"""Enough of steps that take `LONG_STEP_NS`, as the schedule counts on."""
QUIET_STEPS = 3
"""The steps in a row without compiling until which the warm-up lasts, but no longer than MOST_WARM_UP_STEPS."""
MOST_WARM_UP_STEPS = 60


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Take part in a trial; `recipe` names the controller's `socket`, the `warmup` steps, and a `probe` if any."""
    protect(recipe, hub)
    meet_apart(recipe, hub)
    change = begin(recipe, hub)
    turns = _Turns(str(recipe["socket"]), int(recipe.get("warmup", WARM_UP_STEPS)), hub, change)
    hub.on_torch(turns.torch_imported)
    hub.on_step(turns.step_ended)
    hub.on_exit(turns.program_ended)


class _Turns:
    def __init__(self, address: str, warmup: int, hub: ProcessHooks, change: Change | None = None) -> None:
        self._address = address
        self._hub = hub
        self._change = change
        self._torch: ModuleType | None = None
        self._socket: socket.socket | None = None
        self._received = b""
        self._steps = 0
        self._warming = max(1, warmup)
        self._compiling = Compiling(hub)
        self._compiled = 0
        self._quiet_from = 0
        """The step with which enough have passed since something was compiled."""
        self._dropping = 0
        self._wanted = 0
        self._marks: list[int] = []
        self._input_ns = 0
        self._workers = PausedLoaderWorkers(hub.steps)
        self._window: Window | None = None
        self._window_path = ""

    def torch_imported(self, torch: ModuleType) -> None:
        self._torch = torch

    def step_ended(self, _index: int) -> None:
        """Right after a step: go on within a block, or report it and wait for the next turn."""
        now = time.perf_counter_ns()
        try:
            self._after_step(now)
        except Exception as error:  # noqa: BLE001 - the hub would swallow it, and the controller wait for nothing
            self._send({"broken": {"message": f"{type(error).__name__}: {error}"}})
            _leave()

    def _after_step(self, now: int) -> None:
        self._steps += 1
        if self._change is not None:
            self._change.step_ended()
        if self._socket is None:
            self._connect()
        if self._warming:
            self._warm_up(now)
        elif self._dropping:
            self._dropping -= 1
            if not self._dropping:
                self._begin()
        else:
            self._marks.append(now)
            if len(self._marks) > self._wanted:
                self._report()
                self._wait()
            elif self._window is not None:
                self._window.mark_step(len(self._marks) - 1)

    def program_ended(self) -> None:
        if self._window is not None:
            self._close_window()
        if self._socket is not None:
            self._send({"ended": {"steps": self._steps}})

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._address)
        except OSError:
            _leave()
        self._socket = connection
        rank, world_size = self._hub.rank, self._hub.world_size
        self._send(
            {
                "hello": {
                    "rank": rank,
                    "world_size": world_size,
                    "pid": os.getpid(),
                    "group": os.getpgid(0),
                    "sources": digest_of(self._hub.recipe.get("sources", ())),
                }
            },
        )

    def _warm_up(self, now: int) -> None:
        self._marks.append(now)
        self._warming -= 1
        times = self._compiling.times
        if times != self._compiled and self._steps < MOST_WARM_UP_STEPS:
            self._warming = max(self._warming, QUIET_STEPS)
            self._quiet_from = self._steps + QUIET_STEPS
        self._compiled = times
        long = self._steps > 1 and now - self._marks[-2] >= LONG_STEP_NS
        if long and self._steps >= max(LONG_WARM_UP_STEPS, self._quiet_from):
            self._warming = 0
        if self._change is not None and self._steps < self._change.least_steps:
            self._warming = max(1, self._warming)
        if self._warming:
            return
        stock = stock_of(self._hub.steps)
        self._hub.synchronize()
        steps = _differences([*self._marks[:-1], time.perf_counter_ns()])
        # The later half: the first steps pay for lazy initialisation.
        steady = sorted(steps[len(steps) // 2 :])
        step_ns = steady[(len(steady) - 1) // 2] if steady else -1
        ready = {"steps": self._steps, "step_ns": step_ns, "at_ns": time.monotonic_ns(), "memory": self._memory()}
        self._leave_if_misleading()
        self._send({"ready": {**ready, "stock": stock, "left": self._change.left if self._change else []}})
        self._wait()

    def _begin(self) -> None:
        """The first instant of what is measured: the device is idle, and no step has begun."""
        if self._window is not None and self._torch is not None:
            with self._workers.still():
                self._window.open(self._torch)
        self._hub.synchronize()
        self._input_ns = self._hub.input_ns()
        self._marks = [time.perf_counter_ns()]
        if self._window is not None:
            self._window.mark_step(0)

    def _report(self) -> None:
        stock = stock_of(self._hub.steps)
        self._hub.synchronize()
        self._marks[-1] = time.perf_counter_ns()
        if self._window is not None:
            self._close_window()
            self._send({"traced": {"path": self._window_path}})
            return
        self._leave_if_misleading()
        block = {
            "total_ns": self._marks[-1] - self._marks[0],
            "steps_ns": _differences(self._marks),
            "input_ns": self._hub.input_ns() - self._input_ns,
            "memory": self._memory(),
            "stock": stock,
        }
        self._send({"block": block})

    def _leave_if_misleading(self) -> None:
        """End here where a probe has found that its answer would mislead."""
        if self._change is not None and (reason := self._change.reason) is not None:
            self._send({"refused": {"reason": reason}})
            _leave()

    def _close_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            with self._workers.still():
                window.close(Path(self._window_path))

    def _wait(self) -> None:
        """Wait for the controller's next word and prepare for it."""
        name, arguments = self._receive()
        if name not in ("run", "trace"):
            _leave()
        self._wanted = int(arguments["steps"])
        self._dropping = int(arguments.get("drop", 0))
        if name == "trace":
            self._window = Window()
            self._window_path = str(arguments["path"])
        if not self._dropping:
            self._begin()

    def _memory(self) -> dict[str, int]:
        """Peaks of this process so far, and what the device has; host memory where there is no device in use."""
        torch = self._torch
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            return {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.memory_reserved(),
                "free_bytes": free,
                "device_bytes": total,
            }
        return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            _leave()

    def _receive(self) -> tuple[str, dict[str, Any]]:
        """The controller's next word with its arguments; does not return if the controller is gone."""
        connection = self._socket
        while connection is not None and b"\n" not in self._received:
            try:
                part = connection.recv(1 << 16)
            except OSError:
                part = b""
            if not part:
                _leave()
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, dict[str, Any]] = json.loads(line or b'{"end": {}}')
        return next(iter(message.items()))


def _differences(marks: list[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(marks)]


def _leave() -> NoReturn:
    """End the process at once: what the program still wants to do at its exit is of no use to anyone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)
