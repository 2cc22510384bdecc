"""Units for people: integers of nanoseconds and bytes inside, three significant digits outside; and safe texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_MOST_PARTS = 8
"""Ranks, or runs of ranks, that a sentence names."""
_TIME_UNITS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))
_BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_FLOP_UNITS = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_COUNTER_UNITS = {
    "watts": "W",
    "celsius": "°C",
    "mhz": "MHz",
    "s": "MiB/s",  # `_mib_s` are the only ones that end in `s`
    **dict.fromkeys(("utilization", "activity", "occupancy", "percent"), "%"),
}
_SPACE = re.compile(r"[\t\n\v\f\r\u2028\u2029]+")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
_DURATION_PART = re.compile(_NUMBER + r"(ns|us|µs|ms|s|min|m|h)\s*")
_DURATION = re.compile(rf"{_NUMBER}|(?:{_DURATION_PART.pattern})+")
_DURATION_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_DURATION_NS |= {"m": 60 * NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}


def format_ns(nanoseconds: float) -> str:
    """A duration with three significant digits: `24.2 ms`, `−1.50 µs`, `7 ns`; from a minute on `1 min 11 s`, `2 h`."""
    if round(nanoseconds) < 0:
        return f"−{format_ns(-nanoseconds)}"
    if nanoseconds >= 59.95 * NS_PER_S:
        return format_seconds(nanoseconds / NS_PER_S)
    for size, unit in _TIME_UNITS:
        if nanoseconds >= size * 0.9995:
            return f"{_three_digits(nanoseconds / size)} {unit}"
    return f"{abs(nanoseconds):.0f} ns"


def format_seconds(seconds: float) -> str:
    """A wait in whole seconds, or from an hour on in whole minutes: `15 s`, `1 min 11 s`, `2 h`, `1 h 5 min`."""
    minutes, left = divmod(round(abs(seconds)), 60)
    parts = ((minutes, "min"), (left, "s"))
    if minutes >= 60:
        hours, left = divmod(round(abs(seconds) / 60), 60)
        parts = ((hours, "h"), (left, "min"))
    sign = "−" if seconds < 0 else ""
    return sign + (" ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s")


def format_bytes(count: float) -> str:
    """A size in binary units: `512 B`, `1.50 MiB`."""
    for size, unit in _BYTE_UNITS:
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_flops(count: float) -> str:
    """Floating-point operations in decimal units: `13.1 TFLOP`, `512 FLOP`."""
    for size, unit in _FLOP_UNITS:
        if abs(count) >= size * 0.9995:
            return f"{_three_digits(count / size)} {unit}FLOP"
    return f"{count:.0f} FLOP"


def format_count(number: float, digits: int = 3) -> str:
    """Format a count or a factor: `0.25`, `4`, `13.5`, `1,234`; never in powers of ten."""
    return f"{number:.{digits}g}" if abs(number) < 10**digits - 0.5 else f"{number:,.0f}"


def format_times(number: float) -> str:
    """Return how often: `once`, `0.25 times`, `13.5 times`."""
    return "once" if number == 1 else f"{format_count(number)} times"


def swap_sides(saved: float) -> float:
    """Return the saving of one of two sides as a share of the other's step, where the other saves the share `saved` of
    its own; negative for what takes longer. Below 1.
    """
    return 1 - 1 / (1 - saved)


def format_share(share: float) -> str:
    """A share of 1 in percent: `96 %`, `4.2 %`, `<0.1 %`; nearly all is `99.7 %` or `>99.9 %`, never `100 %`."""
    percent = 100 * share
    if 0 < abs(percent) < 0.1:
        return "<0.1 %"
    if 99.5 <= percent < 100:
        return f"{percent:.1f} %" if percent < 99.95 else ">99.9 %"
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %"


def format_value(value: float, unit: str) -> str:
    """A measured value in its unit; `ns` and `bytes` are scaled for reading."""
    if unit == "ns":
        return format_ns(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "share":
        return format_share(value)
    number = f"{value:,}" if isinstance(value, int) else _three_digits(value)
    return f"{number} {unit}".rstrip()


def counter_unit(name: str) -> str:
    """Return the unit of a counter by the last word of its name, of `gpu.power_watts` W; "" where that tells none."""
    return _COUNTER_UNITS.get(name.rpartition(".")[2].rpartition("_")[2], "")


def printable(text: str) -> str:
    """A text out of somebody's file on one line, without what would steer a terminal or what UTF-8 cannot say."""
    return text if text.isprintable() else _UNPRINTABLE.sub("\ufffd", _SPACE.sub(" ", text))


def printable_lines(text: str) -> str:
    """Return a text of several lines, such as a diff, with unprintable characters escaped and newlines as line ends."""
    if text.isprintable():
        return text
    return "\n".join(
        "\t".join(_UNPRINTABLE.sub("\ufffd", part) for part in line.split("\t"))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def format_ranks(ranks: Iterable[int]) -> str:
    """The ranks by number, runs of three or more as one: `rank 3`, `ranks 0, 2–7`; after eight parts, how many more."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}{'–' if len(run) > 2 else ', '}{run[-1]}" for run in runs]
    more = sum(map(len, runs[_MOST_PARTS:]))
    named = ", ".join(parts[:_MOST_PARTS]) + (f" and {more} more" if more else "")
    return f"rank{'s' if sum(map(len, runs)) > 1 else ''} {named}"


def format_setting(values: Mapping[str, object]) -> str:
    """The knobs of a fixer or a probe: `num_workers=2, pin_memory=True`; empty for none."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def parse_duration_ns(text: str) -> int:
    """`10m`, `90s`, `1.5 h`, `1m30s`, `250ms` as nanoseconds; a bare number means seconds. Raises ValueError."""
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m or 1h")
    parts = _DURATION_PART.findall(text) or [(text.strip(), "s")]
    return sum(round(float(number) * _DURATION_NS[unit]) for number, unit in parts)


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{number:.{decimals}f}"
