"""Names what is no trace that can be read here, and says what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable

_WANTED = "a recording of torch.profiler, Nsight Systems or rocprof, or a run folder of diagnose,"
_NSIGHT = (
    "this is an unfinished Nsight Systems recording (.qdstrm), whose format only nsys itself knows; "
    "let the nsys that wrote it finish it, and give the report"
)
_BINARY = {
    ".qdstrm": _NSIGHT,
    ".ncu-rep": "this is an Nsight Compute report, whose format only ncu itself knows; "
    "give what this prints: ncu --import FILE --page raw --csv",
}


def explain(head: bytes, suffix: str = "") -> str:
    """One sentence on what a file is that no reader recognised, from its first bytes, decompressed.

    The name's suffix helps only where a format has no bytes of its own to know it by.
    """
    if suffix.lower() in _BINARY and not _is_text(head[:4096]):
        return _BINARY[suffix.lower()]
    for recognises, sentence in _FOREIGN:
        if recognises(head):
            return sentence
    return f"this is no trace; {_WANTED} is needed"


def _starts(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magic)


def _matches(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda head: compiled.match(head) is not None


def _is_comma_separated(head: bytes) -> bool:
    first, *rest = head.split(b"\n", 2)
    alike = not rest or not rest[0].strip() or rest[0].count(b",") >= first.count(b",")  # prose has commas, too
    is_table = first.count(b",") >= 2 and not first.lstrip().startswith((b"{", b"[")) and b' = "' not in first
    return is_table and alike and _is_text(first)


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and sum(byte < 9 for byte in head) == 0


def _database_with(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern)
    return lambda head: head.startswith(_SQLITE) and compiled.search(head) is not None


_SQLITE = b"SQLite format 3\0"
_JSON = rb"(?:\xef\xbb\xbf)?\s*"

_FOREIGN: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: not head.strip(), "the file is empty; the program that wrote it probably ended too early"),
    (
        _starts(b"version https://git-lfs.github.com/spec/"),
        "this is a Git LFS pointer, not the file itself; fetch it with: git lfs pull",
    ),
    (
        _starts(b"\x1f\x8b"),
        "this is gzip within gzip; decompress it once",
    ),
    (
        _database_with(rb"view_op_nodes"),
        "this is an SQLite database of DLProf, which has sums but no timeline; "
        "give the Nsight Systems recording that it was made from",
    ),
    (
        _database_with(rb"CUPTI_ACTIVITY_KIND_|TARGET_INFO_|rocpd_"),
        "this is an SQLite database of a profiler, but it is damaged or cut off; export or copy it again",
    ),
    (
        _database_with(rb"CREATE TABLE"),
        "this is an SQLite database, but of no profiler that is known; "
        "those of Nsight Systems (nsys export --type sqlite) and rocprof are read",
    ),
    (
        _starts(_SQLITE),
        "this is an SQLite database that is empty or damaged; export or copy it again",
    ),
    (
        _matches(rb"(?:[^\0]{0,20000}\n)?\W{0,3}\*\* [^\n]{1,200} \(\w+\):"),
        "this is the console output of nsys stats: sums without a timeline; "
        "give the recording itself, exported with: nsys export --type sqlite",
    ),
    (
        _starts(b"PK\x03\x04"),
        "this is a zip archive (saved tensors, perhaps); unpack it and give the trace in it, if there is one",
    ),
    (_starts(b"QDSTRM"), _NSIGHT),
    (
        _matches(rb"\x80[\x02-\x05]"),
        "this is a pickle (saved tensors, perhaps), no memory snapshot; it was not opened, as pickles can run code",
    ),
    (
        _matches(_JSON + rb'\{.{0,400}"schema"\s*:\s*"\d.*"nodes"\s*:'),
        "this is a PyTorch execution trace: it has no times of the device; give the torch.profiler trace of the run",
    ),
    (
        _matches(_JSON + rb"\[\s*\["),
        f"this is a JSON list of lists, but no memory timeline that torch.profiler writes; {_WANTED} is needed",
    ),
    (
        _matches(rb"\{[^\n]*\}\r?\n\{"),
        f"this is JSON with an object on each line (a log, perhaps), no trace; {_WANTED} is needed",
    ),
    (
        _matches(_JSON + rb"[\[{]"),
        f"this is JSON, but no trace: it has no traceEvents; {_WANTED} is needed",
    ),
    (
        _matches(rb"\xff\xfe|\xfe\xff"),
        "this is text in UTF-16; JSON is UTF-8, so convert it first",
    ),
    (
        lambda head: head[:1] == b"\n" and not _is_text(head[:4096]),
        "this is a protobuf (an XPlane of JAX or a Chakra recording), which is not read; "
        "export JSON with torch.profiler's export_chrome_trace",
    ),
    (
        _is_comma_separated,
        f"this is a table of comma-separated values, not a timeline that is read; {_WANTED} is needed",
    ),
    (lambda head: _is_text(head[:4096]), f"this is plain text, not a trace; {_WANTED} is needed"),
    (lambda head: True, f"this is a binary file of a kind that is not known; {_WANTED} is needed"),  # noqa: ARG005
)
