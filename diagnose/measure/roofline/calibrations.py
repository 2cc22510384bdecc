"""Gives recordings the ceilings of a calibration that the user names: recordings of live runs carry their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from diagnose.collect.calibrations import ceilings_for, curves_for, stored
from diagnose.errors import InputError
from diagnose.model import CollectiveCurve
from diagnose.trace import Trace


def with_calibrations(traces: Sequence[Trace], place: Path) -> list[Trace]:
    """The recordings with what the calibrations of a folder, or a file, say of their devices.

    Whether library and settings were the same, nobody but the user knows then: the newest calibration of the device
    holds. Raises InputError where none is of a recorded device.
    """
    records = stored(place)
    if not records:
        raise InputError(place, "holds no calibration; `diagnose calibrate -o DIR` writes one")
    try:
        found = [_with(trace, records) for trace in traces]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(place, f"holds a damaged calibration ({error}); measure again") from error
    if all(new is old for new, old in zip(found, traces, strict=True)):
        devices = sorted({str(record.get("device", {}).get("name")) for record in records})
        recorded = sorted({name for trace in traces for name in trace.device_names} or {"no device"})
        raise InputError(place, f"is of {', '.join(devices)}, and the recording of {', '.join(recorded)}")
    return found


def _with(trace: Trace, records: Sequence[dict[str, object]]) -> Trace:
    names = dict.fromkeys((trace.facts.device_name, *trace.device_names))
    for record in records:
        for name in filter(None, names):
            facts = {"device_name": name, "torch_version": record.get("torch_version")}
            ceilings = ceilings_for([record], facts)
            library, settings = record.get("library"), record.get("network_settings")
            wanted = (str(library) if library else None, settings if isinstance(settings, dict) else {})
            curves = curves_for([record], facts, *wanted)
            if ceilings is not None or curves is not None:
                own = trace.facts
                return replace(
                    trace,
                    facts=replace(
                        own,
                        ceilings=own.ceilings or ceilings,
                        curves=own.curves or msgspec.convert(curves or (), tuple[CollectiveCurve, ...]),
                    ),
                )
    return trace
