"""The differences between two commits as text and as JSON, for `diagnose check-pr`."""

from __future__ import annotations

import json
from dataclasses import asdict

from diagnose.regressions import Checked, Difference
from diagnose.units import format_bytes, format_count, format_flops


def as_text(checked: Checked) -> str:
    """Return a line for each difference, regressions first, and a line of what a step costs now."""
    count = len(checked.regressions)
    said = "no regression" if not count else f"{count} regression{'s' if count > 1 else ''}"
    lines = [f"{said} from {_name(checked.base)} to {_name(checked.head)}"]
    lines += [_line(one) for one in checked.differences]
    head = checked.costs[1]
    parts = [
        _counted(head.count("launch"), "kernel", "kernels"),
        _counted(head.count("sync"), "wait of the host", "waits of the host"),
        _counted(head.count("copy to device"), "copy to the device", "copies to the device"),
        f"{format_flops(sum(head.flops.values()))} of matrix products",
        f"{format_bytes(head.peak_bytes)} at the peak",
    ]
    lines.append(f"A step now: {', '.join(parts)}.")
    return "\n".join(lines)


def as_json(checked: Checked) -> str:
    """Return the differences as one JSON object."""
    found = {
        "schema": 1,
        "base": checked.base,
        "head": checked.head,
        "steps": checked.costs[1].steps,
        "regressions": [_fields(one) for one in checked.regressions],
        "information": [_fields(one) for one in checked.differences if not one.is_regression],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


def _counted(number: float, one: str, several: str) -> str:
    """Return a mean number of things in a step."""
    return f"{format_count(number)} {one if number == 1 else several}"


def place(one: Difference) -> str:
    """Return `train.py:12`, or nothing where no line is known."""
    return f"{one.file}:{one.line}" if one.file else ""


def _line(one: Difference) -> str:
    mark = "!" if one.is_regression else "-"
    where = f"{place(one)}: " if one.file else ""
    return f"  {mark} {where}{one.message} ({one.kind})"


def _fields(one: Difference) -> dict[str, object]:
    return {name: value for name, value in asdict(one).items() if name != "is_regression"}


def _name(commit: str) -> str:
    return "the work tree" if commit == "." else commit[:12]
