"""Turns heartbeats and counters of a job's ranks into notices: the time of a step changed, memory grows, a rank hangs.

Pure: times are those of the heartbeats, and of whoever asks (`look`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from diagnose.units import NS_PER_S, format_bytes, format_ns, format_seconds, format_share
from diagnose.watching.blocks import BLOCK_NS, Block, BlockBuilder
from diagnose.watching.causes import Cause, causes, described, step_ns
from diagnose.watching.change_test import Change, ChangeTest, RateTest

DAY_NS = 86_400 * NS_PER_S
"""A day."""
FALSE_ALARMS_A_DAY = 1.0
"""The false alarms of all tests together: those of the step time and of memory, of all ranks."""
LEAST_CHANGE = 0.05
"""The smallest change of the step time that is looked for: the same part as `rules/throttled.py` takes for a clock."""
KEPT = 120
"""Blocks before a change, ten minutes, that it is compared with."""
HANG_NS = 30 * NS_PER_S
"""Without progress for so long, and for TIMES as long as ever before, a rank hangs: half of the minute within which
that shall be told."""
TIMES = 3
"""An evaluation or a checkpoint on a slow disk may take somewhat longer than it once did."""
BUSY_HANG_NS = 300 * NS_PER_S
"""Without progress for so long a rank hangs inside torch.save and torch.compile, which stand at one line at work."""
SILENT_NS = 600 * NS_PER_S
"""The time without a step or a batch after which a rank hangs though its stack moves, if that is TIMES as long as ever
before."""
_BUSY = (("torch/serialization.py", "save"), ("torch/_dynamo/", ""), ("torch/_inductor/", ""))
_COLLECTIVE = "torch/distributed/"

Kind = Literal["slower", "faster", "memory", "hang", "goes on"]


@dataclass(frozen=True)
class Notice:
    """Something that the user should know, once."""

    kind: Kind
    at_ns: int
    """The time at which it was noticed."""
    since_ns: int
    since_step: int
    rank: int | None
    """The rank that it is about; None where it is the job's."""
    text: str
    causes: tuple[Cause, ...] = ()
    stacks: Mapping[int, Sequence[str]] | None = None
    """Where each rank is in a hang, innermost frame first."""


class _Rank:
    def __init__(self, ranks: int, block_ns: int) -> None:
        self.builder = BlockBuilder(block_ns)
        self.blocks: deque[Block] = deque(maxlen=2 * KEPT)
        self.last: Mapping[str, Any] = {}
        self.longest_quiet_ns = 0
        self.longest_step_ns = 0
        self.fetched_ns = 0
        """The time at which it was last seen to have taken a batch, be it for a step or for an evaluation."""
        self.hangs_since_ns: int | None = None
        self.room: dict[str, float] = {}
        self.leaks: set[str] = set()
        # Four tests: of the step time, of slow steps, of resident and of allocated memory.
        self.per_alarm = 4 * ranks * DAY_NS / block_ns / FALSE_ALARMS_A_DAY
        self.test = ChangeTest(self.per_alarm, LEAST_CHANGE)
        self.rate = RateTest(self.per_alarm)
        self.memory: dict[str, ChangeTest] = {}


