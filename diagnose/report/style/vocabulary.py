"""Words, marks and colours that every report and screen shares, so that a thing has one name and one look everywhere.

Each meaning has a mark besides its colour: nothing is lost without colour, or to an eye that does not tell them apart.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from diagnose.model import Decision, Severity


@dataclass(frozen=True)
class Look:
    """How one meaning is shown."""

    label: str
    mark: str
    """One character: a fill in bars, a sign in lists."""
    colour: str


CLASSES: dict[str, Look] = {
    "compute": Look("compute", "█", "#4fae8a"),
    "exposed_comm": Look("exposed communication", "▓", "#5b8def"),
    "exposed_copy": Look("exposed copies", "▒", "#3fb0c9"),
    "input": Look("waiting for input", "░", "#e3a13b"),
    "sync": Look("host sync", "╱", "#e2664f"),
    "python": Look("Python", "╳", "#d2709f"),
    "dispatch": Look("framework dispatch", "┼", "#a78bda"),
    "launch": Look("kernel launch", "│", "#8279e0"),
    "dependency": Look("dependency wait", "─", "#7f90a5"),
    "gc": Look("garbage collection", "∘", "#b3b04f"),
    "allocator": Look("memory allocator", "▪", "#b58a66"),
    "compile": Look("compiling", "≡", "#5fa3a3"),
    "io": Look("file I/O", "┈", "#8fb36b"),
    "unknown": Look("unexplained idle", "·", "#69727d"),
}
"""The classes of `model.Accounting`, in the order in which bars and legends show them."""

MEMORY: dict[str, Look] = {
    "parameters": Look("parameters", "█", "#5b8def"),
    "gradients": Look("gradients", "▓", "#3fb0c9"),
    "optimizer state": Look("optimizer state", "▒", "#8279e0"),
    "other": Look("other", "─", "#7f90a5"),
    "activations": Look("activations", "░", "#4fae8a"),
    "logits": Look("logits", "╳", "#e3a13b"),
    "inputs": Look("inputs", "┼", "#8fb36b"),
    "temporaries": Look("temporaries", "╱", "#d2709f"),
    "left by earlier steps": Look("left by earlier steps", "▪", "#e2664f"),
    "fragments": Look("free, in fragments", "∘", "#b58a66"),
    "free": Look("free", "·", "#69727d"),
}
"""What device memory serves as, in the order in which tables and pictures show it."""

SEVERITIES: dict[Severity, Look] = {
    Severity.HIGH: Look("high", "▲", "#e2664f"),
    Severity.MEDIUM: Look("medium", "◆", "#e3a13b"),
    Severity.LOW: Look("low", "●", "#6f9fd8"),
    Severity.NOTE: Look("note", "○", "#8a949e"),
}

DECISIONS: dict[Decision, Look] = {
    Decision.KEPT: Look("kept", "✓", "#4fae8a"),
    Decision.NO_CHANGE: Look("no change", "≈", "#8a949e"),
    Decision.SLOWER: Look("slower", "▼", "#e2664f"),
    Decision.CHANGES_NUMBERS: Look("changes numbers", "≠", "#e2664f"),
    Decision.UNVERIFIED: Look("unverified", "?", "#e3a13b"),
    Decision.UNEXPLAINED: Look("unexplained", "?", "#e3a13b"),
    Decision.OUT_OF_MEMORY: Look("out of memory", "✗", "#e2664f"),
    Decision.FAILED: Look("failed", "✗", "#e2664f"),
    Decision.NOT_TRIED: Look("not tried", "–", "#8a949e"),
    Decision.ADVICE: Look("advice", "→", "#6f9fd8"),
}

UNDECIDED = Look("undecided", "≈", "#e3a13b")
"""What may save something worth having, on a machine too restless to tell; to a trial that is no change."""
NO_EDIT = Look("no edit", "–", "#8a949e")
"""A fixer that a finding names and that has nothing to change in the program."""

FOUND_BY: dict[str, str] = {
    "optimizer": "from optimizer.step calls",
    "profiler marks": "from ProfilerStep marks",
    "nvtx": "from NVTX ranges",
    "period": "inferred from repeating kernels",
    "whole trace": "whole recording as one step",
}
"""How steps were found; other values say nothing."""

MUTED = "#8a949e"
GOOD = "#4fae8a"
BAD = "#e2664f"
ACCENT = "#e3a13b"


def class_look(kind: str) -> Look:
    """The look of an accounting class; a cause that has none here is shown by its own name."""
    return CLASSES.get(kind) or Look(kind.replace("_", " "), "·", CLASSES["unknown"].colour)


def named_count(count: int, noun: str, several: str | None = None) -> str:
    """`1 rank`, `1,204 steps`; `several` is a plural that takes more than an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or f'{noun}s'}"


KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""What a killed program returns: by itself, and through a shell or a container."""


def how_it_ended(returncode: int) -> str:
    """`exit code 2`, `signal 11 (SIGSEGV)`; a kill, which no program sends itself, with who else does."""
    if returncode == KILLED[1]:
        return f"exit code {returncode}, which stands for {how_it_ended(-signal.SIGKILL)}"
    if returncode >= 0:
        return f"exit code {returncode}"
    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    by = ", as the kernel sends it where the host's memory runs out (`dmesg` tells)" if name == "SIGKILL" else ""
    return f"signal {number} ({name}{by})"
