"""The ranks that calibrate together: started by any launcher that sets RANK and WORLD_SIZE, or one process alone."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from diagnose.calibration.collectives import Group, measure_group
from diagnose.calibration.device import measure_device
from diagnose.calibration.record import Calibration, Curve, Device
from diagnose.collect.calibrations import library_of, network_settings
from diagnose.errors import EnvironmentLacks, UsageError

_ON_DEVICE = 0.3
"""The part of the time that is spent on one device alone where there are several ranks."""

Groups = Sequence[tuple[int, ...]]


def in_a_job() -> bool:
    """Whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is rank 0, which prints and writes the results."""
    return int(os.environ.get("RANK", "0")) == 0


def calibrate(budget_ns: int, groups: Groups | None, tell: Callable[[str], None]) -> tuple[Calibration, bool]:
    """Measure within about `budget_ns`, on every rank of the job; and whether this rank is to store it for its host.

    `groups` are the ranks whose collectives are measured, the same on every rank; by default all of them, and those
    that `usual_groups` names. Only rank 0 measures its device, while the others wait.
    """
    device = _own_device()
    begun_ns, version = time.time_ns(), str(torch.__version__)
    if not in_a_job():
        return Calibration(begun_ns, version, measure_device(device, budget_ns, tell), host=platform.node()), True
    with _connected(device):
        hosts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(hosts, platform.node())
        # What rank 0 measures of its device, on every rank; the others wait
        measured = [measure_device(device, int(_ON_DEVICE * budget_ns), tell) if is_first() else Device(None)]
        dist.broadcast_object_list(measured)
        alone = measured[0]
        wanted = groups if groups is not None else usual_groups(hosts)
        curves: list[Curve] = []
        left_out: list[str] = []
        for members in wanted:
            if not 1 < len(members) <= len(hosts) or not set(members) <= set(range(len(hosts))):
                raise UsageError(f"ranks {', '.join(map(str, members))} are no group of a job of {len(hosts)}")
            found = _of_group(members, hosts, device, int((1 - _ON_DEVICE) * budget_ns) // len(wanted), tell)
            curves += found[0]
            left_out += found[1]
        together = Calibration(
            begun_ns,
            version,
            alone,
            world_size=len(hosts),
            nodes=len(set(hosts)),
            library=library_of(torch, str(dist.get_backend())),
            network_settings=network_settings(os.environ),
            curves=tuple(curves),
            left_out=tuple(left_out),
            host=hosts[0],
        )
        return together, hosts.index(platform.node()) == dist.get_rank()


def usual_groups(hosts: Sequence[str]) -> list[tuple[int, ...]]:
    """All ranks; the first 2, 4, 8, … of the first host, as smaller jobs there use them; one rank of each host."""
    first = [rank for rank, host in enumerate(hosts) if host == hosts[0]]
    each = [hosts.index(host) for host in dict.fromkeys(hosts)]
    found = [tuple(range(len(hosts)))]
    found += [tuple(first[: 1 << power]) for power in range(1, len(first).bit_length()) if 1 << power <= len(first)]
    found += [tuple(first), tuple(each)]
    return list(dict.fromkeys(members for members in found if len(members) > 1))


def _of_group(
    members: tuple[int, ...], hosts: Sequence[str], device: torch.device, budget_ns: int, tell: Callable[[str], None]
) -> tuple[list[Curve], list[str]]:
    """Return, on every rank, what the group's first rank says of it."""
    handle = dist.new_group(list(members))
    nodes = len({hosts[rank] for rank in members})
    mine = dist.get_rank() in members
    spoken = tell if dist.get_rank() == members[0] else _silent
    group = Group(members, nodes, handle if mine and isinstance(handle, dist.ProcessGroup) else None)
    answer = [measure_group(group, device, budget_ns, spoken)]
    dist.broadcast_object_list(answer, src=members[0])
    if mine:
        dist.destroy_process_group(handle)
    return answer[0]


def _own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID"))
    number = int(local) if local is not None else int(os.environ.get("RANK", "0")) % torch.cuda.device_count()
    if number >= torch.cuda.device_count():
        raise EnvironmentLacks(
            f"local rank {number} has no device of its own: there are {torch.cuda.device_count()}; start fewer ranks"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


@contextmanager
def _connected(device: torch.device) -> Iterator[None]:
    if not dist.is_available():
        raise EnvironmentLacks("this build of PyTorch has no torch.distributed; calibrate with one rank")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _silent(_: str) -> None:
    """Another rank speaks."""
