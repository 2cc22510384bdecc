"""Time over size of the collectives of a group of ranks, as nccl-tests and rccl-tests measure it.

Every rank of the job calls this, with the same groups in the same order. Sizes are of whole messages: what all ranks
together gather or scatter. A block of several calls follows each other without a pause; a time is that of the slowest
rank. Point-to-point is a ring: each rank sends to the next one and receives from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from diagnose.calibration.record import KINDS, Curve, Point
from diagnose.calibration.timing import WARM_UPS, Plan, block_times_ns, once_ns, point

SIZES = {"nccl": tuple(1 << shift for shift in range(12, 30)), "gloo": tuple(1 << shift for shift in range(12, 27, 2))}
"""4 KiB to 512 MiB in powers of two; 4 KiB to 64 MiB in powers of four where the host's processor carries bytes."""

_ITEM_BYTES = 4
_LARGE_BYTES = 4 << 20
"""The size from which on a curve ends when its time is up: bandwidth hardly changes any more."""

# Newer names of the same; older versions of torch have only the others.
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Work = Callable[[], object]


@dataclass(frozen=True)
class Group:
    """A group of the job's ranks."""

    members: tuple[int, ...]
    nodes: int
    handle: dist.ProcessGroup | None
    """None on a rank that is no member."""


def measure_group(
    group: Group, device: torch.device, budget_ns: int, tell: Callable[[str], None]
) -> tuple[list[Curve], list[str]]:
    """The curves of one group, and what could not be measured; nothing on ranks that are no members."""
    curves: list[Curve] = []
    left_out: list[str] = []
    if group.handle is None:
        return curves, left_out
    sizes = SIZES.get(str(dist.get_backend(group.handle)), SIZES["gloo"])
    for kind in KINDS:
        tell(f"{kind.replace('_', '-')} of {len(group.members)} ranks")
        try:
            points = _curve(kind, group, device, sizes, budget_ns // len(KINDS))
        except (RuntimeError, ValueError) as error:
            left_out.append(f"{kind} of {len(group.members)} ranks: {str(error).splitlines()[0]}")
            continue
        curves.append(Curve(kind, len(group.members), group.nodes, group.members, tuple(points)))
    return curves, left_out


def _curve(kind: str, group: Group, device: torch.device, sizes: Sequence[int], budget_ns: int) -> list[Point]:
    points: list[Point] = []
    spent_ns = 0  # told from what all ranks agree on, so that all end at the same size
    agree = partial(_largest, group=group, device=device)
    for size in sizes:
        each = _ITEM_BYTES * len(group.members)
        whole = max(size // each, 1) * each
        if points and points[-1].size_bytes >= whole:
            continue
        work = _work(kind, group, device, whole)
        one = once_ns(work, device, agree)
        plan = Plan.within(budget_ns // len(sizes), one)
        points.append(point(whole, _slowest(block_times_ns(work, device, plan), group, device)))
        spent_ns += one * (WARM_UPS + plan.blocks * plan.in_block)
        if spent_ns > budget_ns and whole >= _LARGE_BYTES:
            break
    return points


def _work(kind: str, group: Group, device: torch.device, size_bytes: int) -> Work:
    ranks, handle = len(group.members), group.handle
    items = size_bytes // _ITEM_BYTES
    # Zeros: sums of sums of anything else overflow in the end.
    whole = torch.zeros(items, device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=handle)
    if kind == "reduce_scatter":
        part = torch.zeros(items // ranks, device=device)
        return lambda: _SCATTER(part, whole, group=handle)
    if kind == "all_gather":
        part = torch.zeros(items // ranks, device=device)
        return lambda: _GATHER(whole, part, group=handle)
    if kind == "all_to_all":
        received = torch.zeros_like(whole)
        return lambda: dist.all_to_all_single(received, whole, group=handle)
    return partial(_ring, whole, torch.zeros_like(whole), group)


def _ring(sent: torch.Tensor, received: torch.Tensor, group: Group) -> None:
    place, count = group.members.index(dist.get_rank()), len(group.members)
    ways = [
        dist.P2POp(dist.isend, sent, group.members[(place + 1) % count], group.handle),
        dist.P2POp(dist.irecv, received, group.members[place - 1], group.handle),
    ]
    for request in dist.batch_isend_irecv(ways):
        request.wait()


def _largest(number: int, group: Group, device: torch.device) -> int:
    return _slowest([number], group, device)[0]


def _slowest(times_ns: Sequence[int], group: Group, device: torch.device) -> list[int]:
    """Per block, the time of the slowest rank."""
    together = torch.tensor(times_ns, dtype=torch.int64, device=device)
    dist.all_reduce(together, dist.ReduceOp.MAX, group=group.handle)
    return [int(one) for one in together.tolist()]
