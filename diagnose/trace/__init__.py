"""One rank's recording, whatever wrote it: tables of events on one clock, and what is known of the process.

`diagnose.trace.readers.open_traces` makes a `Trace` of each rank from files or run folders; `diagnose.trace.drawn`
makes one from a drawing. Measures, rules and reports see only this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from diagnose.model import Facts, Site, SyncSite
from diagnose.trace.schema import (
    Blocks,
    Counters,
    DeviceWaits,
    DeviceWork,
    Frames,
    HostCalls,
    KernelMetrics,
    MemoryEvents,
    Ops,
    Ranges,
    Samples,
    Segments,
    StepLog,
)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the recorded process."""

    pid: int
    tid: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One Python frame of a sampled stack."""

    file: str
    line: int
    function: str
    owned: bool = True
    """Whether the file is the user's own (not the standard library, not an installed package)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective of a kernel, as far as the trace tells; None and -1 are unknown."""

    kind: str
    """`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `send_recv`, or the name given."""
    size_bytes: int = -1
    group_size: int = -1
    group: str | None = None
    dtype: str | None = None
    members: tuple[int, ...] | None = None
    """The ranks of the group, where the recording lists them: groups of different ranks often share a name."""


@dataclass(frozen=True)
class Trace:
    """The recording of one rank."""

    source: str
    """The file or run folder it came from."""
    names: tuple[str, ...] = ()
    """Interned names; the `name` columns index into it."""
    texts: tuple[str, ...] = ()
    """Interned longer texts (shapes, dtypes)."""
    threads: tuple[Thread, ...] = ()
    collectives: tuple[Collective, ...] = ()
    stacks: tuple[tuple[StackFrame, ...], ...] = ()
    rank: int | None = None
    world_size: int | None = None
    device_names: tuple[str, ...] = ()
    """Names of the devices that the process could see; empty when the recording names none."""
    window_ns: tuple[int, int] | None = None
    """Begin and end of what was recorded; None when nothing was."""
    device: DeviceWork = field(default_factory=DeviceWork.build)
    calls: HostCalls = field(default_factory=HostCalls.build)
    ops: Ops = field(default_factory=Ops.build)
    frames: Frames = field(default_factory=Frames.build)
    ranges: Ranges = field(default_factory=Ranges.build)
    device_ranges: Ranges = field(default_factory=Ranges.build)
    waits: DeviceWaits = field(default_factory=DeviceWaits.build)
    samples: Samples = field(default_factory=Samples.build)
    lines: Samples = field(default_factory=Samples.build)
    """One step beside the counted ones: where the training thread came to another line of the user's."""
    counters: Counters = field(default_factory=Counters.build)
    step_log: StepLog = field(default_factory=StepLog.build)
    memory: MemoryEvents = field(default_factory=MemoryEvents.build)
    segments: Segments = field(default_factory=Segments.build)
    blocks: Blocks = field(default_factory=Blocks.build)
    kernel_metrics: KernelMetrics = field(default_factory=KernelMetrics.build)
    sites: tuple[Site, ...] = ()
    sync_sites: tuple[SyncSite, ...] | None = None
    """Lines seen to wait for the device; None when nobody looked."""
    facts: Facts = field(default_factory=Facts)
    warnings: tuple[str, ...] = ()

    def counter(self, name: str) -> Counters:
        """The readings of one counter, of all devices; none where it was not read."""
        named = self.counters.name == self.names.index(name) if name in self.names else slice(0)
        return self.counters.where(named)

    @property
    def has_device(self) -> bool:
        """Whether any device work was recorded."""
        return len(self.device) > 0
