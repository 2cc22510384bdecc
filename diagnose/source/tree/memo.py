"""Answers to questions about a file or a program that are found once, and kept as long as its text.

Fixers ask the same of the same files one after the other, and a name is often reached on many ways. An answer that is
kept must not be changed by whoever gets it, nor depend on anything but the arguments, which are given by position and
are hashable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from diagnose.source.tree.syntax import Source, parse

_Question = TypeVar("_Question", bound=Callable[..., Any])
_PROGRAMS = 16
"""States of programs that are kept, for each question: those that a search goes back to."""
_NONE = object()


def per_source(question: _Question) -> _Question:
    """Keep the answers of a function of a parsed file."""

    @wraps(question)
    def ask(source: Source, *arguments: Hashable) -> object:
        answers = source.answers.setdefault(question, {})
        answer = answers.get(arguments, _NONE)
        if answer is _NONE:
            answer = answers[arguments] = question(source, *arguments)
        return answer

    return cast("_Question", ask)


def per_program(question: _Question) -> _Question:
    """Keep the answers of a function of a program's texts by path."""

    @lru_cache(maxsize=_PROGRAMS)
    def kept(_texts: tuple[tuple[str, str], ...]) -> dict[tuple[Hashable, ...], object]:
        return {}

    @wraps(question)
    def ask(texts: Mapping[str, str], *arguments: Hashable) -> object:
        answers = kept(tuple(texts.items()))
        answer = answers.get(arguments, _NONE)
        if answer is _NONE:
            answer = answers[arguments] = question(dict(texts), *arguments)
        return answer

    return cast("_Question", ask)


@per_program
def parse_all(texts: Mapping[str, str]) -> Mapping[str, Source]:
    """The files of a program that can be read, by path."""
    return {path: source for path, text in texts.items() if (source := parse(text)) is not None}


def files_with(
    texts: Mapping[str, str], *words: str, where: Callable[[str], object] | None = None
) -> Iterator[tuple[str, Source]]:
    """The files of a program that can be read and hold one of these words, with their paths; no other file is parsed.

    `where` chooses among the texts otherwise, instead of words.
    """
    for path, text in texts.items():
        chosen = where(text) if where is not None else any(word in text for word in words)
        source = parse(text) if chosen else None
        if source is not None:
            yield path, source
