"""Rendezvous ports of launched programs: copies that live at the same time must not share one.

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
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import PurePath

PORT_VARIABLES = ("MASTER_PORT", "MAIN_PROCESS_PORT")
"""The variables by which ranks, or accelerate, are told the port."""

_FLAG = re.compile(r"--(?:master|main_process|main-process)[-_]port")
_ENDPOINT = re.compile(r"--rdzv[-_]endpoint")
_HERE = re.compile(r"(localhost|127\.0\.0\.1|0\.0\.0\.0|\[?::1\]?):\d+")
_MEETS = re.compile(r"--(?:standalone|rdzv[-_]\w+|node[-_]rank)")
"""The options with which torch's own launcher is told where ranks meet, or that there are more hosts."""
_HOSTS = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)")
"""The options of torch, accelerate and DeepSpeed for the number of hosts."""
_HOSTS_OF_SLURM = re.compile(r"--nodes|-N")
"""The option of `srun` alone for the number of hosts: Open MPI's `-N` is a number of ranks on each host."""
_ATTACHED = re.compile(r"-N(\d.*)")
_FEWEST = re.compile(r"(\d+)(?:[:-]\d+)?")
"""A number of hosts: `2`, of torch's launcher `1:4`, of Slurm's `1-4`."""
_ELASTIC = re.compile(r"\d+:\d+")
_OWN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_ASKED = {"accelerate": "--main_process_port", "deepspeed": "--master_port"}
"""Launchers that take a fixed port where none is given, and the flag that gives one."""
_OVERLAP = {"SLURM_OVERLAP": "1"}
"""Steps of Slurm 20.11 and later do not share what is allocated, and the second copy would wait for the first."""


def names_several_hosts(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a launcher waits for ranks on more than this host: `--nnodes 2`, `--num_machines=4`, `srun -N2`.

    `--nnodes 1:4` does not: it goes on with those that are there, and one is enough.
    """
    flags = list(_own_flags(words))
    asked = [value for flag, value in flags if _HOSTS.fullmatch(flag)]
    if not asked and _starts(words, _OWN):
        asked = [environment.get("PET_NNODES", "")]
    if _starts(words, {"srun"}):
        allocated = [environment[name] for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES") if name in environment]
        asked += [value for flag, value in flags if _HOSTS_OF_SLURM.fullmatch(flag)] or allocated[:1]
    found = [_FEWEST.fullmatch(value) for value in asked]
    return any(fewest is not None and int(fewest[1]) > 1 for fewest in found)


def _starts(words: Sequence[str], launchers: Set[str]) -> bool:
    """Whether one of `launchers` is among the first words; a module stands behind `python -m`."""
    return any(PurePath(word).name in launchers for word in words[:4])


def _own_flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A launcher's own words, each with what it is given: behind `=`, or else the next word.

    Behind a module's name (`-m`) those of the program cannot be told apart.
    """
    for word, following in takewhile(lambda pair: not pair[0].endswith(".py"), pairwise([*words, ""])):
        attached = _ATTACHED.fullmatch(word)
        flag, equals, value = ("-N", "=", attached[1]) if attached else word.partition("=")
        yield flag, value if equals else following


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this host that is kept from others meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield int(held.getsockname()[1])


def with_own_port(words: Sequence[str], environment: Mapping[str, str], port: int) -> tuple[list[str], dict[str, str]]:
    """The command and its environment with `port` in the place of any port of this host that they name.

    A launcher that would take in other hosts as they come is told that there is this one.
    """
    told = any(_FLAG.fullmatch(flag) for flag, _ in _own_flags(words))
    elastic = any(flag == "--nnodes" and _ELASTIC.fullmatch(value) for flag, value in _own_flags(words))
    found = list(_here(words, port))
    launcher = next((at for at, word in enumerate(found[:3]) if PurePath(word).name in _ASKED), None)
    if launcher is not None and not told:
        # accelerate has a word of its own before the flags: `accelerate launch`.
        at = launcher + (2 if found[launcher + 1 : launcher + 2] == ["launch"] else 1)
        found[at:at] = [_ASKED[PurePath(found[launcher]).name], str(port)]
    own = next((at for at, word in enumerate(found[:4]) if PurePath(word).name in _OWN), None)
    # Alone, torch's launcher takes no other rendezvous of those that it was given.
    alone = elastic or (not told and own is not None and not _meets_elsewhere(found[own + 1 :], environment))
    if own is not None and alone and "--standalone" not in found:
        found.insert(own + 1, "--standalone")
    ports = {name: str(port) for name in PORT_VARIABLES if name in environment}
    return found, {**environment, **ports, **(_OVERLAP if _starts(words, {"srun"}) else {})}


def _here(words: Sequence[str], port: int) -> Iterator[str]:
    """The words with this port for the ports of this host, and with this host for a range of numbers of hosts."""
    before, of_launcher = "", True
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
        elif of_launcher and flag == "--nnodes" and _ELASTIC.fullmatch(value):
            word = "--nnodes=1"
        elif of_launcher and before == "--nnodes" and _ELASTIC.fullmatch(word):
            word = "1"
        of_launcher = of_launcher and not word.endswith(".py")
        yield word
        before = word


def _meets_elsewhere(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether torch's own launcher was told where to meet."""
    elsewhere = any(
        _MEETS.fullmatch(flag) or (flag == "--nnodes" and value != "1") for flag, value in _own_flags(words)
    )
    return elsewhere or any(name.startswith("PET_") for name in environment)  # each stands for a flag
