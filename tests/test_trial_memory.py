"""How many processes of a program may run side by side."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from diagnose.model import Facts
from diagnose.trace import Trace
from diagnose.trace.schema import Counters
from diagnose.trial.memory import Memory, at_once, while_watched

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores and 10 GiB of free memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))


def test_as_many_run_at_once_as_there_are_cores_and_twice_the_memory_for() -> None:
    assert at_once(Memory(host_bytes=GIB), 3) == 3
    assert at_once(Memory(host_bytes=GIB), 9) == 4
    assert at_once(Memory(host_bytes=2 * GIB), 3) == 2
    assert at_once(Memory(host_bytes=40 * GIB), 3) == 1


def test_on_a_device_there_must_be_room_for_each_with_its_context() -> None:
    seen = Memory(host_bytes=GIB // 2, device_bytes=80 * GIB, free_bytes=60 * GIB, reserved_bytes=12 * GIB)
    assert at_once(seen, 4) == 2
    assert at_once(seen, 4, 1.0) == 4


def test_where_nothing_is_known_they_run_one_after_the_other() -> None:
    assert at_once(Memory(host_bytes=GIB, device_bytes=80 * GIB), 3) == 1
    assert at_once(Memory(), 3) == 1


def watched(*resident: float, **more: object) -> Trace:
    counters = Counters.build({"name": [0] * len(resident), "value": resident})
    return Trace("rank", names=("host.rss_bytes",), counters=counters, **more)  # type: ignore[arg-type]


def test_a_watched_program_without_a_device_holds_the_most_that_was_read_on_all_ranks() -> None:
    assert while_watched([watched(1.0, 3.0, 2.0), watched(5.0)]).host_bytes == 8


def test_a_program_with_a_device_or_without_readings_is_not_known() -> None:
    assert while_watched([watched(1.0, facts=Facts(device_name="some GPU"))]) == Memory()
    assert while_watched([watched()]) == while_watched([Trace("rank")]) == while_watched([]) == Memory()
