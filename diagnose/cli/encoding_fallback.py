"""Replacements for characters that the stream's encoding lacks: `->` for an arrow, `\\xff` for a stray byte.

A terminal or a pipe need not speak UTF-8 (`LC_ALL=en_US.ISO-8859-1`, `PYTHONIOENCODING=ascii`), and a file name need
not be text at all. Neither is a reason to end in an error, nor to print question marks where figures had a unit.
"""

from __future__ import annotations

import codecs
from typing import TextIO

SPELT_OUT = "diagnose.spelt-out"
"""The name under which codecs know `spell_out`."""

_PLAIN = {
    "·": "|",
    "−": "-",
    "–": "-",
    "—": "-",
    "→": "->",
    "←": "<-",
    "↓": "v",
    "↑": "^",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "≠": "!=",
    "±": "+/-",
    "×": "x",
    "µ": "u",
    "…": "...",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "✓": "+",
    "✗": "x",
    "▲": "!",
    "▼": "v",
    "◆": "*",
    "●": "o",
    "○": ".",
    "█": "#",
    "▓": "%",
    "▒": "=",
    "░": ":",
    "╱": "/",
    "╳": "x",
    "┼": "+",
    "│": "|",
    "─": "-",
    "∘": "o",
    "▪": "*",
    "≡": "=",
    "┈": "~",
    "━": "=",
    "■": "#",
}
"""Letters of ours by what they mean, so that a line stays about as wide as it was and bars keep their fills apart."""


def speak(stream: TextIO) -> None:
    """Let `stream` spell out what its encoding lacks; streams that cannot be told are left as they are."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=SPELT_OUT)


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: plain letters for what cannot be encoded, escapes for what has none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter) or _escaped(letter) for letter in lacking), error.end


def _escaped(letter: str) -> str:
    """`\\xff` for a byte of a file name that is no text, `\\u4f60` for a letter without a plain form."""
    code = ord(letter)
    return (
        f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else letter.encode("ascii", "backslashreplace").decode()
    )


codecs.register_error(SPELT_OUT, spell_out)
