"""Fixers by name on the command line: `--only a,b` and `--skip c`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from diagnose.errors import UsageError
from diagnose.plugins import Catalogue


def names_in(words: list[str] | None) -> tuple[str, ...]:
    """The names of an option that may be given several times, each time with several names between commas."""
    parts = (name.strip() for word in words or () for name in word.split(","))
    return tuple(dict.fromkeys(name for name in parts if name))


def check_names(names: Iterable[str], among: Iterable[str], what: str) -> None:
    """Raise UsageError for a name that is not `among`; `what` says which names those are."""
    there = list(among)
    for name in names:
        if name not in there:
            near = difflib.get_close_matches(name, there, 1)
            raise UsageError(f"{name} is no {what}" + (f"; did you mean {near[0]}?" if near else ""))


def limit_fixers(catalogue: Catalogue, only: tuple[str, ...], skip: tuple[str, ...]) -> Catalogue:
    """The catalogue with those fixers alone that the user wants. Raises UsageError for one that does not exist."""
    check_names((*only, *skip), catalogue.fixers, "fixer (`diagnose explain` lists all)")
    wanted = {name: fixer for name, fixer in catalogue.fixers.items() if (not only or name in only)}
    wanted = {name: fixer for name, fixer in wanted.items() if name not in skip}
    if not wanted:
        raise UsageError("--only and --skip leave no fixer to try")
    return replace(catalogue, fixers=wanted)
