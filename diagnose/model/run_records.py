"""The records of a run beside its trace: what the program built and where, and facts about process and machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.model.finding import Scalar


@dataclass(frozen=True, slots=True)
class Site:
    """A place where the program built or called something that rules and fixers care about."""

    kind: str
    """`DataLoader`, `optimizer`, `DistributedDataParallel`, `GradScaler`, `autocast`, `compile`, …"""
    file: str
    line: int
    function: str | None = None
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    """Arguments as they took effect (defaults filled in), and attributes such as the class's `name`."""
    owned: bool = True
    """Whether the line lies in a file of the user's (not in an installed package)."""


@dataclass(frozen=True, slots=True)
class SyncSite:
    """A line at which the host was seen to wait for the device."""

    file: str
    line: int
    function: str | None
    per_step: float
    """Waits per step."""


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Time of one kind of collective over its size, as `diagnose calibrate` measured it."""

    kind: str
    """`all_reduce`, `reduce_scatter`, `all_gather`, `all_to_all`, `send_recv`."""
    ranks: int
    nodes: int
    """Hosts that the ranks are on."""
    size_bytes: tuple[int, ...]
    """Whole messages, rising: all that is gathered, all that is scattered."""
    time_ns: tuple[int, ...]
    """The time on the slowest rank; the median of several measurements."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the process and the machine. None is unknown, never "no"."""

    torch_version: str | None = None
    python_version: str | None = None
    device_name: str | None = None
    device_capability: tuple[int, int] | None = None
    device_memory_bytes: int | None = None
    matmul_precision: str | None = None
    """`torch.get_float32_matmul_precision()`: highest, high or medium."""
    cudnn_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    """Whether cuDNN (or MIOpen) tries its algorithms for each new shape of a convolution and keeps the fastest."""
    cudnn_deterministic: bool | None = None
    autocast_dtype: str | None = None
    """The dtype under which autocast was seen active in a step; `none` when it was seen inactive."""
    cpu_count: int | None = None
    """Cores that this process may use."""
    world_size: int | None = None
    """Ranks of the job."""
    local_world_size: int | None = None
    """The number of ranks on this process's host, where its launcher says so."""
    torch_threads: int | None = None
    deterministic: bool | None = None
    step_ns_watched: int | None = None
    """Median step before the profiler window: what the step costs when nobody traces it."""
    steady: str | None = None
    """How it was decided that the steps were steady."""
    peak_memory_bytes: int | None = None
    ceilings: Mapping[str, float] | None = None
    """The most that this machine's device was measured to do: FLOP/s by number format (`bf16`), bytes/s as `memory`."""
    curves: tuple[CollectiveCurve, ...] | None = None
    """The times of collectives on this machine under the same library and settings, where they were calibrated."""
    network_settings: Mapping[str, str] | None = None
    """The environment that decides how ranks talk: `NCCL_P2P_DISABLE` and the like, as far as it is set."""

    @property
    def torch_release(self) -> tuple[int, int] | None:
        """The first two numbers of torch's version."""
        found = re.match(r"(\d+)\.(\d+)", self.torch_version or "")
        return (int(found[1]), int(found[2])) if found is not None else None
