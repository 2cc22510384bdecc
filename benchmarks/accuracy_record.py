"""Records the programs of the sick bay: `diagnose run`, step times of the unwatched program, profiles as people export.

    OUT/<name>/<arm>/run/            the run folder of `diagnose run`
    OUT/<name>/<arm>/plain/stack/    torch.profiler with shapes and stacks, a file a rank
    OUT/<name>/<arm>/plain/bare/     torch.profiler with neither
    OUT/<name>/<arm>/plain/timing/   the step, timed without any profiler
    OUT/results.json                 what was recorded, in how many seconds; what is there already is not recorded again

Several children share a device one after another: the next ones import torch meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_programs import Program
from rank_job import end, python_path

ROOT = Path(__file__).resolve().parent.parent
CHILD = Path(__file__).resolve().parent / "accuracy_child.py"
RESULTS = "results.json"
ENOUGH_STEPS = 400
"""A program is ended long before: when its trace is written, or all is exported."""
LIMIT_S = {"cuda": 150, "cpu": 900}
"""For one child that has the device to itself; a processor is shared with whatever else runs there."""


@dataclass(frozen=True)
class Task:
    """One child to run."""

    program: Program
    arm: str
    kind: str
    """`run` or `plain`."""

    @property
    def name(self) -> str:
        """For people and for results.json."""
        return f"{self.program.name}/{self.arm}/{self.kind}"


class CaptureRunner:
    """Runs tasks in lanes; a lane belongs to a device, or to as many of them as a program needs."""

    def __init__(self, out: Path, device: str, lanes: int, seconds: float = math.inf) -> None:
        self._out = out
        self._device = device
        self._lanes = lanes
        self._devices = visible_devices() if device == "cuda" else []
        self._begin_before = time.monotonic() + seconds
        self._results = read_results(out)
        self._writing = threading.Lock()

    def record(self, programs: Sequence[Program]) -> bool:
        """Record what is missing; False where anything failed."""
        todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks(programs, self._results):
            todo.put(task)
        devices = parted(self._devices or ["0"], max((program.gpus for program in programs), default=1))
        lanes: list[str | None] = [*devices] * self._lanes if self._device == "cuda" else [None]
        threads = [threading.Thread(target=self._lane, args=(todo, ordinal)) for ordinal in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = [Task(program, arm, kind).name for program in programs for arm in program.arms for kind in KINDS]
        return all(self._results["tasks"].get(name, {}).get("ok") for name in wanted)

    def _lane(self, todo: queue.SimpleQueue[Task], ordinal: str | None) -> None:
        while time.monotonic() < self._begin_before:
            try:
                task = todo.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            problem = self._carry_out(task, ordinal)
            took_s = round(time.monotonic() - started, 1)
            folder = self._out / task.program.name / task.arm / task.kind
            sizes = {path.parent.name: path.stat().st_size for path in sorted(folder.rglob("*.json.gz"))}
            record = {"ok": problem is None, "seconds": took_s, "problem": problem, "bytes": sizes}
            with self._writing:
                self._results["tasks"][task.name] = record
                write_atomically(self._out / RESULTS, self._results)
                print(line(task, record), flush=True)

    def _carry_out(self, task: Task, ordinal: str | None) -> str | None:
        """Carry out one task; returns what went wrong, or None."""
        target = self._out / task.program.name / task.arm / task.kind
        shutil.rmtree(target, ignore_errors=True)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(python_path()))
        environment.update(task.program.environment.get(task.arm, {}))
        lock = []
        if ordinal is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(ordinal.split(",")[: task.program.gpus])
            lock = ["--lock", str((self._out / f".device-{ordinal}").resolve())]
        if self._device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            for path in task.program.folder.glob("*.py"):
                shutil.copy(path, work)
            command = self._command(task, lock, target)
            done = finish(command, work, environment, LIMIT_S[self._device] * (1 if ordinal is None else self._lanes))
            if done is not None:
                (self._out / f"{task.name.replace('/', '-')}.log").write_text(done)
                return done.strip().splitlines()[-1] if done.strip() else "failed in silence"
            if task.kind == "run":
                [run] = (work / ".diagnose" / "runs").glob("*")
                shutil.copytree(run, target)
        return None

    def _command(self, task: Task, lock: list[str], target: Path) -> list[str]:
        program = task.program
        child = [str(CHILD), *lock]
        if task.kind == "plain":
            child += ["--export", str(target.resolve()), "--trace-steps", str(program.trace_steps)]
        steps = program.run_steps if task.kind == "run" and program.run_steps else ENOUGH_STEPS
        child += [f"{task.arm}.py", "--steps", str(steps), *program.arguments]
        child += ["--tiny"] if self._device == "cpu" else []
        launcher = [sys.executable]
        ranks = program.ranks_of(task.arm)
        if ranks > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if task.kind == "plain":
            return [*launcher, *child]
        options = ["--json", "--steps", str(program.trace_steps)]
        options += [] if program.run_steps else ["--stop-after-trace"]
        return [sys.executable, "-m", "diagnose", "run", *options, "--", *launcher, *child]


KINDS = ("run", "plain")


def tasks(programs: Sequence[Program], results: dict[str, Any]) -> Iterator[Task]:
    """Return the tasks that are not recorded yet."""
    for program in programs:
        for arm in program.arms:
            for kind in KINDS:
                task = Task(program, arm, kind)
                if not results["tasks"].get(task.name, {}).get("ok"):
                    yield task


def finish(command: list[str], cwd: Path, environment: dict[str, str], limit_s: float) -> str | None:
    """Run to the end: None if that went well, else what the child wrote. Ends all that it has started."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        late = ""
        try:
            child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = f"\nnot done after {limit_s:.0f} s"
            end(child)  # a launcher's ranks are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if child.returncode == 0:
            return None
        output.seek(0)
        return f"{output.read()}{late or f'{chr(10)}exit code {child.returncode}'}"


def line(task: Task, record: dict[str, Any]) -> str:
    """One line on a task for people."""
    sizes = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in record["bytes"].items())
    return f"{record['seconds']:6.1f} s  {task.name:<44} {record['problem'] or sizes}"


def read_results(out: Path) -> dict[str, Any]:
    """Read the results of an earlier call; empty where there is none."""
    path = out / RESULTS
    if path.exists():
        results: dict[str, Any] = json.loads(path.read_text())
        return results
    out.mkdir(parents=True, exist_ok=True)
    return {"python": platform.python_version(), "recorded": time.strftime("%Y-%m-%d"), "tasks": {}}


def write_atomically(path: Path, results: object) -> None:
    """Whole or not at all: a call that is cut off is taken up again from this file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1))
    new.replace(path)


def parted(devices: Sequence[str], each: int) -> list[str]:
    """Groups of so many devices, without those that are left over; where there are too few, all of them."""
    count = max(len(devices) // each, 1)
    return [",".join(devices[each * place : each * (place + 1)]) for place in range(count)]


def visible_devices() -> list[str]:
    """Ordinals of the devices to use, without touching them from here."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [ordinal for ordinal in named.split(",") if ordinal]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return []
    return [str(number) for number, text in enumerate(listed.stdout.splitlines()) if text.startswith("GPU")]
