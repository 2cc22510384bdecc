"""The calls of blocks as the probe `blocks` saw them, written as the arguments of sites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Line = tuple[str, int, str, str | None]
"""File, number, function, and the user's line that leads there where that is another."""


class Call:
    """One call of a block: readings are (bytes held now, peak since the last reading)."""

    __slots__ = (
        *("again", "begin", "boundary", "cast", "container", "end", "entered", "left", "line", "name", "number"),
        *("place", "stateful", "through", "turned", "turns"),
    )

    def __init__(self, number: int, name: str, line: Line, again: bool) -> None:
        self.number, self.name, self.line, self.again = number, name, line, again
        self.entered: tuple[int, int] = (0, 0)
        self.left: tuple[int, int] | None = None
        self.turned: tuple[int, int] | None = None
        self.boundary = 0
        self.cast = 0
        self.place = 0
        self.container = ""
        self.turns = 0
        self.through = "loop"
        self.stateful = False
        self.begin: Any = None
        self.end: Any = None

    @property
    def took_ns(self) -> int:
        """The time of the call in ns, once its step is over; -1 where that was not measured."""
        return -1 if self.begin is None or self.end is None else elapsed_ns(self.begin, self.end)


def elapsed_ns(begin: Any, end: Any) -> int:
    """The time between two readings of the clock, or two events of a device's stream, in ns."""
    if isinstance(begin, int):
        return int(end - begin)
    end.synchronize()
    return int(1e6 * begin.elapsed_time(end))


def described(memory: list[Call], times: list[Call], rest_peak: int) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """By line: its file, number and function, and what is known of the blocks called there, numbers as `1,2,3`.

    `order` counts the blocks of all lines as they run. Bytes that were not measured are left out.
    """
    forward = [call for call in memory if not call.again]
    took = {call.number: call.took_ns for call in times if not call.again}
    by_line: dict[Line, list[int]] = {}
    for order, call in enumerate(forward):
        by_line.setdefault(call.line, []).append(order)
    for (file, line, function, outer), orders in by_line.items():
        calls = [(forward[order], order) for order in orders]
        yield (
            file,
            line,
            function,
            {
                "name": ",".join(sorted({call.name for call, _ in calls})),
                "count": len(orders),
                "place": _joined(call.place for call, _ in calls),
                "through": calls[0][0].through,
                "container": calls[0][0].container,
                "turns": calls[0][0].turns,
                "stateful": any(call.stateful for call, _ in calls),
                "order": _joined(orders),
                **_bytes_of(calls),
                "forward_ns": _joined(took.get(call.number, -1) for call, _ in calls),
                "backward_peak_bytes": _joined(_backward_peak(forward, order, rest_peak) for order in orders),
                "again_peak_bytes": _joined(_again_peak(call) for call, _ in calls),
                "held_bytes": forward[0].entered[0],
                **({"called_from": outer} if outer else {}),
                **_computed_again(memory, times, [call for call, _ in calls]),
            },
        )


def _bytes_of(calls: list[tuple[Call, int]]) -> dict[str, str]:
    """Return what forward passes leave and reach, of the calls (each with its order) whose end was seen."""
    done = [(call, order, call.left) for call, order in calls if call.left is not None]
    return {
        "kept_bytes": _joined(left[0] - call.entered[0] for call, _, left in done),
        "boundary_bytes": _joined(call.boundary for call, _, _ in done),
        "cast_bytes": _joined(call.cast for call, _, _ in done),
        "forward_peak_bytes": _joined(max(left[1], call.entered[1] if order else 0) for call, order, left in done),
    }


def _computed_again(memory: list[Call], times: list[Call], calls: list[Call]) -> dict[str, str]:
    """Return what the calls' second forward passes leave and take; nothing where no block has one."""
    boundary = {call.number: call.boundary for call in memory if not call.again}
    left = {
        # What was stopped before its end has no output, which a whole forward pass would leave as well.
        call.number: call.left[0] - call.entered[0] + (0 if call.boundary else boundary.get(call.number, 0))
        for call in memory
        if call.again and call.left
    }
    took = {call.number: call.took_ns for call in times if call.again}
    if not left:
        return {}
    return {
        "again_bytes": _joined(left.get(call.number, 0) for call in calls),
        "again_ns": _joined(took.get(call.number, -1) for call in calls),
    }


def turned(memory: list[Call], turns: list[int]) -> dict[str, int | None]:
    """The peaks after the last block's forward pass, before and after the backward pass began.

    Where its beginning was not seen, one stands for both.
    """
    last = next((call.turned for call in reversed(memory) if not call.again), None)
    if last is None:
        return {"turn_peak_bytes": None, "back_peak_bytes": None}
    before = turns[0] if turns else last[1]
    return {"turn_peak_bytes": before, "back_peak_bytes": max([last[1], *turns[1:]])}


def _backward_peak(forward: list[Call], order: int, rest_peak: int) -> int:
    """The peak from the beginning of a block's backward pass to that of the block before it; -1 where not measured."""
    if forward[order].turned is None:
        return -1
    if order == 0:
        return rest_peak or -1
    before = forward[order - 1].turned
    return before[1] if before else -1


def _again_peak(call: Call) -> int:
    """Return what would be held at most if the block ran again before its backward pass; -1 where not measured.

    All that is held then, but what it kept; and as much as its forward pass took while it ran.
    """
    if call.turned is None or call.left is None:
        return -1
    kept = call.left[0] - call.entered[0]
    return call.turned[0] - max(0, kept - call.boundary) + call.left[1] - call.entered[0]


def _joined(numbers: Any) -> str:
    return ",".join(str(number) for number in numbers)


def last_pass(calls: list[Call]) -> list[Call]:
    """The calls of the last complete pass through the blocks, of a step that makes several (accumulation)."""
    passes: list[list[Call]] = [[]]
    seen: set[int] = set()
    for call in calls:
        if not call.again and call.number in seen:
            passes.append([])
            seen = set()
        if not call.again:
            seen.add(call.number)
        passes[-1].append(call)
    return next(one for one in reversed(passes) if len(one) >= len(passes[0]))
