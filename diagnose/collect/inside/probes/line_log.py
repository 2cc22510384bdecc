"""Logs the line of the user's that the training thread is at, moment by moment, in one step that is not counted.

A profile's stacks name functions, and where an operator stands in one they do not say: `a + b` calls nothing that
Python would tell of. So the interpreter itself is asked, through `sys.settrace`, at every line of the user's files.
Other files cost one call for each of their functions. A step that has much Python gets slow by it; after `MOST_NS` or
`MOST_MOMENTS` it is left alone, and what was seen by then is kept. A loop that is quick but long has more moments than
that: they are put together, so that each of its lines keeps its time but not its turns.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..guard import note
from ..source_ownership import Ownership
from ..writer import encode

MOST_NS = 1_000_000_000
"""Beyond the step's usual length, for all that is recorded of it."""
MOST_MOMENTS = 100_000
"""The most moments that are kept at once."""
_STRETCH = 64
"""Moments that are put together, where all of them are at `_FEW_PLACES` and none lasts for `_QUICK_NS`."""
_FEW_PLACES = 6
_QUICK_NS = 10_000
"""The longest gap between two moments that are merged: under a profiler an operator takes longer, so what lies on
either side of one is never merged."""
_NOWHERE = -1

_Trace = Callable[[FrameType, str, Any], Any]
_clock = time.time_ns


class LineLog:
    """`begin` and `end` belong on the training thread, between steps; `save` may run on another one."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._ids: dict[tuple[CodeType, int, int], int] = {}
        self._times: list[int] = []
        self._places: list[int] = []
        self._callers: list[int] = []
        self._standing: list[FrameType] = []
        self._trace: _Trace | None = None
        self._usual: _Trace | None = None
        self._until_ns = 0
        self._called: dict[tuple[CodeType, int, str], None] = {}
        self.is_whole = False
        """Whether the whole step was followed."""

    def begin(self, step_ns: int) -> bool:
        """Start to follow; False where the program (a debugger, a coverage tool) has a trace function of its own."""
        if sys.gettrace() is not None:
            return False
        self._until_ns = _clock() + step_ns + MOST_NS
        self._trace = self._followed()
        if not _hidden_from_compiler((self._trace, self._usual, _put_together, LineLog.end, note)):
            self._trace = None
            return False
        self._enter_standing(sys._getframe(1))
        for frame in self._standing:
            frame.f_trace = self._usual
        sys.settrace(self._trace)
        return True

    def end(self, whole: bool = True) -> None:
        """Stop to follow. Does nothing where that has happened."""
        followed, self._trace = self._trace, None
        if followed is None:
            return
        if sys.gettrace() is followed:
            sys.settrace(None)
        for frame in self._standing:
            if frame.f_trace is self._usual:
                frame.f_trace = None
        self._standing.clear()
        self._times.append(_clock())
        self._places.append(_NOWHERE)
        self.is_whole = whole

    def forward_calls(self) -> list[tuple[str, int, str, str]]:
        """File, line and function at which the user's code called a module from outside of any other, and its class."""
        return [(code.co_filename, line, code.co_qualname, name) for code, line, name in self._called]

    def save(self, path: Path) -> None:
        """Write what was seen to `path` (gzip), whole or not at all; nothing where nothing was."""
        if not self._times:
            return
        frames = [(code.co_filename, line, code.co_qualname, caller) for code, line, caller in self._ids]
        since = [now - before for before, now in zip([self._times[0], *self._times], self._times, strict=False)]
        record = {"start_ns": self._times[0], "whole": self.is_whole, "frames": frames, "t": since, "f": self._places}
        sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            sibling.write_bytes(gzip.compress(encode(record).encode(), 4))
            sibling.replace(path)
        finally:
            sibling.unlink(missing_ok=True)

    def _enter_standing(self, frame: FrameType | None) -> None:
        """The user's frames that are open already, outermost first."""
        standing: list[FrameType] = []
        while frame is not None:
            if self._ownership.owns(frame.f_code.co_filename):
                standing.append(frame)
            frame = frame.f_back
        self._standing = standing[::-1]
        place = _NOWHERE
        for one in self._standing:
            self._callers.append(place)
            place = self._number(one, place)
        self._times.append(_clock())
        self._places.append(place)

    def _number(self, frame: FrameType, caller: int) -> int:
        return self._ids.setdefault((frame.f_code, frame.f_lineno or 0, caller), len(self._ids))

    def _followed(self) -> _Trace:
        """The trace function of calls; that of lines is kept for the frames that are open already.

        What they call that is written in Python is hidden from torch.compile, which would look at it.
        """
        self._usual = self._at_lines()
        return self._at_calls(self._usual)

    def _at_lines(self) -> _Trace:
        """The trace function of the user's frames: local names throughout, for it runs at every line."""
        ids, callers, times, places = self._ids, self._callers, self._times, self._places
        until_ns, most = self._until_ns, MOST_MOMENTS

        def arrived(frame: FrameType, event: str, _: Any) -> Any:
            """Note the arrival at a line of the user's, or the return from a function of theirs."""
            try:
                now = _clock()
                if event == "line":
                    caller = callers[-1] if callers else _NOWHERE
                    places.append(ids.setdefault((frame.f_code, frame.f_lineno, caller), len(ids)))
                elif event == "return":
                    places.append(callers.pop() if callers else _NOWHERE)
                else:
                    return arrived
                times.append(now)
                if now > until_ns or (len(times) > most and not _put_together(times, places)):
                    self.end(whole=False)
            except Exception as error:  # noqa: BLE001 - it would be raised into the program
                note(arrived, error)
                self.end(whole=False)
            return arrived

        return arrived

    def _at_calls(self, arrived: _Trace) -> _Trace:
        """The trace function of all calls: `arrived` follows those of the user's functions."""
        callers, places, until_ns = self._callers, self._places, self._until_ns
        answers = self._ownership.of_modules()
        inside, outside = self._ownership.inside, self._ownership.outside
        of_modules, found = _calls_of_modules(), self._called

        def called(frame: FrameType, _event: str, _argument: Any) -> Any:
            """Note the call of any function."""
            try:
                file = frame.f_code.co_filename
                owned = answers.get(file)
                if owned is None:
                    owned = file.startswith(inside) and not file.startswith(outside) and "-packages" not in file
                    answers[file] = owned
                if owned:
                    callers.append(places[-1])
                    return arrived
                if frame.f_code in of_modules and (back := frame.f_back) and answers.get(back.f_code.co_filename):
                    key = (back.f_code, back.f_lineno, type(frame.f_locals.get("self")).__name__)
                    above: FrameType | None = back
                    while above is not None and above.f_code not in of_modules:
                        above = above.f_back
                    if above is None:
                        found[key] = None
                if _clock() > until_ns:
                    self.end(whole=False)
            except Exception as error:  # noqa: BLE001 - it would be raised into the program
                note(called, error)
                self.end(whole=False)
            return None

        return called


