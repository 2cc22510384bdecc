"""Somebody else uses this device.

What it finds
    Other processes at work on the device: those that NVML lists and that belong to no rank of this run, multiprocessors
    that are busier than this program's kernels can make them, kernels that now and then last far longer than they do.

Why it costs
    Processes take turns on a device, some milliseconds each. A kernel on which the other's turn falls waits inside: it
    is on the device, and nothing of it runs. Memory bandwidth and power are shared as well.

What proves it
    In any recording: the same kernel, step over step, that takes its usual time but for single times hundreds of
    microseconds more, with nothing of this program beside it; and idle time of a device whose next work had been
    launched. The time is what it took beyond its own, replayed without. Within a single step: gaps of the device that
    end with all kinds of work, launched long before, and are as long as each other. That is the others' turn, which
    comes whenever this program's queue is empty. The time is an upper bound: what the host takes by itself remains.

    On a live run besides: the processes that NVML lists with their share of the multiprocessors' time; and activity of
    the multiprocessors (GPM) above the part of a step in which this program's kernels run. What others use bounds what
    they cost. A process that only holds memory costs nothing and is a note.

What fixes it
    A device of one's own: `CUDA_VISIBLE_DEVICES`, the scheduler, a forgotten process that still runs.

Thresholds
    diagnose.measure.kernels.sharing.preempted_kernels.BEYOND_NS (100 µs) and TIMES (1.5): in recordings of H200, A100,
    V100 and MI300X that were not shared, no kernel lasted so much longer than itself.
    diagnose.measure.kernels.sharing.time_slices: eight gaps of 0.5 ms and more, three in four within 5 % of the median,
    in which no other device of this program is at work for half of the time. In that of a shared V100, 23 of 24 are; in
    all others with so many, one in five at most.
    FEWEST (3) kernels per recording: a single one may be a mishap of the machine. HANDOVER_NS (200 µs): launched work
    begins 2 to 10 µs after what is before it.
    USED (5 %): percent of the multiprocessors' time below which others are not counted; a display takes as much.
    ABOVE (15 %): activity above what this program's kernels can cause; a step varies by less.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns, scaled_ns
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
    format_share,
    format_times,
)
from diagnose.trace.schema import Int64

FEWEST = 3
HANDOVER_NS = 200_000
USED = 5.0
ABOVE = 0.15

_PROCESSES, _MEMORY, _PERCENT = "gpu.foreign_processes", "gpu.foreign_memory_bytes", "gpu.foreign_sm_percent"
_ACTIVITY = "gpu.sm_activity"
_CONFIRM = "nvidia-smi while it runs: the processes it lists; the same program on a device of its own"


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time that others had the device."""
    if not measures.has_device:
        yield CannotTell("shared-device", "a recording of the device's work")
        return
    if measures.step_count == 0:
        return
    table = {
        name: _middle(values) for name, values in measures.readings((_PROCESSES, _MEMORY, _PERCENT, _ACTIVITY)).items()
    }
    beyond = measures.stretched
    rows = np.flatnonzero(beyond) if beyond is not None else np.empty(0, np.int64)
    if (taken := _taken_in_turns(measures, table)) is not None:
        yield taken
    elif (
        beyond is not None and len(rows) >= FEWEST and (claim := _stretched(measures, rows, beyond, table)) is not None
    ):
        yield claim
    elif (used := _used(measures, table)) is not None:
        yield from _busy(measures, used, table)
    elif table[_PROCESSES] >= 1:
        yield _note(table)
    elif np.isnan(table[_PROCESSES]) and beyond is None:
        yield CannotTell("shared-device", "the processes on the device (a live run), or three steps that are alike")


def _taken_in_turns(measures: Measures, table: dict[str, float]) -> Claim | None:
    turns = measures.handed_over & measures.counted
    if not len(turns):
        return None
    waited = measures.idle["dependency"] & turns
    # A host that never waits still has its own work to do, whoever has the device meanwhile.
    room = measures.steps.length_ns - np.maximum(measures.host_work_ns, measures.busy_ns)
    most = int(np.minimum(measures.per_step(waited), np.maximum(room, 0)).sum())
    gain = min(most, recoverable_ns(measures, waited))
    if gain == 0:
        return None
    length = format_ns(float(np.median(turns.lengths_ns)))
    return Claim(
        summary=f"launched work waits {format_times(len(turns) / measures.step_count)} per step while the device is "
        f"idle, {length} each time, whichever kernel it is: other processes take turns on the device{_others(table)}",
        recoverable_ns=gain,
        claims=waited,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("turns of others, per step", len(turns) / measures.step_count, "count"),
            Evidence("time in them, per step", turns.total_ns // measures.step_count, "ns"),
            *_told(table),
        ],
        confirm=_CONFIRM,
    )


def _stretched(measures: Measures, rows: Int64, beyond: Int64, table: dict[str, float]) -> Claim | None:
    ends = measures.trace.device.end_ns[rows]
    tails = Intervals.of(ends - beyond[rows], ends) & measures.counted
    waited = measures.idle["dependency"].at_least(HANDOVER_NS) if not _communicates(measures) else Intervals.empty()
    claims = tails | waited
    gain = recoverable_ns(measures, claims)
    if gain == 0:
        return None
    return Claim(
        summary=f"{len(rows)} kernels last {format_ns(float(beyond[rows].mean()))} longer, on average, than the same "
        f"kernels in other steps, with nothing of this program beside them: the device is shared{_others(table)}",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence(
                "kernels beyond their own time", tails.total_ns // measures.step_count, "ns", tuple(rows.tolist())
            ),
            Evidence("such kernels per step", len(rows) / measures.step_count, "count"),
            Evidence("launched work that the idle device kept waiting", waited.total_ns // measures.step_count, "ns"),
            *_told(table),
        ],
        confirm=_CONFIRM,
    )


