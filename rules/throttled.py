"""The device runs below its clock.

What it finds
    A clock of the multiprocessors below the highest one while the device is busy, with the reason that NVML gives:
    heat, a brake of the board or the power supply, a power limit, a clock that somebody set.

Why it costs
    What computes takes longer in proportion.

What proves it
    Clock, highest clock and reasons (`nvmlDeviceGetCurrentClocksEventReasons`) read beside a live run or by a logger,
    in most of the readings in which the device is busy. The time is that of compute × (1 - clock / highest clock), an
    upper bound: kernels that wait for memory hardly depend on this clock.

    A device that draws the power that it was made for is doing what it can: heavy matrix products bring it there, and
    the clock is what that power gives. It is not named, whatever the clock, unless the limit was lowered. Where the
    power drawn or the default limit is not known, a power limit is named below POWER of the highest clock.

What fixes it
    Cooling; `nvidia-smi -pl` and `-rac` by whoever runs the machine; another node. Nothing in the program.

Thresholds
    BELOW (5 %): from here on a lower clock counts; Ascend's advisor takes the same figure for a drop of frequency.
    POWER (65 %): an H200 at its own 700 W was seen to run bfloat16 products at 1395 to 1515 of 1980 MHz, 70 to 77 %.
    Vendors guarantee the base clock over the boost clock, 1095 of 1410 MHz (A100 SXM), for less heavy work.
    DRAWN (90 %): from this part of the limit on, power is drawn to the limit; readings are means of up to a second.
    LOWERED (5 %): a power limit this far under the default one was set by hand; limits are set in steps of a watt.
    FEWEST (3) readings, MOST (half of them): a single dip is no state.
    BUSY (50 %): a device that is used less lowers its clock by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from diagnose.measure.replay.savings import scaled_ns
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
    format_share,
)

BELOW = 0.05
POWER = 0.65
DRAWN = 0.9
LOWERED = 0.05
FEWEST = 3
MOST = 0.5
BUSY = 50.0

_CLOCK, _HIGHEST = "gpu.sm_clock_mhz", "gpu.max_sm_clock_mhz"
_REASONS, _USED = "gpu.throttle_reasons", "gpu.utilization"
_LIMIT, _DEFAULT = "gpu.power_limit_watts", "gpu.default_power_limit_watts"
_HEAT, _WATTS = "gpu.temperature_celsius", "gpu.power_watts"
_ALL = (_CLOCK, _HIGHEST, _REASONS, _USED, _LIMIT, _DEFAULT, _HEAT, _WATTS)

# Bits of NVML's mask of reasons (nvml.h, nvmlClocksEventReason…), what weighs most first.
_IDLE, _POWER_CAP = 0x1, 0x4
_WORDS: Mapping[int, str] = {
    0x40: "heat (hardware slowdown)",
    0x80: "a power brake of the board or the supply",
    0x8: "a hardware slowdown",
    0x20: "heat (software slowdown)",
    _POWER_CAP: "the power limit",
    0x2: "a clock that was set for applications",
    0x100: "a clock that was set for displays",
    0x10: "a group of devices that share one clock",
}
_NOT_COMPUTE = (KernelClass.COLLECTIVE, KernelClass.COPY, KernelClass.SET)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Compute time lost to clocks below the highest."""
    if measures.step_count == 0:
        return
    table = measures.readings(_ALL)
    known = np.isfinite(table[_CLOCK]) & np.isfinite(table[_REASONS])
    reasons = np.where(known, table[_REASONS], _IDLE).astype(np.int64)
    busy = known & (reasons & _IDLE == 0) & ~(table[_USED] < BUSY)
    if not measures.has_device or busy.sum() < FEWEST:
        if not measures.has_device or not known.any():
            yield CannotTell("throttled", "clocks and throttle reasons of the device: some seconds of a live run")
        return
    highest = _middle(table[_HIGHEST], otherwise=float(table[_CLOCK][known].max()))
    left = np.minimum(table[_CLOCK][busy] / highest, 1.0)
    low = left < _floor(reasons[busy], table, busy)
    if low.mean() < MOST:
        return
    lost = float(np.where(low, 1 - left, 0.0).mean())
    time, gain = _at_full_clock(measures, lost)
    if gain == 0:
        return
    clock = float(np.median(table[_CLOCK][busy]))
    yield Claim(
        summary=f"the device runs at {clock:.0f} of {highest:.0f} MHz because of {_why(reasons[busy][low])}"
        f"{_limit(table)}: compute takes up to {format_share(1 / (1 - lost) - 1)} longer",
        recoverable_ns=gain,
        claims=time,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("clock of the multiprocessors", clock, "MHz"),
            Evidence("highest clock", highest, "MHz"),
            Evidence("readings below it, of those under load", float(low.mean()), "share"),
            *_told("power", table[_WATTS], "W"),
            *_told("power limit", table[_LIMIT], "W"),
            *_told("temperature", table[_HEAT], "°C"),
        ],
        confirm="nvidia-smi -q -d CLOCK,POWER,PERFORMANCE while it runs; the same program on another device",
    )