class Watcher:
    """Watches the ranks of one host."""

    def __init__(self, room_bytes: Mapping[str, float] | None = None, block_ns: int = BLOCK_NS) -> None:
        self.room = dict(room_bytes or {})
        """Bytes of `resident` memory that are free now; empty where that is not known."""
        self._block_ns = block_ns
        self._ranks: dict[int, _Rank] = {}
        self._looked_ns = self._awake_ns = 0

    @property
    def last(self) -> Mapping[int, Mapping[str, Any]]:
        """The newest heartbeat by rank."""
        return {rank: one.last for rank, one in self._ranks.items() if one.last}

    @property
    def hanging(self) -> tuple[int, ...]:
        """The ranks that hang."""
        return tuple(rank for rank, one in self._ranks.items() if one.hangs_since_ns is not None)

    @property
    def settled(self) -> bool:
        """Whether the usual time of a step is known of any rank, so that a change of it would be told."""
        return any(one.test.level is not None for one in self._ranks.values())

    def step_ns(self, rank: int) -> float | None:
        """Mean time of a step in the newest block."""
        one = self._ranks.get(rank)
        return one.blocks[-1].step_ns if one is not None and one.blocks else None

    def counters(self, rank: int, values: Mapping[str, float]) -> None:
        """Take one reading of a rank's counters."""
        if rank in self._ranks:
            self._ranks[rank].builder.counters(values)

    def beat(self, rank: int, beat: Mapping[str, Any]) -> Iterator[Notice]:
        """Take one heartbeat of a rank."""
        one = self._ranks.setdefault(rank, _Rank(int(beat.get("n", 1)), self._block_ns))
        before, one.last = one.last, beat
        if beat.get("b"):
            one.room["allocated"] = float(beat["b"] - (beat.get("a") or 0))
        if before and beat["w"] != before["w"]:
            one.fetched_ns = beat["t"]
        if before and beat["i"] > before["i"]:
            # What went before the first step, and ends of the program, are no steps.
            one.longest_step_ns = max(one.longest_step_ns, beat["e"] - before["e"])
            if one.hangs_since_ns is not None:
                one.hangs_since_ns = None
                one.builder.leave_out()
                if not self.hanging:
                    text = f"steps go on after {format_seconds((beat['e'] - before['e']) / NS_PER_S)}"
                    yield Notice("goes on", beat["t"], beat["e"], beat["i"], None, text)
        if before and beat.get("q", 0) < before.get("q", 0):
            one.longest_quiet_ns = max(one.longest_quiet_ns, before["q"])
        for block in one.builder.add(beat):
            one.blocks.append(block)
            yield from self._test_step(rank, one, block)
            yield from self._test_memory(rank, one, block)

    def look(self, now_ns: int, gone: frozenset[int] = frozenset()) -> Iterator[Notice]:
        """Say which ranks hang; `gone` are those whose process has ended. To be called every few seconds."""
        if not 0 <= now_ns - self._looked_ns < HANG_NS / 2:
            self._awake_ns = now_ns  # the clock was set, or the machine stood still, and the ranks with it
        self._looked_ns = now_ns
        new = False
        for rank, one in self._ranks.items():
            if one.last.get("end") or rank in gone:
                one.hangs_since_ns = None
            elif one.hangs_since_ns is None:
                one.hangs_since_ns = self._hangs_since_ns(one, now_ns, 1)
                new |= one.hangs_since_ns is not None
        if not new:
            return
        for rank, one in self._ranks.items():
            # What stands still for half as long hangs with it.
            if one.hangs_since_ns is None and not one.last.get("end") and rank not in gone:
                one.hangs_since_ns = self._hangs_since_ns(one, now_ns, 2)
        yield self._hang(now_ns, gone)

    # -- the time of a step ---------------------------------------------------------------------------------------

    def _test_step(self, rank: int, one: _Rank, block: Block) -> Iterator[Notice]:
        value = math.log(block.step_ns)
        stands_out = one.test.stands_out(value)
        level = one.test.add(value)
        rate = one.rate.add(stands_out) if stands_out is not None else None
        change = level or rate
        if change is not None:
            yield from self._changed(rank, one, change, level is not None)

    def _changed(self, rank: int, one: _Rank, change: Change, of_level: bool) -> Iterator[Notice]:
        """The time of all steps changed, or slow ones come more often."""
        # A small change may have begun before the blocks that are kept.
        since_ns = one.blocks[-min(change.values, KEPT)].start_ns
        spans = {}
        for number, other in self._ranks.items():
            before = [block for block in other.blocks if block.end_ns <= since_ns][-KEPT:]
            after = [block for block in other.blocks if block.start_ns >= since_ns]
            if before and after:
                spans[number] = (_without_outliers(before), _without_outliers(after)) if of_level else (before, after)
            other.test.restart(len(after))
            other.rate.restart()
        if rank not in spans:
            return
        before_ns, after_ns = (step_ns(blocks) for blocks in spans[rank])
        if (after_ns > before_ns) != change.upwards:
            return  # it was blocks that stood out which had moved the level
        named = causes(spans, of_level)
        first = spans[rank][1][0].first_step
        kind: Kind = "slower" if change.upwards else "faster"
        text = (
            f"{'steps' if of_level else 'slow steps come more often, and steps'} take "
            f"{format_share(abs(after_ns / before_ns - 1))} {'longer' if change.upwards else 'less'} since "
            f"step {first}: {format_ns(before_ns)} → {format_ns(after_ns)}; "
            + ("cause unknown: " if named[0].kind == "unknown" else "")
            + "; ".join(map(described, named))
        )
        about = {cause.rank for cause in named}
        yield Notice(
            kind, one.blocks[-1].end_ns, since_ns, first, about.pop() if len(about) == 1 else None, text, named
        )

    # -- memory ---------------------------------------------------------------------------------------------------

    def _test_memory(self, rank: int, one: _Rank, block: Block) -> Iterator[Notice]:
        if len(one.blocks) < 2:
            return
        previous = one.blocks[-2]
        seconds = (block.end_ns - previous.end_ns) / NS_PER_S
        room = self.room | one.room
        for name in block.memory.keys() & previous.memory.keys() & room.keys():
            rate = (block.memory[name] - previous.memory[name]) / seconds
            # Growth that leaves room for a day is no matter for today.
            least = max(1.0, room[name]) / (DAY_NS / NS_PER_S)
            if name not in one.memory:
                one.memory[name] = ChangeTest(one.per_alarm, least, 0.0)
            test = one.memory[name]
            test.least = least
            change = test.add(rate)
            if change is None or not change.upwards or name in one.leaks:
                continue
            grown = [block for block in one.blocks if name in block.memory][-change.values :]
            rate = (grown[-1].memory[name] - grown[0].memory[name]) / ((grown[-1].end_ns - grown[0].end_ns) / NS_PER_S)
            if rate <= 0:
                continue
            one.leaks.add(name)
            where = {"resident": "resident memory", "allocated": "tensors on the device"}[name]
            text = (
                f"{where} of rank {rank} grows by {format_bytes(rate * 60)} a minute since step {grown[0].first_step}: "
                f"there is room for {format_seconds(room[name] / rate)} of that"
            )
            yield Notice("memory", block.end_ns, grown[0].end_ns, grown[0].first_step, rank, text)

    # -- hangs ----------------------------------------------------------------------------------------------------

    def _hangs_since_ns(self, one: _Rank, now_ns: int, part: int) -> int | None:
        """Since when a rank hangs, None where it does not; it counts as standing still after one `part` of the time."""
        last = one.last
        if last["i"] == 0:
            return None
        still_ns = max(last["t"] - last.get("q", 0), self._awake_ns)
        least_ns = BUSY_HANG_NS if _is_busy(last.get("s") or ()) else HANG_NS
        if now_ns - still_ns >= max(least_ns, TIMES * one.longest_quiet_ns) / part:
            return int(still_ns)
        active_ns = max(last["e"], one.fetched_ns, self._awake_ns)
        return int(active_ns) if now_ns - active_ns >= max(SILENT_NS, TIMES * one.longest_step_ns) else None

    def _hang(self, now_ns: int, gone: frozenset[int]) -> Notice:
        """All ranks, where they are, and which of them the others wait for."""
        lines, stacks, waiting = [], {}, {}
        for rank, one in sorted(self._ranks.items()):
            stack, ended = one.last.get("s") or (), rank in gone or one.last.get("end")
            stacks[rank] = [f"{file}:{line} {function}" for file, line, function, _ in stack]
            waiting[rank] = not ended and bool(one.last.get("c") or _collective(stack))
            lines.append(f"rank {rank}{f': {_whereabouts(one, now_ns)}' if not ended else ' has ended'}")
        others = [rank for rank, waits in waiting.items() if not waits]
        culprit = others[0] if len(others) == 1 and len(waiting) > 1 else None
        hung = [(one.hangs_since_ns, one.last["i"]) for one in self._ranks.values() if one.hangs_since_ns is not None]
        since_ns, step = min(since for since, _ in hung), min(steps for _, steps in hung)
        text = f"no progress for {format_seconds((now_ns - since_ns) / NS_PER_S)}, in step {step}; " + "; ".join(lines)
        if culprit is not None:
            text += f"; the others wait for rank {culprit}"
        return Notice("hang", now_ns, since_ns, step, culprit, text, (), stacks)


