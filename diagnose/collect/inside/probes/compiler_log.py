"""Reads what torch.compile keeps of its own work: where it split a function into several graphs, and why it compiled
one again.

Dynamo keeps both lists for its own reports, whether or not anybody logs them; they are read from the writer's thread,
so the program pays nothing and nothing of the compiler is wrapped. What a version of torch does not have is left out.

    {"kind": "graph_break", "file", "line", "function", "arguments": {"reason", "skipped"}}    a line, once
    {"kind": "recompile", "file", "line", "function", "arguments": {"reason", "start_ns", "limit"}}    each time
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from ...records import SITES
from ..source_ownership import Ownership
from ..writer import encode

_KEPT = 300
_LONGEST_REASON = 200
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+)_at_\d+$")
_GUARD = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_BRANCH = re.compile(r"^generic_jump")
_LIMIT = re.compile(r"(?:recompile|cache[_ ]size)[_ ]limit", re.IGNORECASE)
"""Dynamo's words for a compilation that it refuses because there were too many; others fail of what they compile."""


class CompilerLog:
    """`drain` gives new graph breaks and recompilations as lines of the file of sites."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._breaks_read = 0
        self._compilations: set[tuple[str, object]] = set()
        self._told: set[tuple[str, int]] = set()
        self._lines = 0

    def drain(self) -> Iterator[tuple[str, str]]:
        """Lines for the file of sites."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return
        new = [*self._breaks(dynamo), *self._compiled(dynamo)]
        room = max(_KEPT - self._lines, 0)
        self._lines += len(new)
        yield SITES, "".join(encode(line) + "\n" for line in new[:room])

    def _breaks(self, dynamo: Any) -> Iterator[dict[str, Any]]:
        reasons = getattr(dynamo, "graph_break_reasons", None) or []
        if len(reasons) < self._breaks_read:
            self._breaks_read = 0  # torch._dynamo.reset() has emptied the list
        new = list(reasons[self._breaks_read :])
        self._breaks_read += len(new)
        for one in new:
            frames = [(frame.filename, frame.lineno, frame.name) for frame in one.user_stack]
            if frames:
                yield from self._break(frames, str(one.reason), skipped=False)

    def _compiled(self, dynamo: Any) -> Iterator[dict[str, Any]]:
        metrics = getattr(dynamo, "get_compilation_metrics", None)
        for one in metrics() if metrics is not None else ():
            key = (str(one.compile_id), getattr(one, "start_time_us", None))
            if key in self._compilations:
                continue
            self._compilations.add(key)
            failed = getattr(one, "fail_reason", None)
            again = getattr(one, "recompile_reason", None)
            limit = bool(again) and _LIMIT.search(str(failed)) is not None
            if again:
                yield _recompile(one, str(again), limit=limit)
            if failed and not limit and getattr(one, "fail_user_frame_filename", None):
                frame = (one.fail_user_frame_filename, one.fail_user_frame_lineno or 0, one.co_name or "")
                yield from self._break([frame], str(failed), skipped=True)

    def _break(self, frames: list[tuple[str, int, str]], reason: str, *, skipped: bool) -> Iterator[dict[str, Any]]:
        """The innermost line of the user's, else the innermost of all; each line once."""
        owned = [frame for frame in frames if self._ownership.owns(frame[0])]
        file, line, function = (owned or frames)[-1]
        if (file, line) in self._told:
            return
        self._told.add((file, line))
        arguments = {"reason": _first_line(reason), "skipped": skipped}
        yield _site("graph_break", file, line, function, arguments, owned=bool(owned))


def _recompile(one: Any, reason: str, *, limit: bool) -> dict[str, Any]:
    start_us = getattr(one, "start_time_us", None)
    arguments = {
        "reason": _first_line(_GUARD.sub("", reason)),
        "start_ns": start_us * 1000 if isinstance(start_us, int) else None,
        "limit": limit,
    }
    return _site("recompile", one.co_filename or "", one.co_firstlineno or 0, one.co_name or "", arguments)


def _site(
    kind: str, file: str, line: int, function: str, arguments: dict[str, Any], *, owned: bool = True
) -> dict[str, Any]:
    resumed = _RESUMED.match(function)
    return {
        "kind": kind,
        "file": file,
        "line": line,
        "function": resumed[1] if resumed else function,
        "arguments": arguments,
        "owned": owned,
    }


def _first_line(reason: str) -> str:
    """Return what a reader needs of a reason: its first line, without the compiler's own terms where they hide it."""
    if _BRANCH.match(reason):
        return "a branch on the value of a tensor"
    return reason.strip().partition("\n")[0][:_LONGEST_REASON]
