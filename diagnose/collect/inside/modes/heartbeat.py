"""Mode "heartbeat": a line a second for runs of days, and a trace when the run folder asks for one.

Per step it costs a few additions; per second ten samples of the training thread's stack and one line. Nothing in the
process grows with the length of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ...records import HEARTBEATS
from ..guard import guarded
from ..probes.memory import statistics
from ..probes.ranges import RangeLog
from ..probes.stack_watch import StackWatch
from ..process_hooks import ProcessHooks
from ..resident_memory import resident_bytes
from ..source_ownership import Ownership
from ..window.requested_window import RequestedWindow
from ..writer import Writer, encode

QUIET_NS = 5_000_000_000
"""The time without progress after which lines have the stack too."""
_LINES = 20
"""Lines of source in a heartbeat, those with most samples."""
_COLLECTIVES = 8
"""Collectives that wait, in a heartbeat: the newest."""
_RECORDERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Either switches torch's flight recorder on."""

running: list[Heartbeat] = []
"""The heartbeat of this process, once it has started: for the benchmark that switches it on and off."""


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Watch this process."""
    heartbeat = Heartbeat(hub, int(recipe["heartbeat_ns"]))
    running.append(heartbeat)
    hub.on_torch(heartbeat.torch_arrived)
    hub.on_claim(heartbeat.claimed)
    hub.on_step(heartbeat.step_ended)
    hub.on_exit(heartbeat.end)


class Heartbeat:
    """The heartbeat of one process."""

    def __init__(self, hub: ProcessHooks, every_ns: int) -> None:
        self._hub = hub
        self._every_ns = every_ns
        self._ranges = RangeLog(hub)
        self._stacks: StackWatch | None = None
        self._window: RequestedWindow | None = None
        self._writer: Writer | None = None
        self._ended = (0, 0, 0, 0)
        """Steps, the last one's end, sums of input and of forward: one object, which threads exchange whole."""
        self._last_ns = 0
        self._fetched_ns = 0
        """Time in the loader at the heartbeat before."""
        self._moved_ns = time.time_ns()

    def torch_arrived(self, torch: ModuleType) -> None:
        """Install the hooks before the program builds anything."""
        self._ranges.install(torch)

    def claimed(self) -> None:
        """The first step ended, and this is the process that trains."""
        ownership = Ownership()
        self._writer = Writer(self._hub.folder, gaps=True)
        self._stacks = StackWatch(self._hub.steps.thread, ownership)
        self._window = RequestedWindow(self._hub, ownership, self.end)
        self._ranges.thread_claimed()
        self._writer.add(self._beat)
        self._writer.start()
        self._stacks.start()

    def step_ended(self, index: int) -> None:
        """Right after step `index`, on the training thread."""
        steps = self._hub.steps
        self._ended = (index + 1, steps.end_ns, steps.input_ns, steps.forward_ns)
        if self._window is not None:
            self._window.step_ended(index)

    def set_enabled(self, enabled: bool) -> None:
        """Pause or resume everything that costs time; for measuring that cost."""
        self._hub.steps.passive = not enabled
        self._ranges.set_enabled(enabled)
        if self._stacks is not None:
            self._stacks.enabled = enabled

    def end(self) -> None:
        """Close and write everything, at the interpreter's exit or before SIGTERM ends the process."""
        if self._stacks is not None:
            guarded(self._stacks.stop)()
        guarded(self._ranges.set_enabled)(False)
        if self._window is not None:
            guarded(self._window.close)()
        if self._writer is not None:
            self._last_ns = 0
            self._stacks = None
            guarded(self._writer.close)()

    def _beat(self) -> Iterator[tuple[str, str]]:
        now = time.time_ns()
        if now - self._last_ns < self._every_ns:
            return
        self._last_ns = now
        self._notice_compilation()
        if self._window is not None:
            guarded(self._window.look)()
        steps, end_ns, input_ns, forward_ns = self._ended
        beat: dict[str, Any] = {"t": now, "i": steps, "e": end_ns, "w": input_ns, "f": forward_ns}
        beat["n"] = self._hub.world_size
        ranges: Counter[str] = Counter()
        for kind, start, end, *_ in self._ranges.take():
            ranges[kind] += end - start
        beat["r"] = ranges
        beat |= self._where(now)
        beat["m"] = resident_bytes()
        beat |= guarded(self._device_memory)() or {}
        if self._window is not None and self._window.busy:
            beat["x"] = True
        if self._stacks is None:
            beat["end"] = True
        yield HEARTBEATS, encode(beat) + "\n"

    def _where(self, now_ns: int) -> dict[str, Any]:
        """Return where the training thread has been, and for how long nothing has gone on."""
        stacks, steps = self._stacks, self._hub.steps
        if stacks is None:
            return {"l": [], "q": 0}
        counts = Counter(stacks.take()).most_common(_LINES)
        if steps.input_ns != self._fetched_ns:  # an evaluation takes batches too
            self._fetched_ns, self._moved_ns = steps.input_ns, now_ns
        quiet_ns = now_ns - max(self._moved_ns, stacks.moved_ns, steps.end_ns)
        found: dict[str, Any] = {"l": [[file, line, count] for (file, line), count in counts], "q": max(0, quiet_ns)}
        if quiet_ns >= QUIET_NS:
            found["s"] = stacks.stack()
            found["c"] = guarded(waiting_collectives)()
        return found

    def _device_memory(self) -> dict[str, Any]:
        with self._hub.at_its_device():
            figures = statistics(self._hub.torch)
            if not figures:
                return {}
            cuda = self._hub.torch.cuda  # type: ignore[union-attr]  # it has figures
            whole = cuda.get_device_properties(cuda.current_device()).total_memory
        return {"a": figures.get("allocator.allocated_bytes"), "b": int(whole)}

    def _notice_compilation(self) -> None:
        """Count what torch.compile takes, and keep the hooks that it takes off."""
        if "torch._dynamo.callback" in sys.modules:
            self._ranges.watch_compilation(lambda _end_ns: None)
            self._hub.steps.hook_again()


def waiting_collectives() -> list[str] | None:
    """The collectives that torch's flight recorder has seen begin and not end, oldest first: `all_reduce 7 of
    default_pg, Float [[4]]`. None where the recorder is off.
    """
    if not any(os.environ.get(name, "0") != "0" for name in _RECORDERS):
        return None
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    for dump in (getattr(c10d, name, None) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json")):
        with contextlib.suppress(TypeError, RuntimeError, ValueError):
            entries = json.loads(dump(True, True))["entries"] if dump is not None else []
            waiting = [entry for entry in entries if not entry.get("retired") and entry.get("state") != "completed"]
            if waiting:
                return [_described(entry) for entry in waiting[-_COLLECTIVES:]]
    return []


def _described(entry: dict[str, Any]) -> str:
    name = str(entry.get("profiling_name", "collective")).partition(":")[2] or entry.get("profiling_name")
    group = (entry.get("process_group") or ["", "?"])[-1]
    kinds = " ".join(map(str, entry.get("input_dtypes") or ()))
    return f"{name} {entry.get('collective_seq_id')} of {group}, {kinds} {entry.get('input_sizes')}"
