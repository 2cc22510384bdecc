"""The decision tree that users know, with this run's values: utilisation, memory, communication, bandwidth, scaling.

A target is a rule of thumb and no finding: one that is missed says where to look, one that is met is no clean bill of
health. What was not recorded is an open question, with what would answer it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from diagnose.model import Accounting, Diagnosis
from diagnose.report import Subject, as_state
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, GOOD, MUTED, class_look
from diagnose.report.wording.run_title import identity
from diagnose.session import State
from diagnose.units import NS_PER_S, format_bytes, format_ns, format_share


@dataclass(frozen=True)
class Item:
    """One question."""

    question: str
    target: str
    value: str | None
    """The value of this run; None where it is not known."""
    is_met: bool | None
    look: str
    """The place to look at where the target is missed, or what to record where it is open."""


def render(subject: Subject, width: int, colour: bool = False) -> str:
    """One line for each question, the open ones with what would answer them."""
    state = as_state(subject)
    lines: list[Text] = [heading("Checklist", " · ".join(identity(state)), max(width, 400)), Text()]
    found = items(state)
    if not found:
        return print_sections([[*lines, styled("No step was diagnosed, so that there is nothing to check.")]], colour)
    wide = max(len(item.question) for item in found)
    values = max(len(item.value or "open") for item in found)
    targets = max(len(item.target) for item in found)
    for item in found:
        mark, style = _MARKS[item.is_met]
        line = styled(f"{mark} ", style).append(f"{item.question:<{wide}}  ", "bold")
        line.append(f"{item.value or 'open':>{values}}  ").append(f"{item.target:<{targets}}", MUTED)
        lines.append(line)
        if not item.is_met:
            lines.append(styled(f"    {item.look}", MUTED))
    return print_sections([lines, [styled(energy, MUTED)] if (energy := energy_of(state)) else []], colour)


_MARKS = {True: ("✓", GOOD), False: ("✗", BAD), None: ("?", MUTED)}


def items(state: State) -> list[Item]:
    """The questions in the order in which they are usually asked; empty without a diagnosed step."""
    diagnosis = state.diagnosis
    if diagnosis is None or not diagnosis.accounting.total_ns:
        return []
    spent = diagnosis.accounting
    return [
        _busy(diagnosis, spent),
        _memory(state, diagnosis),
        _share("data loading", spent.idle.get("input", 0), spent, 0.05, "the finding input-bound"),
        _communication(diagnosis, spent),
        _mfu(diagnosis),
        Item(
            "link bandwidth",
            "> 80 % of its calibrated curve",
            None,
            None,
            "`diagnose calibrate`, then `diagnose ranks`",
        ),
        Item("scaling", "> 80 %", None, None, "`diagnose scaling` with a run of one device beside this one"),
    ]


def energy_of(state: State) -> str:
    """Return the energy that a step takes on all watched devices; empty where their power was not read."""
    diagnosis = state.diagnosis
    step_ns = None if diagnosis is None else diagnosis.step_ns or diagnosis.steps.mean_ns
    if not state.watts or not step_ns:
        return ""
    watts, readings = sum(mean for mean, _ in state.watts.values()), sum(count for _, count in state.watts.values())
    devices = f" by {len(state.watts)} devices" if len(state.watts) > 1 else ""
    joules = watts * step_ns / NS_PER_S
    return (
        f"A step takes {joules:.3g} J: {watts:.0f} W are drawn{devices} on average, over {readings} readings of NVML."
    )


def _busy(diagnosis: Diagnosis, spent: Accounting) -> Item:
    question, target = "device utilisation", "> 80 %"
    if not diagnosis.has_device:
        return Item(question, target, None, None, "a recording of the device's work")
    share = (spent.total_ns - spent.idle_ns) / spent.total_ns
    idle = max(spent.idle, key=lambda cause: spent.idle[cause], default="unknown")
    look = f"most of its idle time is {class_look(idle).label}: {format_ns(spent.idle.get(idle, 0))} of a step"
    return Item(question, target, format_share(share), share > 0.80, look)


def _memory(state: State, diagnosis: Diagnosis) -> Item:
    question, target = "device memory at its peak", "80 to 95 %"
    peak = diagnosis.memory
    capacities = (peak.capacity_bytes if peak else None, *(facts.device_memory_bytes for facts in state.facts.values()))
    held = [peak.held_bytes] if peak else [facts.peak_memory_bytes for facts in state.facts.values()]
    capacity, used = next(filter(None, capacities), None), max(filter(None, held), default=None)
    if capacity is None or used is None:
        return Item(question, target, None, None, "a live run (`diagnose run`), or a memory snapshot beside the trace")
    share = used / capacity
    look = "a larger batch may use the rest" if share < 0.80 else "little room is left: memory-pressure"
    return Item(question, target, f"{format_share(share)} of {format_bytes(capacity)}", 0.80 <= share <= 0.95, look)


def _share(question: str, part_ns: int, spent: Accounting, most: float, look: str) -> Item:
    share = part_ns / spent.total_ns
    return Item(question, f"< {format_share(most)}", format_share(share), share < most, look)


def _communication(diagnosis: Diagnosis, spent: Accounting) -> Item:
    if diagnosis.ranks < 2 and not spent.exposed_comm:
        return Item("exposed communication", "< 15 %", None, None, "the recordings of all ranks, if there are several")
    look = "the findings exposed-communication, slow-link, straggler"
    return _share("exposed communication", spent.exposed_comm, spent, 0.15, look)


def _mfu(diagnosis: Diagnosis) -> Item:
    question, target = "model FLOP utilisation", "> 50 %"
    if diagnosis.work is None:
        return Item(question, target, None, None, "shapes in the recording, of a device whose rates are known")
    ladder = diagnosis.ladder
    ceiling = ladder.ceiling if ladder else None
    beside = f" (practical ceiling {format_share(ceiling.utilisation)})" if ceiling else ""
    share = diagnosis.work.utilisation
    return Item(question, target, format_share(share) + beside, share > 0.50, "the ladder of `diagnose report`")
