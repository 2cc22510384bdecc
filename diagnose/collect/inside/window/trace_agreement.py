"""How the ranks of a job agree on the step at which all of them open their windows, and on how many they trace.

Rank 0 says so in a file of the run folder. Ranks on other hosts may have a run folder of their own: to them it says so
through the store by which the job's process group was made, and they ask there from a thread of their own, so that the
training thread never waits for a network.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..unlisted_thread import UnlistedThread

WINDOW_AT = "window_at"
"""The file of the run folder that holds the step, and the number of steps to trace."""
AHEAD = 3
"""Steps between saying so and doing so: ranks that exchange gradients are never further apart."""
_ASK_EVERY_S = 0.2
_HEARD_IN_NS = 1_500_000_000
"""The time within which ranks of other hosts have heard."""
_ASK_FOR_S = 600.0


def spans_hosts(world_size: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher says that some ranks of a job are on other hosts."""
    local, nodes = environment.get("LOCAL_WORLD_SIZE", ""), environment.get("SLURM_JOB_NUM_NODES", "")
    return (local.isdigit() and int(local) < world_size) or (nodes.isdigit() and int(nodes) > 1)


class TraceAgreement:
    """The step and the number of steps, said by rank 0 and heard by the others."""

    def __init__(self, folder: Path, distributed: Any, rank: int, world_size: int) -> None:
        self._path = folder / WINDOW_AT
        self._distributed = distributed
        self._spans = spans_hosts(world_size)
        self._rank = rank
        self._heard: tuple[int, int] | None = None
        self._asking: UnlistedThread | None = None

    def say(self, index: int, step_ns: int, steps: int) -> int:
        """Choose the step on rank 0, after step `index`, and tell all others that `steps` are traced from there."""
        ahead = max(AHEAD, -(-_HEARD_IN_NS // max(step_ns, 1))) if self._spans and step_ns else AHEAD
        step = index + ahead
        said = f"{step} {steps}"
        self._path.write_text(said)
        if self._spans:
            with contextlib.suppress(Exception):  # other hosts then open their windows when their own steps are steady
                self._store().set(WINDOW_AT, said)
        return step

    def heard(self) -> tuple[int, int] | None:
        """Return, on the other ranks, the step and the number of steps, once they are known."""
        if self._heard is None and self._path.exists():
            with contextlib.suppress(OSError, ValueError):
                self._heard = _read(self._path.read_text())
        if self._heard is None and self._spans and self._asking is None and self._distributed is not None:
            self._asking = UnlistedThread(self._ask)
            self._asking.start()
        return self._heard

    def _ask(self) -> None:
        pause = threading.Event()
        with contextlib.suppress(Exception):  # the job may end, and its store with it
            store = self._store()
            for _ in range(round(_ASK_FOR_S / _ASK_EVERY_S)):
                if self._heard is not None:
                    return
                if store.check([WINDOW_AT]):
                    self._heard = _read(store.get(WINDOW_AT).decode())
                    return
                pause.wait(_ASK_EVERY_S)

    def _store(self) -> Any:
        """The store of the job's process group, under a prefix of our own."""
        groups = self._distributed.distributed_c10d
        return self._distributed.PrefixStore("diagnose", groups._get_default_store())


def _read(said: str) -> tuple[int, int]:
    step, steps = said.split()
    return int(step), int(steps)
