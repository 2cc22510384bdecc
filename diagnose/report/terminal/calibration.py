"""A calibration as text: one table for the device, one for each group's collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diagnose.units import format_bytes, format_flops, format_ns

if TYPE_CHECKING:
    from diagnose.calibration.record import Calibration, Curve, Device

_GB = 1e9


def render(calibration: Calibration) -> str:
    """Everything that was measured."""
    return "\n".join(_lines(calibration)) + "\n"


def _lines(found: Calibration) -> Iterator[str]:
    where = f"{found.world_size} rank{'s' if found.world_size > 1 else ''}"
    where += f" on {found.nodes} hosts" if found.nodes > 1 else ""
    under = " ".join(f"{name}={value}" for name, value in found.network_settings.items())
    yield f"{found.device.name or 'processor'}, torch {found.torch_version}"
    yield from _of_device(found.device)
    if found.library:
        yield ""
        yield f"collectives of {where}, {found.library}" + (f", {under}" if under else "")
    for members in dict.fromkeys(curve.members for curve in found.curves):
        yield from _of_group([curve for curve in found.curves if curve.members == members])
    for text in found.left_out:
        yield f"not measured: {text}"


def _of_device(device: Device) -> Iterator[str]:
    for form, rate in sorted(device.flops_per_s.items(), key=lambda entry: -entry[1]):
        yield f"  products of {form:<18}{format_flops(rate)}/s"
    yield f"  memory, copied{'':<16}{device.copy_bytes_per_s / _GB:.0f} GB/s read and written"
    yield f"  launch of a kernel{'':<12}{format_ns(device.launch_ns)}, {format_ns(device.round_trip_ns)} to its end"
    for one in device.transfers:
        way = "host to device" if one.to_device else "device to host"
        best = max(one.points, key=lambda point: point.bytes_per_s)
        memory = "pinned" if one.pinned else "pageable"
        yield (
            f"  {way}, {memory:<13} {best.bytes_per_s / _GB:.1f} GB/s from {format_bytes(best.size_bytes)}; "
            f"{format_ns(one.points[0].time_ns)} for {format_bytes(one.points[0].size_bytes)}"
        )


def _of_group(curves: list[Curve]) -> Iterator[str]:
    """Time, bandwidth of the algorithm and of the bus, a row a size, a pair of columns a kind."""
    yield f"  ranks {', '.join(map(str, curves[0].members))}: time and bus bandwidth (GB/s)"
    yield f"  {'size':>10}" + "".join(f"{curve.kind.replace('_', '-'):>20}" for curve in curves)
    sizes = sorted({point.size_bytes for curve in curves for point in curve.points})
    for size in sizes:
        cells = []
        for curve in curves:
            point = next((one for one in curve.points if one.size_bytes == size), None)
            rate = f"{curve.bus_bytes_per_s(point) / _GB:.2f}" if point else ""
            cells.append(f"{format_ns(point.time_ns):>12}{rate:>8}" if point else f"{'':>20}")
        yield f"  {format_bytes(size):>10}" + "".join(cells)
