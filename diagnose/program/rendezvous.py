"""Where the ranks of a launched program meet: copies that live at the same time must not meet at the same port.

Every launcher takes a fixed port, and the second copy would fail with "address already in use". Of torch's own those
after 2.11 take a free one where there is one host and nothing else is said; earlier ones do with `--standalone`.

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
from itertools import pairwise, takewhile
from pathlib import PurePath

__all__ = ["held_port", "names_several_hosts", "with_own_port"]

PORT_VARIABLES = ("MASTER_PORT", "MAIN_PROCESS_PORT")
"""By which ranks, or accelerate, are told."""

_FLAG = re.compile(r"--(?:master|main_process|main-process)[-_]port")
_ENDPOINT = re.compile(r"--rdzv[-_]endpoint")
_HERE = re.compile(r"(localhost|127\.0\.0\.1|0\.0\.0\.0|\[?::1\]?):\d+")
_MEETS = re.compile(r"--(?:standalone|rdzv[-_]\w+|node[-_]rank)")
"""With any of these torch's own launcher was told where ranks meet, or that there are more hosts."""
_SEVERAL = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)")
"""Of torch, accelerate and DeepSpeed."""
_ONE_HOST = frozenset({"1", "1:1"})
_OWN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_ASKED = {"accelerate": "--main_process_port", "deepspeed": "--master_port"}
"""Launchers that take a fixed port where none is given, and the flag that gives one."""


def names_several_hosts(words: Sequence[str]) -> bool:
    """Whether the words of a launcher ask for ranks on more than this host: `--nnodes 2`, `--num_machines=4`."""
    for flag, value in _own_flags(words):
        if _SEVERAL.fullmatch(flag):
            most = value.rpartition(":")[2]
            return most.isdecimal() and int(most) > 1
    return False


def _own_flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A launcher's own words, each with what it is given: behind `=`, or else the next word.

    Behind a module's name (`-m`) those of the program cannot be told apart.
    """
    for word, following in takewhile(lambda pair: not pair[0].endswith(".py"), pairwise([*words, ""])):
        flag, equals, value = word.partition("=")
        yield flag, value if equals else following


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
    before = ""
    told = any(_FLAG.fullmatch(flag) for flag, _ in _own_flags(words))
    for word in words:
        flag, equals, value = word.partition("=")
        if _FLAG.fullmatch(flag) and equals:
            word = f"{flag}={port}"
        elif _FLAG.fullmatch(before):
            word = str(port)
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
    own = next((at for at, word in enumerate(found[:4]) if PurePath(word).name in _OWN), None)
    if own is not None and not told and not _meets_elsewhere(found[own + 1 :], environment):
        found.insert(own + 1, "--standalone")
    return found, {**environment, **{name: str(port) for name in PORT_VARIABLES if name in environment}}


def _meets_elsewhere(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether torch's own launcher was told where to meet."""
    elsewhere = any(
        _MEETS.fullmatch(flag) or (flag == "--nnodes" and value not in _ONE_HOST) for flag, value in _own_flags(words)
    )
    return elsewhere or any(name.startswith("PET_") for name in environment)  # each stands for a flag
