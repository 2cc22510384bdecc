"""Where the ranks of a launched program meet: copies that live at the same time must not meet at the same port.

`torchrun` on one host takes a free port by itself; the others, and all that are told a port, take a fixed one, and the
second copy would fail with "address already in use".

A port that was merely found free may be another's by the time that a launcher, seconds later, listens at it. So ports
are held from the choice to the end of the copy: bound, not listening, and with SO_REUSEADDR, as the stores of torch
and of its launchers listen. Linux lets those in, and gives a held port to nobody who asks for just any (`ip-sysctl`:
`ip_autobind_reuse`, which is off unless an administrator turns it on).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath

__all__ = ["held_port", "with_own_port"]

PORT_VARIABLES = ("MASTER_PORT", "MAIN_PROCESS_PORT")
"""By which ranks, or accelerate, are told."""

_FLAG = re.compile(r"--(?:master|main_process|main-process)[-_]port")
_ENDPOINT = re.compile(r"--rdzv[-_]endpoint")
_HERE = re.compile(r"(localhost|127\.0\.0\.1|0\.0\.0\.0|\[?::1\]?):\d+")
_ASKED = {"accelerate": "--main_process_port", "deepspeed": "--master_port"}
"""Launchers that take a fixed port where none is given, and the flag that gives one."""


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this host that is kept from others meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield int(held.getsockname()[1])


def with_own_port(words: Sequence[str], environment: Mapping[str, str], port: int) -> tuple[list[str], dict[str, str]]:
    """The command and its environment with `port` in the place of any port of this host that they name."""
    found: list[str] = []
    before, told = "", False
    for word in words:
        flag, equals, value = word.partition("=")
        if _FLAG.fullmatch(flag) and equals:
            word, told = f"{flag}={port}", True
        elif _FLAG.fullmatch(before):
            word, told = str(port), True
        elif _ENDPOINT.fullmatch(flag) and _HERE.fullmatch(value):
            word = f"{flag}={value.rpartition(':')[0]}:{port}"
        elif _ENDPOINT.fullmatch(before) and _HERE.fullmatch(word):
            word = f"{word.rpartition(':')[0]}:{port}"
        found.append(word)
        before = word
    launcher = next((at for at, word in enumerate(found[:3]) if PurePath(word).name in _ASKED), None)
    if launcher is not None and not told:
        # accelerate has a word of its own before the flags: `accelerate launch`.
        at = launcher + (2 if found[launcher + 1 : launcher + 2] == ["launch"] else 1)
        found[at:at] = [_ASKED[PurePath(found[launcher]).name], str(port)]
    return found, {**environment, **{name: str(port) for name in PORT_VARIABLES if name in environment}}
