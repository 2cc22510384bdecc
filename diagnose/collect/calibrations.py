"""Where calibrations lie, and which of them hold for a process: the standard library alone.

`diagnose calibrate` writes one JSON a machine, library and network setting (`diagnose.calibration.record` has its
fields); a watched process looks here for what holds for it and notes it among its facts, so that a recording carries
the ceilings of the machine it was made on.

A calibration holds for a process if the device has the same name and torch the same version (a processor, which torch
gives no name, must be that of the same host: a folder may serve many); of collectives also the
library that carries them out, its version and its settings must be the same. Of several the newest one holds.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
FOLDER_VARIABLE = "DIAGNOSE_CALIBRATIONS"
_SETTINGS = ("NCCL_", "RCCL_", "GLOO_")
_SAYS_NOTHING = ("NCCL_DEBUG", "RCCL_DEBUG", "NCCL_VERSION", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT")
"""Settings that have no bearing on how fast anything is; containers set `NCCL_VERSION` for nobody."""


def folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """`$DIAGNOSE_CALIBRATIONS`, else below the user's data; None where that says `off` or there is no home."""
    said = os.environ if environment is None else environment
    chosen = said.get(FOLDER_VARIABLE, "")
    if chosen.lower() in ("off", "0", "no"):
        return None
    if chosen:
        return Path(chosen)
    root = said.get("XDG_DATA_HOME", "")
    try:
        return (Path(root) if root else Path.home() / ".local" / "share") / "diagnose" / "calibrations"
    except RuntimeError:
        return None


def network_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect the speed of collectives."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_SETTINGS) and not name.startswith(_SAYS_NOTHING)
    }


def library_of(torch: Any, backend: str) -> str:
    """Return the library that carries out collectives, with its version where it has one of its own: `nccl 2.28.9`,
    `gloo`.
    """
    if "nccl" not in backend:
        return backend
    version = torch.cuda.nccl.version()
    return f"nccl {'.'.join(map(str, version)) if isinstance(version, tuple) else version}"


def stored(place: Path) -> list[dict[str, Any]]:
    """The calibrations in a folder, or in one file, the newest first; what is damaged or of another schema is left
    out."""
    paths = sorted(place.glob("*.json")) if place.is_dir() else [place]
    found = [record for path in paths if (record := _read(path)) is not None]
    return sorted(found, key=lambda record: -int(record["measured_ns"]))


def ceilings_for(records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, float] | None:
    """`Facts.ceilings` of a process with such facts; None where nothing holds for it."""
    for record in _of_device(records, facts):
        device = record["device"]
        rates, memory = device.get("flops_per_s"), device.get("copy_bytes_per_s")
        if isinstance(rates, dict) and rates and memory:
            return {**{str(form): float(rate) for form, rate in rates.items()}, "memory": float(memory)}
    return None


def curves_for(
    records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], library: str | None, settings: Mapping[str, str]
) -> list[dict[str, Any]] | None:
    """`Facts.curves` of a process whose ranks talk by such a library (`nccl 2.28.9`); None where none holds for it.
    Each kind, number of ranks and number of nodes is of the newest calibration that has it."""
    curves: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in _of_device(records, facts):
        if record.get("library") != library or record.get("network_settings") != settings:
            continue
        for curve in record.get("curves", ()):
            points = curve["points"]
            curves.setdefault(
                (curve["kind"], curve["ranks"], curve["nodes"]),
                {
                    **{name: curve[name] for name in ("kind", "ranks", "nodes")},
                    "size_bytes": [point["size_bytes"] for point in points],
                    "time_ns": [point["time_ns"] for point in points],
                },
            )
    return list(curves.values()) or None


def _of_device(records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for record in records:
        device = record.get("device")
        if not isinstance(device, dict) or device.get("name") != facts.get("device_name"):
            continue
        here = device.get("name") is not None or record.get("host") == platform.node()
        if here and record.get("torch_version") == facts.get("torch_version"):
            yield record


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    sound = isinstance(record, dict) and record.get("schema") == SCHEMA and isinstance(record.get("measured_ns"), int)
    return record if sound else None
