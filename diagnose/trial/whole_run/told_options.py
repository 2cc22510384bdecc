"""What a program says of its own options, where a fix changed its command line: that the option has another value.

A program that prints its arguments, or saves them with its checkpoints, prints and saves the changed one. That alone is
no difference: `amp=True` stands for `amp=False`, in a line and in a saved mapping. Everything else is compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from diagnose.trial.whole_run.figures import Text, line_of

__all__ = ["changed_options", "is_told", "without_values"]

_DECLARED = re.compile(r"add_argument\(\s*((?:[\"'][^\"']+[\"']\s*,\s*)+)")
_SPELLING = re.compile(r"[\"']([^\"']+)[\"']")


def changed_options(before: Sequence[str], after: Sequence[str], sources: Iterable[str]) -> frozenset[str]:
    """The names under which a program holds the options that two of its command lines give differently."""
    one, other = dict(_given(before)), dict(_given(after))
    changed = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    short = {name for name in changed if name.startswith("-") and not name.startswith("--")}
    found = {name.lstrip("-").removeprefix("no-") for name in changed}
    for text in sources if short else ():
        for listed in _DECLARED.findall(text):
            names = _SPELLING.findall(listed)
            if short.intersection(names):
                found.update(name.lstrip("-") for name in names if name.startswith("--"))
    return frozenset(name.replace("-", "_") for name in found)


def _given(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value: `--a 1`, `--a=1`, `a.b=1`, and "" for one that stands alone."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if equals:
            yield (name if name.startswith("-") else name.lstrip("+").rpartition(".")[2]), value
        elif word.startswith("-"):
            follows = words[at + 1] if at + 1 < len(words) else "-"
            yield name, "" if follows.startswith("-") else follows


def without_values(text: Text, options: Collection[str]) -> Text:
    """The printed lines with `<set>` for what is said of these options."""
    if not options:
        return text
    names = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(options))
    said = re.compile(rf"(?<![\w-])((?:{names})[\"']?\s*[:=]\s*)[\"']?[^\s,;)\"'}}\]]+[\"']?")
    return Text(
        tuple(line_of(said.sub(r"\1<set>", line.text)) if said.search(line.text) else line for line in text.lines)
    )


def is_told(path: str, options: Collection[str]) -> bool:
    """Whether the path of a saved value is that of such an option: `['args'].state['amp']`."""
    return any(path.endswith(f"[{name!r}]") for name in options)
