"""Facts about the process and its machine: the fields of `diagnose.model.Facts`. None is unknown."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PRECISION = {"ieee": "highest", "tf32": "high"}
"""The names that `torch.get_float32_matmul_precision` has for the settings of torch 2.9 and newer."""

_JOB = {"run": "TORCHELASTIC_RUN_ID", "slurm": "SLURM_JOB_ID", "port": "MASTER_PORT"}
"""Environment of launchers, alike on all ranks of a job; torchrun's `run` is `none` unless one was named."""


_RANKS = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
)
"""The variables of launchers (torchrun, mpirun, srun) for the number of ranks on a host, and of all ranks."""
_ALIKE = re.compile(r"(\d+)(?:\(x\d+\))?")
"""A number of ranks that each host has: `4`, and Slurm's `4(x2)`; not its `4,2`."""


def process_facts(torch: Any) -> dict[str, Any]:
    """All facts that can be read without touching a device that the program does not use."""
    facts: dict[str, Any] = {
        "torch_version": str(torch.__version__),
        "python_version": platform.python_version(),
        "matmul_precision": _matmul_precision(torch),
        "cudnn_tf32": _cudnn_tf32(torch),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "cpu_count": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }
    if torch.cuda.is_initialized():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["device_name"] = device.name
        facts["device_capability"] = [device.major, device.minor]
        facts["device_memory_bytes"] = device.total_memory
    return facts


def job_facts() -> dict[str, str]:
    """Return the names that the launcher gives to the host and the job of this rank, to tell ranks of other
    jobs apart.
    """
    said = {name: os.environ[variable] for name, variable in _JOB.items() if os.environ.get(variable)}
    return {"host": platform.node(), **said}


def ranks_on_host(world_size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how many ranks of the job are on this host; None where no launcher says so of a job of this size.

    A launcher that counts otherwise started something else: one process a host, say, which makes the ranks itself.
    """
    if world_size == 1:
        return 1
    for local, whole in _RANKS:
        said = _ALIKE.fullmatch(environment.get(local, ""))
        if said and environment.get(whole) == str(world_size) and 0 < int(said[1]) <= world_size:
            return int(said[1])
    return None


def _matmul_precision(torch: Any) -> str | None:
    """`torch.get_float32_matmul_precision()`, which raises where the program set `fp32_precision` instead."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return _PRECISION.get(torch.backends.cuda.matmul.fp32_precision)


def _cudnn_tf32(torch: Any) -> bool | None:
    """Whether convolutions may use TF32; the old flag raises where the program set the new ones."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        precision = torch.backends.cudnn.conv.fp32_precision
        return None if precision == "none" else bool(precision == "tf32")


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and its control group's quota where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        if quota != "max":
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores
