"""Reads the machine beside a running program and appends to each rank's `counters.jsonl`.

It runs in the parent, so that the program is not disturbed: which process and which GPU a rank uses stands in the
`claim` that the rank's process left.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pynvml

from diagnose.collect import nvml
from diagnose.collect.host import Host
from diagnose.collect.records import CLAIM, COUNTERS

HOST = -1
"""The device number of counters that belong to the host."""


class Counters:
    """The counters of all ranks of one run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: dict[int, _RankCounters] = {}
        self._nvml: bool | None = None

    def read(self) -> dict[int, dict[str, float]]:
        """Read once, append to the files, and give the values per rank; ranks that have ended are left out."""
        readings = {rank: counters.read() for rank, counters in self._ranks.items()}
        # A rank that is new has no counters yet: they are means since the reading before.
        for rank, claim in claims(self._folder).items():
            if rank not in self._ranks:
                has_nvml = self._has_nvml(claim)
                self._ranks[rank] = _RankCounters(self._folder / f"rank{rank}", claim, has_nvml, self._is_ours)
        return {rank: values for rank, values in readings.items() if values}

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is a rank of this run, a child of one, or of this very process."""
        ours = {os.getpid()}.union(*(rank.pids for rank in self._ranks.values()))
        if pid in ours:
            return True
        try:
            return any(parent.pid in ours for parent in psutil.Process(pid).parents())
        except psutil.Error:
            return False

    def _has_nvml(self, claim: dict[str, Any]) -> bool:
        if claim.get("device") is None:
            return False
        if self._nvml is None:
            self._nvml = nvml.available()
        return self._nvml


def claims(folder: Path) -> dict[int, dict[str, Any]]:
    """The claims of the ranks that have taken a step: rank → {"pid", "device"}."""
    found = {}
    for path in sorted(folder.glob(f"rank*/{CLAIM}")):
        number = path.parent.name.removeprefix("rank")
        try:
            claim = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # created, and written in the next moment
        if number.isdigit() and isinstance(claim, dict):
            found[int(number)] = claim
    return found


class _RankCounters:
    def __init__(self, folder: Path, claim: dict[str, Any], has_nvml: bool, is_ours: Callable[[int], bool]) -> None:
        self.pids = {int(claim["pid"])} if "pid" in claim else set()
        self._path = folder / COUNTERS
        self._host: Host | None = None
        self._gpu: nvml.Device | None = None
        self._ordinal = HOST
        try:
            self._host = Host(int(claim["pid"]))
        except psutil.Error:
            return  # it has ended already
        device = claim.get("device")
        if has_nvml and device and device.get("uuid"):
            self._ordinal = int(device["ordinal"])
            try:
                self._gpu = nvml.Device(str(device["uuid"]), is_ours)
            except pynvml.NVMLError:
                self._gpu = None

    def read(self) -> dict[str, float]:
        if self._host is None:
            return {}
        try:
            host = self._host.read()
            self.pids = self._host.pids
        except psutil.Error:
            self._host = self._gpu = None
            return {}
        gpu = self._gpu.read() if self._gpu is not None else {}
        now = time.time_ns()
        lines = [json.dumps({"t": now, "d": HOST, "v": host})]
        if gpu:
            lines.append(json.dumps({"t": now, "d": self._ordinal, "v": gpu}))
        # The rank's own process appends to the same file: one write, so that lines stay whole.
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, ("\n".join(lines) + "\n").encode())
        finally:
            os.close(handle)
        return host | gpu
