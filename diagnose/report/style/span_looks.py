"""How spans of the timeline look: classes of kernels, causes of idle time, phases of the host."""

from __future__ import annotations

from diagnose.report.style.vocabulary import CLASSES, MUTED, Look, class_look

SPANS: dict[str, Look] = {
    "matmul": Look("matrix product", "█", "#4fae8a"),
    "convolution": Look("convolution", "▓", "#3f9b78"),
    "attention": Look("attention", "▒", "#6fc2a4"),
    "norm": Look("normalisation", "╳", "#8fb36b"),
    "pointwise": Look("elementwise", "░", "#a5b84f"),
    "reduction": Look("reduction", "┼", "#c3b04f"),
    "optimizer": Look("optimizer", "≡", "#8279e0"),
    "collective": Look("collective", "▓", CLASSES["exposed_comm"].colour),
    "copy": Look("copy", "▒", CLASSES["exposed_copy"].colour),
    "set": Look("memory set", "▪", "#7f90a5"),
    "other": Look("other", "─", "#6b8a80"),
    "range": Look("named range", "─", "#7f90a5"),
    "backward": Look("backward", "▒", "#6f9fd8"),
}
"""Kinds of spans that are no cause of idle time."""


def span_look(kind: str) -> Look:
    """The look of a kind of span; one that has none here or among the causes is shown by its own name."""
    return SPANS.get(kind) or (class_look(kind) if kind in CLASSES else Look(kind.replace("_", " "), "·", MUTED))