def _put_together(times: list[int], places: list[int]) -> bool:
    """Make room: of each stretch of a loop one moment a place, as long as all there. False where that is not half.

    The last moments stay as they are: what is called next is called from there.
    """
    before, kept_times, kept_places = len(times), [], []
    whole = max(before - 1, 0) // _STRETCH * _STRETCH
    for first in range(0, whole, _STRETCH):
        spent: dict[int, int] = {}
        is_quick = True
        for at in range(first, first + _STRETCH):
            took = times[at + 1] - times[at]
            is_quick = is_quick and took < _QUICK_NS
            spent[places[at]] = spent.get(places[at], 0) + took
        if not is_quick or len(spent) > _FEW_PLACES:
            kept_times += times[first : first + _STRETCH]
            kept_places += places[first : first + _STRETCH]
            continue
        moment = times[first]
        for place, took in spent.items():
            kept_times.append(moment)
            kept_places.append(place)
            moment += took
    times[:whole], places[:whole] = kept_times, kept_places
    return len(times) <= before // 2


def _calls_of_modules() -> frozenset[CodeType]:
    """The functions of torch that run when a module is called."""
    names = (("torch.nn.modules.module", "Module"), ("torch._dynamo.eval_frame", "OptimizedModule"))
    classes = [getattr(sys.modules.get(module), name, None) for module, name in names]
    codes = [getattr(getattr(each, "__call__", None), "__code__", None) for each in classes]  # noqa: B004 - not whether
    return frozenset(code for code in codes if isinstance(code, CodeType))


def _hidden_from_compiler(functions: Iterable[object]) -> bool:
    """Keep torch.compile, which looks at every function that runs below compiled code, from compiling these."""
    if "torch._dynamo" not in sys.modules:
        return True
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is None:
        return False
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            skip(code)
    return True
