"""Keeps one calibration for each machine, library and network setting: a newer one takes the place of an older one."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path

import msgspec

from diagnose.calibration.record import Calibration, encode
from diagnose.program.atomic import write_atomic

_PLAIN = re.compile(r"[^A-Za-z0-9.]+")


def keep(calibration: Calibration, folder: Path) -> Path:
    """Write it; returns the file. Raises OSError where that is not possible."""
    path = folder / f"{name_of(calibration)}.json"
    write_atomic(path, encode(calibration))
    return path


def name_of(calibration: Calibration) -> str:
    """Readable, and the same for what is measured again under the same conditions on the same host."""
    key = (
        socket.gethostname(),
        calibration.device.name,
        calibration.torch_version,
        calibration.library,
        calibration.world_size,
        calibration.nodes,
        sorted(calibration.network_settings.items()),
        sorted({curve.members for curve in calibration.curves}),
    )
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:8]
    words = _PLAIN.sub("-", calibration.device.name or "processor").strip("-")
    return f"{words}-x{calibration.world_size}-{digest}"
