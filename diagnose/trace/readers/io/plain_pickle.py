"""Opens pickles that hold plain data and nothing else: dictionaries, lists, texts, numbers.

A pickle is a program. Before it runs, every instruction is looked at: those that name, call or build anything refuse
the whole file, and so do tables and lengths that would take more memory than the file's size justifies. What passes is
run by the standard library with every door to globals shut.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

_SPARSE = 8
"""A container takes at least so many bytes of an honest pickle: 20 in the densest snapshots seen."""
_ALLOWANCE = 4096  # containers that a small file may hold in any case

# Integers have at most nine bytes, so that few have equal hashes.
_INTEGER = rb"(?:K.|M..|J.{4}|" + b"|".join(rb"\x8a\x%02x.{%d}" % (n, n) for n in range(10)) + b")"
# Tuples hold integers only, so that none can nest: hashing a deep one overruns the interpreter's stack.
_TUPLES = rb"%b\x85|%b{2}\x86|%b{3}\x87|\(%b{0,16}t" % (_INTEGER, _INTEGER, _INTEGER, _INTEGER)
# Instructions whose length does not depend on their operand; the commonest come first.
_RUN = re.compile(
    rb"(?:h.|j.{4}|\x94|[}\](aseuN)\x88\x89]|" + _TUPLES + rb"|" + _INTEGER + rb"|G.{8}|q.|\x95.{8}|\x80[\x02-\x05])++",
    re.DOTALL,
)
_LENGTH_BYTES = {0x8C: 1, ord("X"): 4, 0x8D: 8, ord("C"): 1, ord("B"): 4, 0x8E: 8}
_LONG_BINPUT, _STOP = ord("r"), ord(".")
_DAMAGE = (pickle.UnpicklingError, EOFError, LookupError, ArithmeticError, TypeError, ValueError, AttributeError)
_CALLS = frozenset(b"ciRoPQb\x81\x82\x83\x84\x92\x93")


class NotPlain(Exception):
    """The pickle is damaged, or holds more than plain data; the message says which, to follow the file's name."""


def plain_data(data: bytes) -> Any:
    """Return the contents of a pickle of plain data. Raises NotPlain for any other, without having run an instruction
    of it.
    """
    _look_through(data)
    try:
        return _Shut(io.BytesIO(data)).load()
    except _DAMAGE as error:
        raise NotPlain(f"is a damaged pickle ({error})") from error
    except MemoryError:
        raise NotPlain("needs more memory than there is; record a shorter history") from None


def _look_through(data: bytes) -> None:
    """Raise NotPlain unless every instruction up to the end is harmless."""
    containers = sum(data.count(byte) for byte in (b"}", b"]"))  # bytes of texts and numbers too: an upper bound
    if containers > len(data) // _SPARSE + _ALLOWANCE:
        raise NotPlain("is a pickle of hardly anything but empty containers, which no profiler writes")
    position, end = 0, len(data)
    while position < end:
        run = _RUN.match(data, position)
        position = run.end() if run else position
        if position >= end:
            break
        code = data[position]
        if code == _STOP:
            return
        position = _past_operand(data, position, code)
    raise NotPlain("is a pickle that ends in the middle; write it again")


def _past_operand(data: bytes, position: int, code: int) -> int:
    """The place after an instruction with a text or an index."""
    if code == _LONG_BINPUT:
        index = int.from_bytes(data[position + 1 : position + 5], "little")
        if index > position:  # the table of shared objects grows to the largest index, used or not
            raise NotPlain("is a pickle that asks for more memory than its size justifies")
        return position + 5
    width = _LENGTH_BYTES.get(code)
    if width is not None:
        start = position + 1 + width
        return start + int.from_bytes(data[position + 1 : start], "little")
    if code in _CALLS:
        raise NotPlain("is a pickle that would run code when opened (saved tensors or a model, perhaps); it was not")
    raise NotPlain(f"is a damaged pickle, or none of plain data (at byte {position})")


class _Shut(pickle.Unpickler):
    """An unpickler that gives no access to anything outside the file."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:200])

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 - the signature is given
        raise pickle.UnpicklingError("it names an object outside the file")
