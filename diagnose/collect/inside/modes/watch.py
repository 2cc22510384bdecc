"""Mode "watch": log every step, sample the host, trace a few steady steps, find the waits for the device.

What happens on the training thread is in `step_hooks`, `ranges`, `sites` and `tracing`; this module ties them to the
files of the rank's folder, which the writer's thread fills.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from ...records import END, FACTS, MOST_STEPS, STEPS, WINDOW
from ..guard import contained, failures, guarded
from ..hooks.inductor_cache_workaround import note_it
from ..hooks.out_of_memory import ended_for_want_of_memory, note_lack, unhandled
from ..hooks.sites import Sites
from ..probes.allocations import Allocations
from ..probes.blocks.block_probe import Blocks
from ..probes.compiler_log import CompilerLog
from ..probes.graph_leaks import Keeping
from ..probes.loaded_files import note_loaded_files
from ..probes.memory import MemoryReadings
from ..probes.module_classes import ModuleClasses
from ..probes.ranges import RangeLog
from ..probes.rng_use import RngUse
from ..probes.stack_sampler import Sampler
from ..process.calibrations import calibrated
from ..process.process_facts import job_facts, process_facts, ranks_on_host
from ..process_hooks import ProcessHooks
from ..window.tracing import Tracing
from ..writer import Writer

running: list[Watch] = []
"""The watcher of this process, once it has started: for the benchmark that switches it on and off."""


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Watch this process; what `recipe` may hold is in `Tracing`."""
    watch = Watch(recipe, hub)
    running.append(watch)
    hub.on_torch(watch.torch_arrived)
    hub.on_claim(watch.claimed)
    hub.on_step(watch.step_ended)
    hub.on_restart(watch.restarted)
    hub.on_exit(watch.exiting)


