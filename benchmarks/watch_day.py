"""Simulates days of a job and lets `diagnose watch` look at them: what is named, how soon, and what is said wrongly.

    python benchmarks/watch_day.py [--days 5] [--quiet-days 5]

Four ranks take steps of 0.4 s together, with checkpoints, evaluations, epochs, random slow steps and a level that
wanders. Seven events are injected into a day, each at its hour; a quiet day has none. The heartbeats and counters go
through the same code as those of a real job (`diagnose.watching.watcher`); only the clock is simulated. An event is
named where a notice that comes while it lasts tells its kind, and its rank where it has one. A notice that comes
neither during an event nor within FOLLOWS_S of its end is false.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diagnose.units import NS_PER_S
from diagnose.watching.watcher import Notice, Watcher

DAY_S = 86_400
RANKS = 4
STEP_S = 0.4
FOLLOWS_S = 180.0
"""So long after an event's end it may be told that it is over: the new level has to be learnt first."""
ROOM_BYTES = 256e9
_STEP_NOISE, _WANDER, _SLOW_STEPS = 0.03, 0.01, 0.01
"""Standard deviation of a step, and of its level, which wanders within minutes; the share of steps that take twice."""


@dataclass(frozen=True)
class Event:
    """Something injected."""

    name: str
    start_s: float
    end_s: float
    is_named: Callable[[Notice], bool]


def _because(kind: str, rank: int | None = None, words: str = "") -> Callable[[Notice], bool]:
    def is_named(notice: Notice) -> bool:
        return any(
            cause.kind == kind and words in cause.text and (rank is None or cause.rank == rank)
            for cause in notice.causes
        )

    return is_named


def events(seed: int) -> list[Event]:
    """The events of a day, in order; each begins at any time of its hour."""
    hour = 3600.0
    day = [
        Event("throttling, all ranks", 2 * hour, 2.5 * hour, _because("clocks", words="heat")),
        Event("slow rank (3)", 5 * hour, 5.5 * hour, _because("code", 3)),
        Event("loader decay", 8 * hour, 9 * hour, _because("data")),
        Event("memory leak (rank 2)", 11 * hour, 11.5 * hour, lambda one: one.kind == "memory" and one.rank == 2),
        Event("hang (rank 1)", 14 * hour, 14 * hour + 300, lambda one: one.kind == "hang" and one.rank == 1),
        Event("checkpoint storm", 17 * hour, 17.5 * hour, _because("code", words="torch.save")),
        Event("neighbour on the device (rank 0)", 20 * hour, 20.5 * hour, _because("neighbours", 0)),
    ]
    draw = random.Random(seed)
    later = [draw.uniform(0, hour) for _ in day]
    return [replace(one, start_s=one.start_s + by, end_s=one.end_s + by) for one, by in zip(day, later, strict=True)]


