"""One of several parts of a benchmark's work, for machines that share it: `--part 2/4` is every fourth item from the
second on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

_Item = TypeVar("_Item")


class Part(NamedTuple):
    """The I-th of N."""

    number: int
    """From 1."""
    total: int

    def of(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """The items of this part; those of all parts are all items, each once."""
        return items[self.number - 1 :: self.total]


def read_part(text: str) -> Part:
    """Read `I/N`. Raises ArgumentTypeError for what is none."""
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, with I from 1 to N")
    return Part(int(number), int(total))


def add_part_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Give a command the option, which is all of the work unless it is given."""
    parser.add_argument("--part", type=read_part, default=Part(1, 1), metavar="I/N", help=f"one of N parts of {what}")
