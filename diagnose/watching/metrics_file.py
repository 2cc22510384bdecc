"""Renders what a watched run does in Prometheus' text format, for the textfile collector of its node exporter. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.units import NS_PER_S

_HELP = {
    "diagnose_steps_total": ("counter", "Training steps that have ended."),
    "diagnose_step_seconds": ("gauge", "Mean time of a step over the last seconds."),
    "diagnose_input_seconds_total": ("counter", "Time that training waited for its data loader."),
    "diagnose_resident_bytes": ("gauge", "Resident memory of the rank's process."),
    "diagnose_allocated_bytes": ("gauge", "Memory of tensors on the device."),
    "diagnose_last_step_timestamp_seconds": ("gauge", "When the last step ended."),
    "diagnose_hanging": ("gauge", "1 while the rank makes no progress."),
    "diagnose_notices_total": ("counter", "Notices so far, by kind."),
}


def render(
    program: str,
    beats: Mapping[int, Mapping[str, Any]],
    step_ns: Mapping[int, float | None],
    hanging: tuple[int, ...],
    notices: Mapping[str, int],
) -> str:
    """Return the file. `beats` and `step_ns` are by rank, `notices` by kind; what is not known has no line."""
    values: dict[str, list[tuple[str, float]]] = {name: [] for name in _HELP}
    for rank, beat in sorted(beats.items()):
        label = f'program="{_escaped(program)}",rank="{rank}"'
        known = {
            "diagnose_steps_total": beat.get("i"),
            "diagnose_step_seconds": _seconds(step_ns.get(rank)),
            "diagnose_input_seconds_total": _seconds(beat.get("w")),
            "diagnose_resident_bytes": beat.get("m"),
            "diagnose_allocated_bytes": beat.get("a"),
            "diagnose_last_step_timestamp_seconds": _seconds(beat.get("e")),
            "diagnose_hanging": float(rank in hanging),
        }
        for name, value in known.items():
            if value is not None:
                values[name].append((label, float(value)))
    for kind, count in sorted(notices.items()):
        values["diagnose_notices_total"].append((f'program="{_escaped(program)}",kind="{kind}"', float(count)))
    lines = []
    for name, samples in values.items():
        kind, words = _HELP[name]
        if samples:
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{label}}} {value:.17g}" for label, value in samples]
    return "\n".join(lines) + "\n"


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_S


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
