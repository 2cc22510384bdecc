"""Warnings as people want to read them: what several ranks are warned of is said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from diagnose.units import format_ranks

_OF_A_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)
_LONG = r"\d+ (?:h \d+ min|h|min \d+ s|min)\b"
_FIGURE = re.compile(rf"{_LONG}|\d[\d,.]*(?: ?(?:[nµm]?s|min|[KMGT]iB|B)\b)?")


def said_once(messages: Iterable[str]) -> list[str]:
    """Return each message once, in order. Messages of ranks that differ only in figures become one sentence."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for message in dict.fromkeys(messages):
        of_a_rank = _OF_A_RANK.fullmatch(message)
        if of_a_rank is None:
            groups[message] = []
        else:
            rank, words = int(of_a_rank[1]), of_a_rank[2]
            groups.setdefault(f"rank: {_FIGURE.sub('#', words)}", []).append((rank, words))
    return [_of_ranks(alike) if alike else message for message, alike in groups.items()]


def _of_ranks(alike: Sequence[tuple[int, str]]) -> str:
    (first, words), *others = alike
    if all(other == words for _, other in others):
        return f"{format_ranks([rank for rank, _ in alike])}: {words}"
    whose = "their" if len(others) > 1 else "its"
    return f"rank {first}: {words}; alike, with figures of {whose} own, {format_ranks([rank for rank, _ in others])}"
