"""Config files as text: every scalar of a YAML, JSON or TOML file with its keys and its place.

Only the text is looked at, so that an edit leaves comments, order and layout as they are. What this cannot read for
certain (lists, anchors, texts over several lines) has no entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from diagnose.model import Scalar

_FILES = 128
"""Config files whose scalars are kept: each option that code reads from an object is looked for in all of them."""
_FORMS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One scalar."""

    keys: tuple[str, ...]
    value: Scalar
    span: tuple[int, int]
    line: int


def form_of(path: str) -> str | None:
    """`yaml`, `json` or `toml` by a file's name; None for another file."""
    return next((form for ending, form in _FORMS.items() if path.lower().endswith(ending)), None)


@lru_cache(maxsize=_FILES)
def entries(path: str, text: str) -> Sequence[Entry]:
    """The scalars of a config file, in the order of the text."""
    form = form_of(path)
    if form == "yaml":
        return tuple(_yaml(text))
    if form == "toml":
        return tuple(_toml(text))
    return tuple(_json(text)) if form == "json" else ()


_YAML_LINE = re.compile(
    r"(?P<indent> *)(?P<key>[A-Za-z_][\w.-]*|\"[^\"]+\"|'[^']+')[ \t]*:(?:[ \t]+(?P<rest>\S.*?))?[ \t]*$"
)
_YAML_SCALAR = re.compile(r"(?P<value>\"[^\"\\]*\"|'[^']*'|[^\s\"'\[\]{}&*!|>#%@`,][^#\n]*?)[ \t]*(?:[ \t]#.*)?$")


def _yaml(text: str) -> Iterator[Entry]:
    above: list[tuple[int, str]] = []
    skipped: int | None = None
    for number, (start, line) in enumerate(_lines(text), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip(" "))
        if skipped is not None and indent > skipped:
            continue
        skipped = None
        found = _YAML_LINE.match(line)
        if found is None or line.lstrip().startswith("- "):
            skipped = indent if line.lstrip().startswith("-") else None
            continue
        above = [(depth, key) for depth, key in above if depth < indent]
        key = found["key"].strip("\"'")
        rest = found["rest"]
        if rest is None or rest.startswith(("#", "&")):
            above.append((indent, key))
        elif rest[0] in "|>[{":
            skipped = indent
        elif (scalar := _YAML_SCALAR.match(rest)) is not None:
            at = start + found.start("rest")
            keys = (*(each for _, each in above), key)
            value = _plain(scalar["value"], {"yes", "on", "Yes", "On"}, {"no", "off", "No", "Off"})
            yield Entry(keys, value, (at, at + len(scalar["value"])), number)


_TOML_TABLE = re.compile(r"\s*\[([\w.\- \"']+)\]\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\s*([\w.-]+|\"[^\"]+\")\s*=\s*(?P<value>\"[^\"\\]*\"|'[^']*'|[\w.+-]+)\s*(?:#.*)?$")


def _toml(text: str) -> Iterator[Entry]:
    table: tuple[str, ...] = ()
    for number, (start, line) in enumerate(_lines(text), 1):
        if (head := _TOML_TABLE.match(line)) is not None:
            table = tuple(part.strip().strip("\"'") for part in head[1].split("."))
        elif line.lstrip().startswith("[["):
            table = ("",)  # of a list of tables: never the keys of anything that is asked for
        elif (found := _TOML_LINE.match(line)) is not None:
            keys = (*table, *found[1].strip('"').split("."))
            yield Entry(
                keys, _plain(found["value"]), (start + found.start("value"), start + found.end("value")), number
            )


_JSON_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[{}\[\],:]|[^\s{}\[\],:\"]+")


def _json(text: str) -> Iterator[Entry]:
    try:
        json.loads(text)
    except ValueError:
        return
    path: list[str | None] = []
    key: str | None = None
    after_colon = False
    for found in _JSON_TOKEN.finditer(text):
        token = found[0]
        if token in "{[":
            path.append(key if token == "{" else None)
            key, after_colon = None, False
        elif token in "}]":
            path.pop()
            key, after_colon = None, False
        elif token == ":":
            after_colon = True
        elif token == ",":
            key, after_colon = None, False
        elif after_colon and key is not None:
            if None not in path[1:]:
                keys = (*(each for each in path[1:] if each is not None), key)
                yield Entry(keys, json.loads(token), found.span(), text.count("\n", 0, found.start()) + 1)
        elif token.startswith('"'):
            key = json.loads(token)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, line.rstrip("\r\n")
        start += len(line)


def _plain(code: str, yes: set[str] | None = None, no: set[str] | None = None) -> Scalar:
    """The value of a scalar as YAML and TOML write it."""
    if code[0] in "\"'":
        return code[1:-1]
    if code in {"true", "True", "TRUE"} | (yes or set()):
        return True
    if code in {"false", "False", "FALSE"} | (no or set()):
        return False
    if code in {"null", "~", "Null", "NULL"}:
        return None
    for kind in (int, float):
        try:
            return kind(code.replace("_", ""))
        except ValueError:
            continue
    return code
