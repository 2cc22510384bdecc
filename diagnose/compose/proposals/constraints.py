"""Constraints between fixers, checked before anything runs: which exclude each other, and which go first."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from diagnose.fixer import Fixer


def conflict(one: Fixer, other: Fixer) -> bool:
    """Whether two fixers are never kept side by side; it is enough that one of them says so."""
    return other.name in one.conflicts or one.name in other.conflicts


def excluded_by(fixer: Fixer, kept: Iterable[Fixer]) -> str | None:
    """The name of the kept fix beside which this one must not stand; None where nothing stands against it."""
    return next((other.name for other in kept if conflict(fixer, other)), None)


def goes_first(fixer: Fixer, waiting: Collection[Fixer]) -> Fixer:
    """The one of those waiting that has its turn before `fixer` and before what it rests on; `fixer` itself if none.

    Fixers that name each other in a circle have their turns as if they named nobody beyond the first of them.
    """
    by_name = {one.name: one for one in waiting}
    seen = {fixer.name}
    while first := next((by_name[name] for name in fixer.after if name in by_name and name not in seen), None):
        seen.add(first.name)
        fixer = first
    return fixer