class Job:
    """The job: `beats` yields time in seconds, rank, counters and heartbeat, second for second."""

    def __init__(self, seed: int, injected: list[Event]) -> None:
        self._random = random.Random(seed)
        self._injected = {event.name.split(" ")[0]: event for event in injected}
        self._wander = 0.0
        self._leaked = 0.0
        self._next_checkpoint = 600.0
        self._hung_s = math.inf

    def _on(self, name: str, now_s: float) -> bool:
        event = self._injected.get(name)
        return event is not None and event.start_s <= now_s < event.end_s

    def beats(self) -> Iterator[tuple[float, int, dict[str, float], dict[str, Any]]]:
        """A day of them."""
        now, steps, ended, beat_at = 0.0, 0, 0.0, 1.0
        waited, forward = 0.0, [0.0] * RANKS
        ranges = [dict[str, float]() for _ in range(RANKS)]
        while now < DAY_S:
            length, parts = self._step(now, ranges)
            while beat_at < now + length:
                yield from self._second(beat_at, steps, ended, waited, forward, ranges)
                beat_at += 1.0
            now += length
            steps, ended = steps + 1, now
            waited += parts["input"]
            for rank in range(RANKS):
                forward[rank] += parts["forward"] + (parts["late"] if rank == 3 else 0.0)

    def _step(self, now: float, ranges: list[dict[str, float]]) -> tuple[float, dict[str, float]]:
        """The length of the step that begins now, and its parts, in seconds."""
        draw = self._random
        self._wander += -0.005 * self._wander + draw.gauss(0, _WANDER * 0.1)
        length = STEP_S * (1 + self._wander + draw.gauss(0, _STEP_NOISE))
        length *= 2 if draw.random() < _SLOW_STEPS else 1
        parts = {"input": 0.02 * length, "forward": 0.3 * length, "late": 0.0}
        if self._on("throttling,", now) or self._on("neighbour", now):
            length *= 1.25
        if self._on("slow", now):
            parts["late"] = 0.3 * STEP_S
        if self._on("loader", now):
            # A hundredth more of a step every minute, sixty in the hour.
            parts["input"] += STEP_S * 0.01 * (now - self._injected["loader"].start_s) / 60
        length += parts["late"] + parts["input"]
        if now >= self._next_checkpoint:
            storm = self._on("checkpoint", now)
            saving = 4.0 if storm else 8.0
            self._next_checkpoint = now + (20.0 if storm else 600.0)
            length += saving
            ranges[0]["checkpoint"] = ranges[0].get("checkpoint", 0.0) + saving
        elif self._injected and now < self._injected["checkpoint"].start_s <= self._next_checkpoint:
            self._next_checkpoint = self._injected["checkpoint"].start_s
        if int(now / 1800) != int((now + length) / 1800):
            length += 90.0  # an evaluation
        if int(now / 2700) != int((now + length) / 2700):
            length += 3.0  # an epoch: the loader starts again
            parts["input"] += 3.0
        self._hung_s = now + length if self._on("hang", now) else math.inf
        if self._on("hang", now):
            length += self._injected["hang"].end_s - now
        return length, parts

    def _second(
        self,
        at: float,
        steps: int,
        ended: float,
        waited: float,
        forward: list[float],
        ranges: list[dict[str, float]],
    ) -> Iterator[tuple[float, int, dict[str, float], dict[str, Any]]]:
        draw = self._random
        if self._on("memory", at):
            self._leaked += 30e6  # 1.8 GB a minute
        for rank in range(RANKS):
            hot = self._on("throttling,", at)
            counters = {
                "gpu.sm_clock_mhz": draw.gauss(1580 if hot else 1975, 5),
                "gpu.throttle_reasons": float(0x20 if hot else 0),
                "gpu.foreign_processes": float(self._on("neighbour", at) and rank == 0),
                "host.queued": abs(draw.gauss(0.5, 0.2)),
            }
            hung = at > self._hung_s
            beat: dict[str, Any] = {
                "t": _ns(at),
                "i": steps,
                "e": _ns(ended),
                "w": _ns(waited),
                "f": _ns(forward[rank]),
                "n": RANKS,
                "r": {kind: _ns(seconds) for kind, seconds in ranges[rank].items()},
                "l": self._lines(at, rank),
                # An evaluation and a checkpoint of eight seconds go on; a hang does not.
                "q": _ns(at - self._hung_s) if hung else 0,
                "m": 8e9 + draw.gauss(0, 5e6) + (self._leaked if rank == 2 else 0.0),
            }
            if at - self._hung_s > 5:
                place = "fetch" if rank == 1 else "train"
                beat["s"] = [["/home/user/train.py", 40, place, True]]
                beat["c"] = [] if rank == 1 else ["all_reduce 7 of default_pg, Float [[1000]]"]
            ranges[rank].clear()
            yield at, rank, counters, beat

    def _lines(self, at: float, rank: int) -> list[list[object]]:
        """Ten samples of a second: the backward pass, the forward pass; in the slow rank one line more."""
        late = 0.23 if rank == 3 and self._on("slow", at) else 0.0
        lines = self._random.choices([20, 30, 41], [0.7 - late, 0.3, late], k=10)
        return [["/home/user/train.py", line, lines.count(line)] for line in sorted(set(lines))]


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def noticed(seed: int, injected: list[Event]) -> list[Notice]:
    """What is told of a day."""
    watcher = Watcher({"resident": ROOM_BYTES})
    found: list[Notice] = []
    looked = 0.0
    for at, rank, counters, beat in Job(seed, injected).beats():
        if at != looked:
            looked = at
            found += watcher.look(_ns(at))
        watcher.counters(rank, counters)
        found += watcher.beat(rank, beat)
    return found


def _told(notice: Notice, day: list[Event]) -> str:
    false = "" if _is_expected(notice, day) else "FALSE "
    return f"{notice.at_ns / NS_PER_S / 3600:.3f} h {false}{notice.kind}: {notice.text}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=5, help="days with events")
    parser.add_argument("--quiet-days", type=int, default=5, help="days without")
    parser.add_argument("--verbose", action="store_true", help="print each notice")
    options = parser.parse_args()
    delays: dict[str, list[float]] = {event.name: [] for event in events(0)}
    false = []
    for seed in range(options.days):
        day = events(seed)
        found = noticed(seed, day)
        for event in day:
            times = [one.at_ns / NS_PER_S for one in found if event.is_named(one)]
            delays[event.name] += [time - event.start_s for time in times if event.start_s <= time < event.end_s][:1]
        false.append(sum(not _is_expected(one, day) for one in found))
        for one in found if options.verbose else ():
            print(f"day {seed} {_told(one, day)}")
    print(f"{'event':<36}{'named':>8}{'median delay':>14}{'longest':>9}")
    for name, taken in delays.items():
        figures = f"{statistics.median(taken):>12.0f} s{max(taken):>7.0f} s" if taken else f"{'-':>14}{'-':>9}"
        print(f"{name:<36}{f'{len(taken)}/{options.days}':>8}{figures}")
    every = [delay for taken in delays.values() for delay in taken]
    if every:
        print(f"median delay of all: {statistics.median(every):.0f} s")
    print(f"false notices, a day with events: {false}")
    quiet = [noticed(100 + seed, []) for seed in range(options.quiet_days)]
    for one in (one for day in quiet for one in day if options.verbose):
        print(f"quiet {_told(one, [])}")
    print(f"false notices, a quiet day: {[len(day) for day in quiet]}")


def _is_expected(notice: Notice, day: list[Event]) -> bool:
    at = notice.at_ns / NS_PER_S
    return any(event.start_s <= at <= event.end_s + FOLLOWS_S for event in day)


if __name__ == "__main__":
    main()
