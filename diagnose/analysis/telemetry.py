"""The counters of devices in words, for telemetry beside which nothing else was recorded.

readings_in_words(trace)   # 8 devices: memory used 4.00 MiB, power 71.9 … 74.3 W, temperature 32.0 … 36.0 °C
"""

from __future__ import annotations

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING
from diagnose.units import counter_unit, format_bytes, format_value

_BITS = frozenset({"gpu.throttle_reasons"})
"""Counters whose value is a set of bits, which has no range."""


def readings_in_words(trace: Trace) -> str:
    """Return the range of each counter of the devices, over all of them; empty where none was read."""
    table = trace.counters
    of_devices = {at: name for at, name in enumerate(trace.names) if name.startswith("gpu.") and name not in _BITS}
    rows = np.flatnonzero(np.isfinite(table.value) & np.isin(table.name, list(of_devices)))
    if not len(rows):
        return ""
    said = []
    for at in dict.fromkeys(table.name[rows].tolist()):
        values = table.value[rows[table.name[rows] == at]]
        said.append(_range(of_devices[at].removeprefix("gpu."), float(values.min()), float(values.max())))
    devices = len(np.unique(table.device[rows][table.device[rows] != MISSING]))
    return f"{devices} device{'s' * (devices != 1)}: {', '.join(said)}" if devices else ", ".join(said)


def _range(name: str, low: float, high: float) -> str:
    *words, last = name.split("_")
    if last == "bytes":
        least, most = format_bytes(round(low)), format_bytes(round(high))
        return f"{' '.join(words)} {least if least == most else f'{least} … {most}'}"
    unit = counter_unit(name)
    title = " ".join([*words, last] if unit in ("", "%") else words)
    least, most = format_value(low, ""), format_value(high, unit)
    return f"{title} {most if least == format_value(high, '') else f'{least} … {most}'}"
