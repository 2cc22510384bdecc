"""Finds the lines that an edit writes anew or takes out, and the functions that those lines call."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import SequenceMatcher

from diagnose.source.tree.outline import read_outline
from diagnose.source.tree.text_lines import lines_in

_WORDS = re.compile(r"[^\W\d]\w*")
_Line = tuple[str, int]


def rewritten_lines(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[_Line]:
    """The lines, by path and number, of the statements of which an edit changes a line; what is put between counts not.

    `after` holds the edited files alone. Lines of a file that is no Python are taken one by one.
    """
    found: set[_Line] = set()
    for path, text in after.items():
        old = before.get(path, "")
        lines = set(_changed(lines_in(old), lines_in(text)))
        for statement in _statements(old):
            if not lines.isdisjoint(statement):
                lines.update(statement)
        found.update((path, line) for line in lines)
    return frozenset(found)


def lines_reached(lines: Collection[_Line], texts: Mapping[str, str]) -> frozenset[_Line]:
    """These lines, and those of all functions that they call by name, and that these call.

    Every function counts that has the name of a word there: a few too many rather than one too few.
    """
    bodies: dict[str, list[tuple[str, range]]] = {}
    for path, text in texts.items():
        outline = read_outline(text)
        for function in outline.every_function if outline is not None else ():
            body = range(function.lineno, (function.end_lineno or function.lineno) + 1)
            bodies.setdefault(function.name, []).append((path, body))
    split = {path: lines_in(text) for path, text in texts.items()}
    reached, new = set(lines), set(lines)
    while new:
        said = (split[path][line - 1] for path, line in new if path in split and 0 < line <= len(split[path]))
        called = {word for code in said for word in _WORDS.findall(code)} & bodies.keys()
        there = {(path, line) for name in called for path, body in bodies[name] for line in body}
        new = there - reached
        reached |= new
    return frozenset(reached)


def _changed(old: list[str], new: list[str]) -> Iterator[int]:
    for kind, begin, end, _, _ in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield from range(begin + 1, end + 1)


def _statements(text: str) -> Iterator[range]:
    """The lines of each statement; of one with others in it, those of its head."""
    outline = read_outline(text)
    for node in ast.walk(outline.tree) if outline is not None else ():
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            yield range(node.lineno, max(last or node.lineno, node.lineno) + 1)
