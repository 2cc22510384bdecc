"""A source file as text, and its way back to bytes: encoding, byte-order mark and line ends are kept."""

from __future__ import annotations

import codecs
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import InputError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The text of a file, line ends untranslated, without its byte-order mark."""

    text: str
    encoding: str
    bom: bool

    def encode(self, text: str) -> bytes:
        """`text` as bytes of this file. Raises InputError where the file's encoding lacks a character."""
        try:
            data = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError("edited text", f"cannot be written in the file's encoding {self.encoding}") from error
        return codecs.BOM_UTF8 + data if self.bom else data


def read_source(path: Path) -> SourceFile:
    """The text of a Python file, decoded as Python would. Raises InputError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, error.strerror or "cannot be read") from error
    return decode_source(data, path)


def text_if_there(path: Path) -> str:
    """Return the text of a file, with a mark for each byte that is none; empty where the file cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def decode_source(data: bytes, path: object = "source") -> SourceFile:
    """Decode a source file's bytes; `path` is for the message."""
    bom = data.startswith(codecs.BOM_UTF8)
    body = data[len(codecs.BOM_UTF8) :] if bom else data
    try:
        # `detect_encoding` raises SyntaxError for a cookie that names no codec.
        encoding, _ = tokenize.detect_encoding(io.BytesIO(body).readline)
        text = body.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise InputError(path, "is not text in the encoding that it declares") from error
    if "\0" in text:
        raise InputError(path, "holds null bytes; it is no source file")
    return SourceFile(text, encoding, bom)
