"""A recording of AMD's profilers, from one file or several of one run: its processes and GPUs, turned into traces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from diagnose.errors import InputError, NotATrace
from diagnose.model import Facts
from diagnose.trace import Thread, Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.kineto.meaning import range_kind
from diagnose.trace.readers.rocm.meaning import rccl_kind
from diagnose.trace.readers.rocm.rccl import collectives_of
from diagnose.trace.readers.rocm.rows import Process, Values
from diagnose.trace.schema import MISSING, DeviceWork, RangeKind, Ranges

MOST_PROCESSES = 4096


@dataclass(frozen=True)
class Agent:
    """A processor as the profiler lists it."""

    ordinal: int
    """Among the GPUs where the file says so, else the agent's own number."""
    name: str = ""
    """The product's name; empty where the file names none."""
    memory_bytes: int | None = None


@dataclass
class Recording:
    """The rows read of one file, or of several files of one run."""

    path: Path
    processes: dict[Hashable, Process] = field(default_factory=dict)
    agents: dict[Hashable, Agent] = field(default_factory=dict)
    """GPUs by the key with which the file refers to them."""
    warnings: list[str] = field(default_factory=list)

    def process(self, key: Hashable, pid: int = MISSING) -> Process:
        """The rows of a process, by whatever the file tells processes apart with."""
        if key not in self.processes:
            if len(self.processes) >= MOST_PROCESSES:
                raise InputError(self.path, f"names more than {MOST_PROCESSES} processes, which no recording holds")
            self.processes[key] = Process(key if pid == MISSING and isinstance(key, int) else pid)
        return self.processes[key]

    def ordinals(self, keys: Values) -> list[int]:
        """The ordinals of the GPUs that the file refers to as `keys`."""
        agents, unknown = self.agents, Agent(MISSING)
        return [agents.get(key, unknown).ordinal for key in keys]

    def numbered(self, numbers: Values) -> list[int]:
        """The agents of a file that numbers GPUs, or all agents, and lists none: each number is an ordinal."""
        keys = ids_of(numbers).tolist()
        for number in set(keys):
            if number >= 0:
                self.agents.setdefault(number, Agent(number))
        return self.ordinals(keys)

    def traces(self, nothing: str) -> list[Trace]:
        """One trace for each process that recorded anything, in the order of their ids; `nothing` says why none."""
        return as_ranks(self.of_processes(nothing))

    def of_processes(self, nothing: str) -> list[tuple[int, Trace]]:
        """The traces with their process ids and without ranks."""
        filled = [process for process in self.processes.values() if _window(process) is not None]
        if not filled:
            raise NotATrace(self.path, nothing)
        warnings = tuple(f"{self.path}: {text}" for text in self.warnings)
        return [
            (process.pid, self._trace(process, warnings if number == 0 else ()))
            for number, process in enumerate(filled)
        ]

    def _trace(self, process: Process, warnings: tuple[str, ...]) -> Trace:
        window = _window(process)
        names = tuple(process.names)
        streams = process.device.column("stream")
        if (streams <= 0).all() and len(streams):
            # Streams are known only where HIP was traced; a queue serves one stream at a time.
            streams[:] = np.concatenate(process.queues)
        device, calls = process.device.build(), process.calls.build()
        collectives, of_kernel = collectives_of(process.rccl, device, calls, names)
        if collectives:
            device = DeviceWork(**{**vars(device), "collective": of_kernel})
        ranges = process.ranges.build()
        if len(ranges):
            kinds = np.asarray([_range_kind(name) for name in names], np.uint8)
            ranges = Ranges(**{**vars(ranges), "kind": kinds[ranges.name]})
        used = _used_first(self.agents, device)
        named = [agent.name for agent in used if agent.name]
        lost = tuple(f"{self.path}: {count} events {what}" for what, count in process.lost.items() if count)
        busiest = used[0] if used and len(device) else None
        return Trace(
            source=str(self.path),
            names=names,
            texts=tuple(process.texts),
            threads=tuple(Thread(process.pid, tid) for tid in process.threads),
            collectives=collectives,
            device_names=tuple(named),
            window_ns=window,
            device=device,
            calls=calls,
            ops=process.ops.build(),
            ranges=ranges,
            facts=Facts(device_name=busiest.name or None, device_memory_bytes=busiest.memory_bytes)
            if busiest
            else Facts(),
            warnings=(*warnings, *lost),
        )


def as_ranks(of_processes: Sequence[tuple[int, Trace]]) -> list[Trace]:
    """The traces of several processes as the ranks of a job: none of AMD's formats says which rank a process was."""
    ordered = sorted(of_processes, key=lambda pair: pair[0])
    if len(ordered) == 1:
        return [ordered[0][1]]
    pids = ", ".join(str(pid) for pid, _ in ordered[:16])
    warning = (
        f"{ordered[0][1].source}: no ranks are recorded; the {len(ordered)} processes are taken for ranks in the order "
        f"of their ids ({pids}{', …' if len(ordered) > 16 else ''})"
    )
    traces = [replace(trace, rank=rank) for rank, (_, trace) in enumerate(ordered)]
    return [replace(traces[0], warnings=(warning, *traces[0].warnings)), *traces[1:]]


def _window(process: Process) -> tuple[int, int] | None:
    filled = [rows for rows in (process.device, process.calls, process.ranges, process.ops) if rows.rows]
    if not filled:
        return None
    starts, ends = ([rows.column(name) for rows in filled] for name in ("start_ns", "end_ns"))
    return min(int(column.min()) for column in starts), max(int(column.max()) for column in ends)


def _range_kind(name: str) -> RangeKind:
    return RangeKind.COLLECTIVE if rccl_kind(name) is not None and "nccl" in name else range_kind(name)


def _used_first(agents: Mapping[Hashable, Agent], work: DeviceWork) -> list[Agent]:
    """The GPUs of the file, the one with the most work first."""
    ordinals, counts = np.unique(work.device, return_counts=True)
    rows = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
    return sorted(dict.fromkeys(agents.values()), key=lambda agent: (-rows.get(agent.ordinal, 0), agent.ordinal))