def _without_outliers(blocks: Sequence[Block]) -> Sequence[Block]:
    """Blocks but those that take more than twice the median time: an evaluation is not what steps usually take."""
    usual = sorted(block.step_ns for block in blocks)[len(blocks) // 2]
    return [block for block in blocks if block.step_ns <= 2 * usual]


def _is_busy(stack: Sequence[Sequence[Any]]) -> bool:
    return any(part in frame[0] and name in frame[2] for frame in stack for part, name in _BUSY)


def _collective(stack: Sequence[Sequence[Any]]) -> str | None:
    """The function of torch.distributed that the stack is in: the outermost of the innermost frames of torch."""
    inner = [frame for frame in stack if _COLLECTIVE in frame[0]]
    return str(inner[0][2]).rpartition(".")[2] if inner else None


def _whereabouts(one: _Rank, now_ns: int) -> str:
    last = one.last
    unheard_ns = now_ns - last["t"]
    if unheard_ns >= HANG_NS / 2:
        silent = format_seconds(unheard_ns / NS_PER_S)
        return f"not heard of for {silent}: stopped, its interpreter is held, or its disk is full"
    stack = last.get("s") or ()
    if not stack:
        return "at work, but no step ends"
    owned = next((frame for frame in stack if frame[3]), stack[-1])
    place = f"{Path(owned[0]).name}:{owned[1]} ({owned[2]})"
    collectives = last.get("c")
    within = ", ".join(collectives) if collectives else _collective(stack)
    return f"{place}{f', in {within}' if within else ''}"
