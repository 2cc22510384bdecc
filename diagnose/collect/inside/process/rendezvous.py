"""Lets the ranks of a trial's copy meet at a place of their own, and wait for each other through long rests.

Copies of one program live at the same time. A port or a file that the program itself names (`init_method="tcp://…"`,
`os.environ["MASTER_PORT"] = "12355"` before `mp.spawn`) is replaced by one of this copy's: the recipe has its `ports`.
Ports that a launcher gave are the launcher's, and already of this copy alone.

A copy that rests is stopped for as long as another one runs. Time limits of process groups go on meanwhile, so they are
raised: what hangs in a trial is ended by the trial's own limit.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..imports import after_import
from ..transparency import unseen

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

PATIENCE = timedelta(days=1)
_MADE_BY = ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")


def meet_apart(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Install both, where the recipe names ports."""
    ports = recipe.get("ports")
    if ports:
        hub.on_torch(lambda _torch: after_import("torch.distributed.rendezvous", Place(ports).give_to))
        hub.on_torch(lambda torch: _be_patient(getattr(torch, "distributed", None)))


class Place:
    """Stands before the stores of `torch.distributed.rendezvous`."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._named: list[int] = []

    def give_to(self, rendezvous: ModuleType) -> None:
        """Replace the two kinds of store that a program can name the place of."""
        stores: Any = rendezvous
        tcp, file = getattr(stores, "TCPStore", None), getattr(stores, "FileStore", None)
        if tcp is not None:
            stores.TCPStore = self._at_own_port(tcp)
        if file is not None:
            stores.FileStore = self._in_own_file(file)

    def _at_own_port(self, store: Callable[..., Any]) -> Callable[..., Any]:
        def open_store(host_name: str, port: int, *args: Any, **kwargs: Any) -> Any:
            return store(host_name, self.own(port), *args, **kwargs)

        return open_store

    def _in_own_file(self, store: Callable[..., Any]) -> Callable[..., Any]:
        def open_store(path: str, *args: Any, **kwargs: Any) -> Any:
            return store(f"{path}.{self._ports[0]}", *args, **kwargs)

        return open_store

    def own(self, port: int) -> int:
        """The port in the place of one that the program names, the same in every rank.

        Where it names more of them than this copy holds, the rest are left as they are.
        """
        if port == 0 or port in self._ports or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return port
        if port not in self._named:
            self._named.append(port)
        at = self._named.index(port)
        # The ranks of a launcher that was given one of them know it by this variable: it is taken.
        free = [one for one in self._ports if str(one) != os.environ.get("MASTER_PORT")]
        return free[at] if at < len(free) else port


def _be_patient(distributed: Any) -> None:
    """Raise the time limits of process groups, those that are given and those that are not."""
    if distributed is None or not distributed.is_available():
        return
    groups = distributed.distributed_c10d
    for name in _MADE_BY:
        made = getattr(groups, name, None)
        if made is not None and "timeout" in inspect.signature(made).parameters:
            patient = _patient(made)
            setattr(groups, name, patient)
            if getattr(distributed, name, None) is made:
                setattr(distributed, name, patient)


def _patient(made: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(made)

    @unseen
    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments["timeout"] = PATIENCE
        return made(*given.args, **given.kwargs)

    return make
