"""Host counters of one rank: its process, its workers, and what else the machine is busy with.

CPU is in percent of one core, so that 104 means a little more than one core. Read from the parent's side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

from diagnose.collect.run_queue import RunQueue

_TREE_EVERY = 5
"""Readings between two looks for new children: walking the process table costs more than all the rest."""


class Host:
    """The process tree of one rank."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._workers: dict[int, psutil.Process] = {}
        self._fresh: set[int] = set()  # whose CPU is not known before the next reading
        self._readings = 0
        self._run_queue = RunQueue(pid)
        self._root.cpu_percent(None)
        psutil.cpu_percent(None)
        self._find_workers()

    def read(self) -> dict[str, float]:
        """The counters since the last call. Raises psutil.NoSuchProcess when the process has gone."""
        self._readings += 1
        self._fresh.clear()
        rss = self._root.memory_info().rss
        if rss == 0:  # it has ended, and nobody has waited for it yet
            raise psutil.NoSuchProcess(self._root.pid)
        if self._readings % _TREE_EVERY == 0:
            self._find_workers()
        own = self._root.cpu_percent(None)
        workers = dict(self._of_workers())
        busy = [cpu for pid, (cpu, _) in workers.items() if pid not in self._fresh]
        tree = own + sum(busy)
        machine = psutil.cpu_percent(None) * (psutil.cpu_count() or 1)
        values = {
            "host.cpu": tree,
            "host.process_cpu": own,
            "host.others_cpu": max(0.0, machine - tree),
            "host.rss_bytes": float(rss + sum(memory for _, memory in workers.values())),
            "host.workers": float(len(workers)),
            "host.load": os.getloadavg()[0],
        }
        if (queued := self._run_queue.queued_percent()) is not None:
            values["host.queued"] = queued
        if busy:
            values["host.workers_cpu"] = sum(busy)
            values["host.busiest_worker_cpu"] = max(busy)
        return values

    @property
    def pids(self) -> set[int]:
        """The process and the children of it that are known."""
        return {self._root.pid, *self._workers}

    def _find_workers(self) -> None:
        found = {child.pid: child for child in self._root.children(recursive=True)}
        for pid in set(self._workers) - set(found):
            del self._workers[pid]
        for pid, child in found.items():
            if pid not in self._workers:
                self._workers[pid] = child
                self._fresh.add(pid)

    def _of_workers(self) -> Iterable[tuple[int, tuple[float, int]]]:
        for pid, child in list(self._workers.items()):
            try:
                yield pid, (child.cpu_percent(None), child.memory_info().rss)
            except psutil.Error:
                del self._workers[pid]
