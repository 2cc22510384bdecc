"""A run folder from somebody else: whatever its texts hold, each format shows them as text and nothing else.

All texts of a run get an ending, once a harmless one and once a hostile one. The documents must be built alike.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import journals
import msgspec
import pytest
from markdown_it import MarkdownIt

from diagnose.cli import main
from diagnose.report import formats
from diagnose.report.page import html
from diagnose.session import JOURNAL, fold

HARMLESS = "xyz"
ENDINGS = {
    "terminal": "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08",
    "direction": "\u202e\u2066\u200f",
    "element": "</code></style></script></title><script>alert(1)</script><img src=x onerror=alert(1)>",
    "comment": "<!-- ]]> <![CDATA[",
    "attribute": "\" onload='alert(1)' x=\"",
    "entity": "&lt;b&gt;&#x3c;",
    "code": "` `` ``` ~~~",
    "image": "![x](https://example.org/x.png) [x](javascript:alert(1)) <https://example.org>",
    "link": "https://example.org www.example.org a@example.org",
    "mention": "@everyone #1 GH-1",
    "lines": "\n# heading\n- item\n\n| a | b |\n| - | - |\n```\n::error file=x::y\n",
    "separators": "\u2028\u2029\x85\x0b\x0c",
    "markup": "*a* _b_ **c** ~~d~~ [bold red]e[/]",
    "template": "{{ 7 * 7 }} {% raw %} ${x} %s {0}",
    "null": "\x00",
}


def ended(value: Any, ending: str) -> Any:
    """`value` with `ending` behind each of its texts."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value + ending
    if isinstance(value, msgspec.Struct):
        changes = {name: ended(getattr(value, name), ending) for name in value.__struct_fields__ if name != "command"}
        return msgspec.structs.replace(value, **changes)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: ended(getattr(value, field.name), ending) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changes)
    if isinstance(value, dict):
        return {key: ended(one, ending) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(ended(one, ending) for one in value)
    return value


def report(folder: Path, form: str, ending: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The report of a run whose texts have this ending, as the command writes it."""
    run = folder / "run"
    run.mkdir(parents=True)
    encode = msgspec.json.Encoder().encode
    (run / JOURNAL).write_bytes(b"".join(encode(ended(event, ending)) + b"\n" for event in journals.fixed()))
    assert main(["report", str(run), "--format", form]) == 0
    return capsys.readouterr().out


class _Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its comments."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[object] = set()
        self.acting: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.add((tag, *(name for name, _ in attrs)))
        self.acting[tag] += tag in ("a", "form", "iframe", "img", "link", "meta", "script", "style", "title")

    def handle_comment(self, data: str) -> None:
        self.kinds.add(data)


def elements(page: str) -> object:
    """Those that do something, by their number; of the others, which depend on how long a text is, no kind is new."""
    parser = _Elements()
    parser.feed(page)
    return parser.acting, parser.kinds <= _page_kinds()


@cache
def _page_kinds() -> set[object]:
    parser = _Elements()
    for ending in (HARMLESS, HARMLESS * 40):
        parser.feed(html.render(fold(ended(event, ending) for event in journals.fixed())))
    return parser.kinds


_MARKUP: Any = MarkdownIt("gfm-like")
_MARKUP.linkify.set({"fuzzy_link": False, "fuzzy_email": False}).add("//", None)  # as GitHub


def tokens(document: str) -> object:
    """What a Markdown renderer makes of it, by number: all but text and code."""
    found: Counter[str] = Counter()
    for block in _MARKUP.parse(document):
        found[block.type] += 1
        found.update(one.type for one in block.children or ())
    for kind in ("text", "text_special", "softbreak", "code_inline"):
        del found[kind]
    return found


def xml(document: str) -> list[object]:
    return [(element.tag, sorted(element.attrib)) for element in ElementTree.fromstring(document).iter()]


def keys(document: str) -> object:
    """JSON with each of its values replaced by its type."""

    def typed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: typed(one) for key, one in value.items()}
        return [typed(one) for one in value] if isinstance(value, list) else type(value).__name__

    return typed(json.loads(document))


def commands(document: str) -> list[object]:
    """Annotations by their kind and the names of what they say."""
    return [[word.partition("=")[0] for word in line.split("::")[1].split(",")] for line in document.splitlines()]


BUILT_OF: dict[str, Callable[[str], object]] = {
    "github": commands,
    "html": elements,
    "json": keys,
    "junit": xml,
    "markdown": tokens,
    "sarif": keys,
}


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("form", BUILT_OF)
def test_a_document_is_built_alike_whatever_its_texts_hold(
    tmp_path: Path, form: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    built_of = BUILT_OF[form]
    harmless = report(tmp_path / "a", form, HARMLESS, capsys)
    hostile = report(tmp_path / "b", form, ENDINGS[kind], capsys)
    assert built_of(hostile) == built_of(harmless)


@pytest.mark.parametrize("kind", ["terminal", "direction", "separators", "null"])
@pytest.mark.parametrize("form", ["text", "github", "markdown", "html"])
def test_no_text_steers_a_terminal_or_turns_a_line(
    tmp_path: Path, form: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = report(tmp_path, form, ENDINGS[kind], capsys)
    assert [line for line in said.split("\n") if not line.isprintable()] == []


def test_every_format_is_asked() -> None:
    assert {*BUILT_OF, "text"} == set(formats())
