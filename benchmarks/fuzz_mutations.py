"""Mutations of the fuzzer: single bytes, and the numbers, nesting and types that formats are made of.

The choices depend on the seed alone, so that a run can be repeated.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

LONGEST_BYTES = 1 << 16

_TOKENS = (
    b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9223372036854775807", b"-9223372036854775808", b"9" * 400, b"1e-400",
    b"null", b"true", b'""', b"{}", b"[]", b"[" * 3000, b'{"a":' * 3000, b'"\\u001b[31m\\ud800"', b"\xff\xfe",
    b"\x1b[2J",
    b"\x00", b"1.5", b"'x'", b"zeroblob(999999)", b"randomblob(9)", b" AS (1) STORED", b" WITHOUT ROWID",
    b";CREATE VIEW ", b";CREATE TRIGGER ", b"cos\nsystem\n(S'false'\ntR.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 0.5, 1e308, float("nan"), float("inf"), 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**400,
    "", "0", "1e5", "nan", "0x1F", "[0, 1]", "x" * 5000, "\x1b[31m", "\ud800", [], {}, [[]], [None], {"": {}},
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Changes that know numbers, nesting and types, beside those of single bytes; the first byte stays."""
    chance = random.Random(seed)
    form, rest = data[:1] or b"\0", data[1:]
    kinds = chance.choice((_MUTATIONS, (_another_value,)))
    for _ in range(chance.choice((1, 1, 2, 4))):
        rest = chance.choice(kinds)(rest, chance)
    return (form + rest)[:most]


def _another_number(data: bytes, chance: random.Random) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return _another_token(data, chance)
    one = chance.choice(numbers)
    return data[: one.start()] + chance.choice(_TOKENS) + data[one.end() :]


def _another_value(data: bytes, chance: random.Random) -> bytes:
    """Somewhere in a JSON document, something else: the document stays sound, its meaning does not."""
    try:
        whole = json.loads(data)
        places = list(_places(whole))
    except (ValueError, RecursionError):
        return _another_token(data, chance)
    for _ in range(chance.choice((1, 1, 3))):
        holder, key = chance.choice(places) if places else ({}, "")
        if chance.random() < 0.2:
            holder.pop(key, None) if isinstance(holder, dict) else holder.append(holder[0] if holder else 0)
        else:
            holder[key] = chance.choice((*_VALUES, _copy(chance.choice(places)[0] if places else None)))
    return json.dumps(whole).encode()[:LONGEST_BYTES]


def _copy(node: Any) -> Any:
    """A part of the document to be put elsewhere; nothing must contain itself."""
    text = json.dumps(node)
    return json.loads(text) if len(text) < LONGEST_BYTES // 8 else None


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        yield node, key
        yield from _places(inner)


def _another_token(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(_TOKENS) + data[at + chance.choice((0, 0, 1, 8)) :]


def _copied(data: bytes, chance: random.Random) -> bytes:
    begin, at = chance.randint(0, len(data)), chance.randint(0, len(data))
    return data[:at] + data[begin : begin + chance.randint(1, 400)] + data[at:]


def _cut(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + data[at + chance.randint(1, 200) :]


def _ended(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 2, 8))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(changed)


_MUTATIONS = (_another_number, _another_token, _copied, _cut, _ended, _flipped, _flipped)
