"""The workers of a Dask cluster: two of our own on this machine, or those of a scheduler that runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from diagnose.cluster.rules import Rules
from diagnose.errors import EnvironmentLacks, UsageError

if TYPE_CHECKING:
    from distributed import Client

LOCAL_WORKERS = 2
CONNECT_S = 10
WORKERS_S = 60
"""How long a scheduler may take to answer, and to have its first worker."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Dask cluster that reads and reduces the ranks."""

    address: str | None = None
    """The address of a running scheduler; None: two workers on this machine, for as long as they are needed."""


def parse(text: str) -> Cluster:
    """`dask` or `dask=ADDRESS`. Raises UsageError for anything else."""
    kind, _, address = text.partition("=")
    if kind != "dask" or text == "dask=":
        raise UsageError(f"--on {text}: write `dask` for two workers here, or `dask=ADDRESS` for a scheduler that runs")
    return Cluster(address or None)


class Workers:
    """A cluster's workers: they apply a function to many items in parallel."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def map(self, work: Callable[[_Item, Rules], _Answer], items: Sequence[_Item], rules: Rules) -> list[_Answer]:
        """Return the items' results, in their order. Raises EnvironmentLacks where the workers cannot run it."""
        from distributed import CancelledError, KilledWorker

        run = uuid4().hex
        keys = [f"diagnose-{run}-{number}" for number in range(len(items))]
        try:
            futures = self._client.map(work, items, rules=rules, key=keys, pure=False) if items else []
            answers: list[_Answer] = self._client.gather(futures)
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # tells of every task that nobody waits for now
            raise
        except KilledWorker as error:
            item = items[int(str(error.task).rpartition("-")[2])]
            named = ", ".join(map(str, item)) if isinstance(item, tuple) else "what was named"
            raise EnvironmentLacks(
                f"{named}: the workers that read it died, most likely for want of memory; give them more"
            ) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "diagnose":
                raise
            raise EnvironmentLacks(
                "the workers have no such diagnose: install this version of diagnose-train there, too"
            ) from error
        except (OSError, CancelledError) as error:
            raise EnvironmentLacks(f"the connection to the Dask scheduler broke: {error}") from error
        return answers


@contextmanager
def workers_of(cluster: Cluster) -> Iterator[Workers]:
    """The workers of a scheduler, or some that end with the context."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise EnvironmentLacks(
            "--on dask needs Dask, which is not installed: pip install 'dask[distributed]'"
        ) from error
    if cluster.address is None:
        with local_scheduler() as address, Client(address, set_as_default=False) as client:
            yield Workers(client)
    else:
        with _connect(cluster.address) as client:
            yield Workers(client)


def _connect(address: str) -> Client:
    """A client of a scheduler that has workers."""
    from distributed import Client
    from distributed.comm.addressing import get_address_host_port

    try:
        # A client that cannot connect complains long after, so that is tried before there is one.
        socket.create_connection(get_address_host_port(address), timeout=CONNECT_S).close()
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise EnvironmentLacks(
            f"no Dask scheduler answers at {address}: start one with `dask scheduler`, or correct the address"
        ) from error
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        client.close()
        raise EnvironmentLacks(
            f"the Dask scheduler at {address} has no workers: start some with `dask worker {address}`"
        ) from error
    return client


@contextmanager
def local_scheduler() -> Iterator[str]:
    """The address of a scheduler with two workers, that listens on the loopback device only."""
    from distributed import LocalCluster

    with TemporaryDirectory(prefix="diagnose-dask-") as scratch:
        try:
            cluster = LocalCluster(
                n_workers=LOCAL_WORKERS,
                threads_per_worker=1,
                host="127.0.0.1",
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},  # else it takes a fixed port
                memory_limit=0,  # a limit would kill a worker that reads a large file, though there is the memory
                local_directory=scratch,
                silence_logs="CRITICAL",
            )
        except (OSError, RuntimeError) as error:
            raise EnvironmentLacks(f"Dask cannot start workers on this machine: {error}; leave out --on") from error
        with cluster:
            yield cluster.scheduler_address
