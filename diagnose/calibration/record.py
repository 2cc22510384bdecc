"""A calibration as plain data, and its JSON.

Bandwidths are those of nccl-tests ("Performance reported by NCCL tests"): the algorithm's is the size of the whole
message over its time, the bus's what each rank must send or receive for it, whatever the algorithm, over the same time.
So the second one can be compared with the rate of a link, and one number of ranks with another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from diagnose.collect.calibrations import SCHEMA
from diagnose.errors import InputError
from diagnose.units import NS_PER_S

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv")


def bus_share(kind: str, ranks: int) -> float:
    """Bytes over each rank's link for a byte of the whole message."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind == "send_recv" else (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a curve. Times are those of the slowest rank."""

    size_bytes: int
    time_ns: int
    """The median."""
    low_ns: int
    high_ns: int
    """The quartiles."""

    @property
    def bytes_per_s(self) -> float:
        """The algorithm's bandwidth."""
        return self.size_bytes / max(self.time_ns, 1) * NS_PER_S


@dataclass(frozen=True, slots=True)
class Curve:
    """Time over size of one kind of collective in one group of ranks."""

    kind: str
    ranks: int
    nodes: int
    members: tuple[int, ...]
    points: tuple[Point, ...]

    def bus_bytes_per_s(self, point: Point) -> float:
        """The bus's bandwidth at one of the points."""
        return point.bytes_per_s * bus_share(self.kind, self.ranks)

    @property
    def rises(self) -> bool:
        """Whether sizes rise from point to point."""
        return all(one.size_bytes < other.size_bytes for one, other in pairwise(self.points))


@dataclass(frozen=True, slots=True)
class Transfers:
    """Copies between the host and the device, one way."""

    to_device: bool
    pinned: bool
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """The measured ceilings of one device, with the other devices idle."""

    name: str | None
    """The device's name in torch; None for the processor."""
    flops_per_s: dict[str, float] = field(default_factory=dict)
    """The rate of large matrix products by number format; formats that the device or torch does not multiply are
    absent."""
    copy_bytes_per_s: float = 0.0
    """Read and written, of a copy within the device's memory."""
    launch_ns: int = 0
    """The host's time to launch one small kernel (on the processor: to call one small operator)."""
    round_trip_ns: int = 0
    """From launching one small kernel on an idle device to knowing that it has ended."""
    transfers: tuple[Transfers, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """One machine's measurements under one library and one set of network settings."""

    measured_ns: int
    """When: nanoseconds since the epoch."""
    torch_version: str
    device: Device
    world_size: int = 1
    nodes: int = 1
    library: str | None = None
    """The library that carries collectives out, with its version: `nccl 2.28.9`, `gloo`; None of a single rank."""
    network_settings: dict[str, str] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    left_out: tuple[str, ...] = ()
    """The measurements that could not be made, and why."""
    host: str | None = None
    """The host of rank 0."""
    schema: int = SCHEMA


def encode(calibration: Calibration) -> bytes:
    """Return the JSON that `decode` and `diagnose.collect.calibrations` read. It holds bandwidths beside times, for
    other readers.
    """
    record: dict[str, Any] = msgspec.to_builtins(calibration)
    for curve, written in zip(calibration.curves, record["curves"], strict=True):
        for point, into in zip(curve.points, written["points"], strict=True):
            into["algorithm_bytes_per_s"] = round(point.bytes_per_s)
            into["bus_bytes_per_s"] = round(curve.bus_bytes_per_s(point))
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def decode(path: Path) -> Calibration:
    """Read a calibration. Raises InputError where the file is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(path, f"is no calibration ({error}); `diagnose calibrate` writes one") from error
    if found.schema != SCHEMA or not all(curve.points and curve.rises for curve in found.curves):
        raise InputError(path, "is of another version of diagnose; measure again with `diagnose calibrate`")
    return found