def _at_full_clock(measures: Measures, lost: float) -> tuple[Intervals, int]:
    """The time of compute, and what the steps give back where it takes that share less."""
    rows = measures.rows_within_steps(~np.isin(measures.classes, _NOT_COMPUTE))
    time = measures.time_of(rows)
    scale = np.ones(len(measures.trace.device), np.float64)
    scale[rows] = 1 - lost
    replayed = scaled_ns(measures, scale)
    return time, min(int(time.total_ns * lost), time.total_ns if replayed is None else replayed)


def _floor(
    reasons: np.typing.NDArray[np.int64],
    table: Mapping[str, np.typing.NDArray[np.float64]],
    busy: np.typing.NDArray[np.bool_],
) -> object:
    """Per busy reading, the part of the highest clock below which its reason counts; 0 where it gives none."""
    given = np.zeros(len(reasons), np.bool_)
    for bit in _WORDS:
        given |= reasons & bit != 0
    only_power = given & (reasons & ~(_POWER_CAP | _IDLE) & sum(_WORDS) == 0)
    floor = np.where(given, 1 - BELOW, 0.0)
    if _is_lowered(table):
        return floor
    limit, default = _middle(table[_LIMIT]), _middle(table[_DEFAULT])
    # A comparison with what is not a number is false.
    made_for = bool(limit >= (1 - LOWERED) * default) and bool(_middle(table[_WATTS][busy]) >= DRAWN * limit)
    return np.where(only_power, 0.0 if made_for else POWER, floor)


def _is_lowered(table: Mapping[str, np.typing.NDArray[np.float64]]) -> bool:
    limit, default = _middle(table[_LIMIT]), _middle(table[_DEFAULT])
    return bool(limit < (1 - LOWERED) * default)  # a comparison with what is not a number is false


def _limit(table: Mapping[str, np.typing.NDArray[np.float64]]) -> str:
    if not _is_lowered(table):
        return ""
    return f", which was lowered to {_middle(table[_LIMIT]):.0f} of {_middle(table[_DEFAULT]):.0f} W"


def _why(reasons: np.typing.NDArray[np.int64]) -> str:
    """Return what most of the readings give as the reason, the gravest first."""
    words = [text for bit, text in _WORDS.items() if (reasons & bit != 0).mean() >= MOST]
    return words[0] if words else next(text for bit, text in _WORDS.items() if (reasons & bit != 0).any())


def _middle(values: np.typing.NDArray[np.float64], otherwise: float = float("nan")) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else otherwise


def _told(what: str, values: np.typing.NDArray[np.float64], unit: str) -> list[Evidence]:
    middle = _middle(values)
    return [Evidence(what, middle, unit)] if np.isfinite(middle) else []


_STEP = """
    host: olol ssssss
    gpu :   kkkkKKKKK
    step:            |
"""


def _counted(clock: float, reasons: int, **more: float) -> dict[str, list[float]]:
    table = {_CLOCK: clock, _HIGHEST: 1980.0, _REASONS: float(reasons), _USED: 99.0}
    return {
        name: [value] * 6 for name, value in {**table, **{f"gpu.{name}": value for name, value in more.items()}}.items()
    }


_NAMES = {"K": "other_kernel"}

_FIRES = (
    # Too hot.
    drawn(_STEP, repeat=4, kernels=_NAMES, counted=_counted(1200, 0x20, temperature_celsius=88)),
    # Somebody lowered the power limit.
    drawn(
        _STEP,
        repeat=4,
        kernels=_NAMES,
        counted=_counted(1500, 0x4, power_limit_watts=350, default_power_limit_watts=700),
    ),
    # Somebody set a clock.
    drawn(_STEP, repeat=4, kernels=_NAMES, counted=_counted(1095, 0x2)),
)

_SILENT = (
    # The power limit that the device was made for, under heavy work.
    drawn(
        _STEP,
        repeat=4,
        kernels=_NAMES,
        counted=_counted(1620, 0x4, power_limit_watts=700, default_power_limit_watts=700),
    ),
    # The same at a lower clock yet, while that power is drawn.
    drawn(
        _STEP,
        repeat=4,
        kernels=_NAMES,
        counted=_counted(1250, 0x4, power_limit_watts=700, default_power_limit_watts=700, power_watts=693),
    ),
    # Full clock.
    drawn(_STEP, repeat=4, kernels=_NAMES, counted=_counted(1980, 0x0)),
    # Idle: the clock is low because there is nothing to do.
    drawn(_STEP, repeat=4, kernels=_NAMES, counted=_counted(345, 0x1)),
    # Lower without a reason: no proof.
    drawn(_STEP, repeat=4, kernels=_NAMES, counted=_counted(1500, 0x0)),
)

RULE = Rule("throttled", check, fires=_FIRES, silent=_SILENT, nearness=70, symptom=Symptom.KERNELS)