class Watch:
    """The watcher of one process."""

    def __init__(self, recipe: dict[str, Any], hub: ProcessHooks) -> None:
        self._hub = hub
        self._sites = Sites()
        self._ranges = RangeLog(hub)
        self._allocations = Allocations(hub)
        self._tracing = Tracing(recipe, hub, self._sites, self._allocations, self._terminated)
        self._torch: Any = None
        self._writer: Writer | None = None
        self._sampler: Sampler | None = None
        self._step_lines: list[tuple[int, int, int]] = []
        self._steps = 0
        self._logged = 0
        """Steps that have a line of their own."""
        self._window_told = False
        self._memory = MemoryReadings(hub)
        self._blocks = Blocks(self._sites, self._memory.saw_peak)
        self._calibrated: dict[str, Any] | None = None
        self._keeping = guarded(Keeping(self._sites).step_ended)
        self._classes = ModuleClasses(self._sites)

    def torch_arrived(self, torch: ModuleType) -> None:
        """Install the hooks before the program builds anything."""
        self._torch = torch
        self._sites.install(torch)
        self._hub.steps.on_optimizer = contained(self._sites.stepped)
        guarded(RngUse(self._sites).install)(torch)
        self._ranges.install(torch)
        guarded(self._allocations.install)(torch)
        self._sites.compiling = self._blocks.stop
        self._sites.compiled = guarded(self._compile_used)
        guarded(self._blocks.install)(torch)

    def claimed(self) -> None:
        """The first step ended, and this is the process that trains."""
        self._writer = Writer(self._hub.folder)
        self._sampler = Sampler(self._hub.steps.thread)
        self._ranges.thread_claimed()
        guarded(self._classes.note)(self._torch)
        guarded(note_loaded_files)(self._sites)
        self._write_facts()
        compiler = CompilerLog(self._sites.ownership)
        for source in (self._drain_steps, self._ranges.drain, self._sites.drain, compiler.drain, self._sampler.drain):
            self._writer.add(source)
        self._writer.add(self._memory.drain)
        self._writer.add(self._drain_rest)
        if not self._hub.exiting:
            self._writer.start()
            self._sampler.start()

    def restarted(self) -> None:
        """Discard what was counted so far: those were no steps."""
        self._tracing.restart()
        self._blocks.restart()
        self._step_lines, self._steps, self._logged = [], 0, 0
        if self._writer is not None:
            self._writer.truncate(STEPS)

    def step_ended(self, index: int) -> None:
        """Right after step `index`, on the training thread."""
        steps = self._hub.steps
        self._steps = index + 1
        self._step_lines.append((steps.end_ns, steps.step_backwards, steps.step_input_ns))
        self._blocks.step_ended(index)
        self._memory.step_ended(steps.end_ns)
        self._allocations.step_ended(index, self._memory.held_bytes)
        self._keeping(index, self._torch)
        self._tracing.step_ended(index)

    def set_enabled(self, enabled: bool) -> None:
        """Pause or resume everything that costs time while watching; for measuring that cost."""
        self._hub.steps.passive = not enabled
        self._ranges.set_enabled(enabled)
        if self._sampler is not None:
            self._sampler.enabled = enabled

    def exiting(self) -> None:
        """Close and write everything. Called at the interpreter's exit."""
        self._blocks.finish()
        guarded(self._memory.read)()
        guarded(note_lack)(self._sites)
        guarded(note_it)(self._sites)
        if guarded(ended_for_want_of_memory)():
            guarded(self._allocations.save_lack)()
        self._end("exception" if getattr(sys, "last_value", None) is not None else "exit")

    def _terminated(self) -> None:
        self._end("stopped")

    def _end(self, reason: str) -> None:
        if self._sampler is not None:
            guarded(self._sampler.stop)()
        guarded(self._ranges.set_enabled)(False)
        guarded(self._tracing.close)()
        if self._hub.steps.found_by == "none":
            # Too few backward passes to wait any longer for an optimizer: they were the steps.
            self._step_lines = [(end, 1, waited) for end, waited in self._hub.steps.early]
            self._steps = len(self._step_lines)
        if self._writer is not None:
            error = self._error() if reason == "exception" else None
            ended = {"reason": reason, "steps": self._steps}
            guarded(self._writer.write_json)(END, ended | ({"error": error} if error else {}))
            guarded(self._writer.close)()
        self._write_facts()

    def _error(self) -> str | None:
        """The exception that ends the program, and the line of the user's that it came from."""
        return guarded(unhandled)(self._sites)

    def _compile_used(self) -> None:
        self._ranges.watch_compilation(lambda end_ns: self._tracing.steady.compiled(end_ns))
        self._hub.steps.hook_again()

    def _drain_steps(self) -> Iterator[tuple[str, str]]:
        new, self._step_lines = self._step_lines, []
        alone, more = new[: MOST_STEPS - self._logged], new[MOST_STEPS - self._logged :]
        self._logged += len(alone)
        lines = [f'{{"t":{end},"b":{backwards},"w":{waited}}}\n' for end, backwards, waited in alone]
        if more:
            self._ranges.thin()
            end, backwards, waited = more[-1]
            lines.append(f'{{"t":{end},"b":{backwards},"w":{waited},"n":{len(more) - 1}}}\n')
        yield STEPS, "".join(lines)

    def _drain_rest(self) -> Iterable[tuple[str, str]]:
        record = self._tracing.finished
        if record is not None and not self._window_told and self._writer is not None:
            # The window's record comes last: who sees it finds the trace, the waits and the facts complete.
            self._window_told = True
            if self._sampler is not None:
                self._sampler.rest()
            self._write_facts()
            self._writer.write_json(WINDOW, record)
        return ()

    def _write_facts(self) -> None:
        if self._writer is None or self._torch is None:
            return
        found_by, steady, sampler = self._hub.steps.found_by, self._tracing.steady, self._sampler
        facts = guarded(process_facts)(self._torch) or {}
        if self._calibrated is None:
            self._calibrated = guarded(calibrated)(self._torch, self._hub.distributed, facts) or {}
        facts |= self._calibrated
        facts |= {
            "autocast_dtype": self._sites.autocast_dtype or ("none" if self._steps else None),
            "step_ns_watched": steady.step_ns or guarded(steady.median_ns)(),
            "steady": steady.reason or guarded(steady.so_far)(found_by),
            "peak_memory_bytes": self._memory.peak_bytes,
            "steps_found_by": found_by,
            "rank": self._hub.rank,
            "world_size": self._hub.world_size,
            "local_world_size": guarded(ranks_on_host)(self._hub.world_size),
            "pid": self._hub.pid,
            "job": guarded(job_facts)(),
            "owned_roots": self._sites.ownership.roots,
            "sample_period_s": sampler.period_s if sampler is not None else None,
            "sample_cost_ns": sampler.cost_ns if sampler is not None else None,
            "watcher_failures": list(failures),
        }
        self._writer.write_json(FACTS, facts)
