"""The compute of a step in words: what bounds its kernels."""

from __future__ import annotations

from diagnose.model import Diagnosis
from diagnose.units import format_share

_WORDS = {
    "matmul": "matrix products",
    "memory": "kernels that wait for memory",
    "latency": "kernels with too little work for the device",
    "communication": "communication",
    "unknown": "kernels of which that is unknown",
}
_NAMED = 0.05
"""A share of the compute: a class with less is not named; as a finding, it would be of no weight."""


def bounds_of_compute(diagnosis: Diagnosis) -> str:
    """Return what bounds the compute of the median step, the largest part first; empty without a device, and where
    nothing is known."""
    spent = diagnosis.accounting
    shares = {kind: ns / spent.compute for kind, ns in spent.compute_by.items() if ns >= _NAMED * spent.compute > 0}
    if not shares.keys() - {"unknown"}:
        return ""
    largest = sorted(shares, key=lambda kind: -shares[kind])
    parts = [f"{_WORDS[kind]}{_formats(diagnosis) if kind == 'matmul' else ''}" for kind in largest]
    said = [f"{format_share(shares[kind])} {part}" for kind, part in zip(largest, parts, strict=True)]
    return f"Of the compute, by what bounds it: {', '.join(said)}."


def _formats(diagnosis: Diagnosis) -> str:
    """The number formats of products, those in which they take long, in brackets; empty where none is known."""
    time: dict[str, int] = {}
    for part in diagnosis.compute:
        if part.bound == "matmul":
            time[part.format or ""] = time.get(part.format or "", 0) + part.time_ns
    whole = sum(time.values())
    named = [form for form in sorted(time, key=lambda form: -time[form]) if form and time[form] >= _NAMED * whole]
    return f" ({', '.join(named)})" if named else ""
