"""The end of a program's error stream, without its launcher's lines and ranks' lines about a rank that is gone.

torchrun ends with some forty lines of its own when a rank fails: the rank's own last line is far above them, and among
those of the ranks that lost their connection to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FAILED = re.compile(r"^.*torch/distributed/elastic/.*failed \(exitcode: (-?\d+)\)", re.MULTILINE)
_BY_LAUNCHER = re.compile(r"^[A-Z]\d{4} .*torch/distributed/(?:run|elastic/).*\n?", re.MULTILINE)
_CRASHED = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_THERE = re.compile(r"^Current thread .*\(most recent call first\):\n((?:  File .*\n?)+)", re.MULTILINE)
_OF_CPP = 3
"""Lines of C++'s own words: that it ends, what was thrown, where that came from."""
_RANK = re.compile(r"^\[rank(\d+)\]:? ?(.*)$")
_NO_ERROR = re.compile(r"^\[[IW]\d{4} ")
"""A rank's line of C++'s log that tells of something, or warns: whatever ended the program stands elsewhere."""
_LOST_ANOTHER = re.compile(
    r"gloo/transport|remote worker|remote process exited|Connection (?:closed|reset) by|Broken pipe|DistNetworkError"
)


def of_the_program(text: str) -> str:
    """The end of an error stream as far as the program wrote it; of several ranks, those that failed by themselves."""
    failed = _FAILED.search(text)
    own = _BY_LAUNCHER.sub("", text[: failed.start()] if failed else text)
    if not own.strip():
        return text
    by_rank = _by_rank(own)
    theirs = [lines for rank, lines in by_rank.items() if rank]
    return "\n".join(line for lines in _by_themselves(theirs) or theirs or by_rank.values() for line in lines) + "\n"


def _by_rank(text: str) -> dict[str, list[str]]:
    """The lines of each rank; of none, what stands there without a rank."""
    found: dict[str, list[str]] = {"": []}
    for line in text.splitlines():
        said = _RANK.match(line)
        if said is None or not _NO_ERROR.match(said[2]):
            found.setdefault(said[1] if said else "", []).append(said[2] if said else line)
    return found


def _by_themselves(ranks: Iterable[list[str]]) -> list[list[str]]:
    """Return the ranks that did not fail because another was gone."""
    return [lines for lines in ranks if not any(map(_LOST_ANOTHER.search, lines))]


def where_it_crashed(text: str, lines: int) -> str | None:
    """Return the part of a faulthandler dump that describes a crash: its error, and the innermost frames as in a
    traceback; None where there is none.

    Before it what an abort says of itself, which alone tells why; it has no frames where a thread of C++ aborts. What
    else it writes (other threads, all extension modules) says less. None where there is nothing of it, and where a rank
    has raised an error of its own: others abort for want of it.
    """
    crashed = _CRASHED.search(text)
    if crashed is None or _is_for_want_of_another(text[: crashed.start()]):
        return None
    why = _last_said(text[: crashed.start()]) if crashed[1].startswith("Aborted") else []
    there = _THERE.search(text, crashed.end())
    calls = there[1].splitlines()[: max(lines - 1 - len(why), 0)] if there else []
    head = f"{crashed[0]} (most recent call last)" if calls else crashed[0]
    return "\n".join([*why, head, *reversed(calls)])


def _is_for_want_of_another(said_before: str) -> bool:
    ranks = [lines for rank, lines in _by_rank(said_before).items() if rank]
    return any(line.startswith("Traceback ") for lines in _by_themselves(ranks) for line in lines)


def _last_said(text: str) -> list[str]:
    """Return what C++ says of an exception that nobody caught, which may go on with frames of its own; else the last
    line."""
    lines = text.rstrip().splitlines()
    thrown = [at for at, line in enumerate(lines) if line.startswith("terminate called")]
    return lines[thrown[-1] :][:_OF_CPP] if thrown else lines[-1:]


def code_of_rank(text: str) -> int | None:
    """The exit code of the rank that failed first, where a launcher tells it (negative: a signal)."""
    failed = _FAILED.search(text)
    return int(failed[1]) if failed else None
