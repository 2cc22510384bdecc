"""How fast devices of one host can talk to each other, and how much of a message a collective puts on the wire.

Rates are what one device can send while it receives as much, in bytes per second, as its maker states:
NVLink of V100 SXM2 (300 GB/s both ways), A100 SXM (600), H100, H200 and H800-class SXM (900; the export models 400),
B200 (1,800); Infinity Fabric of MI300X (896) and MI325X (896), MI350X (1,075): data sheets of NVIDIA and AMD. Devices
on PCI Express: generation 3 (32 GB/s both ways) for V100-PCIE and T4, 4 (64) for A100-PCIE, A10, A40, L40 and L40S.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.trace import Trace
from diagnose.trace.schema import Int64

_GB = 1e9  # bytes: a unit
_LINKS: tuple[tuple[re.Pattern[str], str, float], ...] = tuple(
    (re.compile(pattern), name, rate * _GB)
    for pattern, name, rate in (
        (r"V100-SXM2", "NVLink", 150),
        (r"V100-PCIE|Tesla T4", "PCI Express 3", 16),
        (r"A100-(SXM|PG509)", "NVLink", 300),
        (r"A100-PCIE|\bA10\b|\bA40\b|\bL40S?\b", "PCI Express 4", 32),
        (r"\b[AH]800\b", "NVLink", 200),
        (r"H100 (80GB HBM3|SXM)|H200(?! NVL)|GH200", "NVLink", 450),
        (r"\bG?B200\b|\bG?B300\b", "NVLink", 900),
        (r"MI300X|MI325X", "Infinity Fabric", 448),
        (r"MI350X|MI355X", "Infinity Fabric", 537),
    )
)


@dataclass(frozen=True, slots=True)
class Link:
    """The link between the devices of a host."""

    name: str
    bytes_per_s: float
    """One way."""


def link_of(trace: Trace) -> Link | None:
    """The link between a rank's device and its peers; None for unknown devices, and where peers may be elsewhere:
    on other hosts, networks are slower than any link by design."""
    names = set(trace.device_names)
    ranks = max((one.group_size for one in trace.collectives), default=-1)
    if len(names) != 1 or not 1 < max(ranks, trace.world_size or 0) <= len(trace.device_names):
        return None
    name = names.pop()
    return next((Link(words, rate) for pattern, words, rate in _LINKS if pattern.search(name)), None)


def wire_share(kind: npt.NDArray[np.str_], ranks: Int64) -> npt.NDArray[np.float64]:
    """Bytes that each rank sends for a byte of the whole message: 2 (n − 1) / n for an all-reduce, (n − 1) / n for what
    gathers or scatters (nccl-tests, "Performance reported by NCCL tests"); 0 for other kinds and unknown groups."""
    n = np.maximum(ranks, 1)
    share = (n - 1) / n
    moves = np.isin(kind, ("all_gather", "reduce_scatter", "all_to_all"))
    return np.asarray(np.where(kind == "all_reduce", 2 * share, np.where(moves, share, 0.0)), np.float64)
