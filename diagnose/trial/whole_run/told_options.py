"""Differences in output that a changed command line explains: the program prints that an option has another value.

A program that prints its arguments, or saves them with its checkpoints, prints and saves the changed one. That alone is
no difference: `amp=True` stands for `amp=False`, in a line and in a saved mapping. Nor is what the program prints where
such an option is asked for: "compiling the model". Everything else is compared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from diagnose.source.tree.outline import read_outline
from diagnose.trial.whole_run.figures import Text, line_of

_DECLARED = re.compile(r"add_argument\(\s*((?:[\"'][^\"']+[\"']\s*,\s*)+)")
_TELLING = frozenset({"print", "info", "debug", "warning", "log", "write"})
_PLACES = re.compile(r"%[-+ #0-9.]*[a-zA-Z]|\{[^{}]*\}")
_LEAST_LETTERS = 6
"""A message with fewer letters of its own would match lines that others print."""
_SPELLING = re.compile(r"[\"']([^\"']+)[\"']")


def changed_options(before: Sequence[str], after: Sequence[str], sources: Iterable[str]) -> frozenset[str]:
    """The names under which a program holds the options that two of its command lines give differently."""
    one, other = dict(_options_with_values(before)), dict(_options_with_values(after))
    changed = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    short = {name for name in changed if name.startswith("-") and not name.startswith("--")}
    found = {name.lstrip("-").removeprefix("no-") for name in changed}
    for text in sources if short else ():
        for listed in _DECLARED.findall(text):
            names = _SPELLING.findall(listed)
            if short.intersection(names):
                found.update(name.lstrip("-") for name in names if name.startswith("--"))
    return frozenset(name.replace("-", "_") for name in found)


def _options_with_values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value: `--a 1`, `--a=1`, `a.b=1`, and "" for one that stands alone."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if equals:
            yield (name if name.startswith("-") else name.lstrip("+").rpartition(".")[2]), value
        elif word.startswith("-"):
            follows = words[at + 1] if at + 1 < len(words) else "-"
            yield name, "" if follows.startswith("-") else follows


@dataclass(frozen=True)
class Told:
    """The differences in output that are allowed."""

    options: frozenset[str] = frozenset()
    messages: tuple[re.Pattern[str], ...] = ()
    """The lines that the program prints or logs where such an option is on, as patterns of whole lines."""

    @classmethod
    def of(cls, before: Sequence[str], after: Sequence[str], sources: Collection[str]) -> Told:
        """Return the differences that a program with these texts may show when started by another command line."""
        options = changed_options(before, after, sources)
        return cls(options, tuple(_messages(options, sources)))

    def __or__(self, other: Told) -> Told:
        """Return what either may."""
        return Told(self.options | other.options, tuple(dict.fromkeys((*self.messages, *other.messages))))

    def __bool__(self) -> bool:
        """Whether any option is told."""
        return bool(self.options)

    def without(self, text: Text) -> Text:
        """The printed lines with `<set>` for the values of these options, and without their messages."""
        if not self.options:
            return text
        names = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(self.options))
        said = re.compile(rf"(?<![\w-])((?:{names})[\"']?\s*[:=]\s*)[\"']?[^\s,;)\"'}}\]]+[\"']?")
        lines = [line for line in text.lines if not any(one.fullmatch(line.text) for one in self.messages)]
        return Text(
            tuple(line_of(said.sub(r"\1<set>", line.text)) if said.search(line.text) else line for line in lines)
        )

    def holds(self, path: str) -> bool:
        """Whether the path of a saved value is that of such an option: `['args'].state['amp']`."""
        return any(path.endswith(f"[{name!r}]") for name in self.options)


def _messages(options: Collection[str], sources: Iterable[str]) -> Iterator[re.Pattern[str]]:
    """Yield what is printed or logged in the blocks of an `if` that asks for one of the options."""
    for text in sources:
        outline = read_outline(text) if any(name in text for name in options) else None
        for node in outline.every(ast.If) if outline is not None else ():
            if not _asks(node.test, options):
                continue
            for call in (one for line in node.body for one in ast.walk(line) if isinstance(one, ast.Call)):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                pattern = _pattern(call.args[0]) if name in _TELLING and call.args else None
                if pattern is not None and len(re.sub(r"\W", "", pattern.replace(".*", ""))) >= _LEAST_LETTERS:
                    yield re.compile(rf"(?:[\w\s:./\[\],-]*[\s:])?{pattern}\s*")


def _asks(test: ast.expr, options: Collection[str]) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in options)
        or (isinstance(node, ast.Name) and node.id in options)
        for node in ast.walk(test)
    )


def _pattern(message: ast.expr) -> str | None:
    """Return the pattern that lines printed from a text with values in it match."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return ".*".join(map(re.escape, _PLACES.split(message.value)))
    if isinstance(message, ast.JoinedStr):
        return "".join(_pattern(part) or ".*" for part in message.values)
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Mod):
        return _pattern(message.left)
    return None