def _used(measures: Measures, table: dict[str, float]) -> float | None:
    """The part of the device's time that others use, as NVML or GPM tells; None where neither tells of any."""
    if table[_PERCENT] >= USED:
        return min(table[_PERCENT] / 100, 1.0)
    step_ns = measures.trace.facts.step_ns_watched
    own = min(1.0, float(measures.busy_ns.mean()) / step_ns) if step_ns else 1.0
    above = table[_ACTIVITY] / 100 - own
    return min(above, 1.0) if above >= ABOVE else None


def _busy(measures: Measures, used: float, table: dict[str, float]) -> Iterator[Claim]:
    scale = np.where(measures.rows, 1 - used, 1.0)
    time = measures.busy & measures.counted
    replayed = scaled_ns(measures, scale)
    gain = min(int(time.total_ns * used), time.total_ns if replayed is None else replayed)
    if gain:
        yield Claim(
            summary=f"others use the device for {format_share(used)} of the time{_others(table)}",
            recoverable_ns=gain,
            claims=time,
            confidence=Confidence.BOUND,
            evidence=[Evidence("used by others", used, "share"), *_told(table)],
            confirm=_CONFIRM,
        )


def _note(table: dict[str, float]) -> Claim:
    return Claim(
        summary=f"the device is not this run's alone{_others(table)}; they are not seen to compute",
        confidence=Confidence.HINT,
        evidence=_told(table),
        confirm=_CONFIRM,
    )


def _communicates(measures: Measures) -> bool:
    """Whether launched work may wait for another rank."""
    return bool((measures.classes == KernelClass.COLLECTIVE).any())


def _others(table: dict[str, float]) -> str:
    if not table[_PROCESSES] >= 1:
        return ""
    memory = f" with {format_bytes(int(table[_MEMORY]))}" if table[_MEMORY] > 0 else ""
    others = "another process" if round(table[_PROCESSES]) == 1 else f"{table[_PROCESSES]:.0f} other processes"
    return f": NVML lists {others}{memory}"


def _told(table: dict[str, float]) -> list[Evidence]:
    what = (
        ("processes of others", _PROCESSES, 1.0, "count"),
        ("memory of others", _MEMORY, 1.0, "bytes"),
        ("multiprocessor time of others", _PERCENT, 0.01, "share"),
        ("activity of the multiprocessors", _ACTIVITY, 0.01, "share"),
    )
    return [Evidence(name, table[key] * factor, unit) for name, key, factor, unit in what if np.isfinite(table[key])]


def _middle(values: np.typing.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


_ALONE = """
    host: olol sssssss
    gpu :   kkkkKKKKKK
    step:             |
"""
_KERNELS = {"K": "other_kernel"}
_FIVE = {letter: f"{letter}_kernel" for letter in "abcde"}

_drawn = partial(drawn, repeat=3, kernels=_FIVE)
_FIRES = (
    # The others' turns fall on kernels of this program.
    drawn(
        """
        host: olol sssssssolol sssssssssssssolol sssssssssssssolol sssssssolol ssssssssssss
        gpu :   kkkkKKKKKK  kkkkkkkkkkKKKKKK  kkkkKKKKKKKKKKKK  kkkkKKKKKK  kkkkkkkkkKKKKKK
        step:             |                 |                 |           |                |
        """,
        kernels=_KERNELS,
    ),
    # Whenever the queue is empty, the device goes to the others for five milliseconds.
    _drawn("""
        host: olssssolssssolssssolssssolssss
        gpu :      a     b     c     d     e
        step:                               |
    """),
    # NVML names them.
    drawn(
        _ALONE,
        repeat=4,
        kernels=_KERNELS,
        counted={_PROCESSES: [1.0] * 6, _MEMORY: [2e10] * 6, _PERCENT: [40.0] * 6},
    ),
)

_SILENT = (
    # Alone, and every kernel takes what it takes.
    drawn(_ALONE, repeat=4, kernels=_KERNELS, counted={_PROCESSES: [0.0] * 6, _ACTIVITY: [80.0] * 6}),
    # Launched work waits, now longer and now shorter, as for another stream or rank.
    _drawn("""
        host: olssssolsssssssolssolssssssssolssss
        gpu :      a        b   c         d     e
        step:                                    |
    """),
    # It waits as long each time, always before the same work: that is what waits for something.
    _drawn("""
        host: olssssolssssolssssolssssolssss
        gpu :      a     a     a     a     a
        step:                               |
    """),
    # A kernel runs longer while another of this program runs beside it.
    drawn(
        """
        host  : olol ssssssssolol ssssssssssolol ssssssssolol ssssssssolol ssssssssss
        gpu   :   kkkkKKKKKKK  kkkkkkKKKKKKK  kkkkKKKKKKK  kkkkKKKKKKK  kkkkkkKKKKKKK
        gpu 7 :     u            u              u            u            u
        step  :              |              |            |            |              |
        """,
        kernels=_KERNELS,
    ),
)

RULE = Rule("shared-device", check, fires=_FIRES, silent=_SILENT, nearness=65, symptom=Symptom.KERNELS)
