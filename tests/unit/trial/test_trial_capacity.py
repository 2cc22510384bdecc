"""How many processes of a program may run side by side."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from diagnose.model import Facts
from diagnose.trace import Trace
from diagnose.trace.schema import Counters
from diagnose.trial.process import host_memory
from diagnose.trial.process.capacity import (
    Memory,
    at_once,
    fills_host,
    fitting,
    room_ahead,
    room_to_start,
    uncrowded,
    while_watched,
)

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores and 10 GiB of free memory, and no container that has less."""
    monkeypatch.setattr(host_memory, "_LIMITS", ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))


def test_as_many_run_at_once_as_there_are_cores_and_twice_the_memory_for() -> None:
    assert at_once(Memory(host_bytes=GIB), 3) == 3
    assert at_once(Memory(host_bytes=GIB), 9) == 4
    assert at_once(Memory(host_bytes=2 * GIB), 3) == 2
    assert at_once(Memory(host_bytes=40 * GIB), 3) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_no_more_memory_than_it_was_given(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [("limit", "used", "total_inactive_file" if version == 1 else "inactive_file")]
    monkeypatch.setattr(host_memory, "_LIMITS", [tuple(str(tmp_path / name) for name in names[0][:2]) + names[0][2:]])
    assert host_memory.free_bytes() == 10 * GIB  # no limit to be read
    (tmp_path / "limit").write_text(f"{8 * GIB}\n")
    (tmp_path / "used").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\n{names[0][2]} {GIB}\n")
    assert host_memory.free_bytes() == 4 * GIB
    assert at_once(Memory(host_bytes=GIB), 3) == 2
    (tmp_path / "limit").write_text("max\n" if version == 2 else f"{1 << 62}\n")
    assert host_memory.free_bytes() == 10 * GIB


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


def test_processes_that_need_more_than_others_take_the_room_of_several() -> None:
    seen = Memory(host_bytes=GIB // 8, device_bytes=80 * GIB, free_bytes=60 * GIB, reserved_bytes=12 * GIB)
    assert fitting(seen, [1.3, 1.3, 1.3, 1.3]) == 4
    assert fitting(seen, [1.3, 1.3, 2.0]) == 3
    assert fitting(seen, [1.3, 1.3, 2.0, 2.0]) == 3
    assert fitting(seen, [9.0]) == 1


def test_a_program_that_fills_the_host_by_itself_starts_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processes of which each keeps all cores busy would wait for each other, and none would be ready sooner."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    for busy_cores, early, together in (
        (None, True, True),
        (1.2, True, True),
        (8.0, True, True),
        (11.0, False, True),
        (15.9, False, False),
    ):
        seen = Memory(host_bytes=GIB // 8, busy_cores=busy_cores)
        assert room_ahead(seen, None) is early
        assert room_to_start(seen, [1.2, 1.4]) is early
        assert fills_host(seen) is not together


def test_what_keeps_the_host_busy_is_the_usual_reading_of_all_ranks_and_their_workers() -> None:
    names = ("host.rss_bytes", "host.cpu")
    counters = Counters.build({"name": [0, 1, 1, 1], "value": [3.0, 100.0, 1500.0, 1400.0]})
    rank = Trace("rank", names=names, counters=counters)
    assert while_watched([rank, rank]) == Memory(host_bytes=6, busy_cores=28.0)
    assert uncrowded(Memory(host_bytes=4), while_watched([rank])).busy_cores == 14.0


def test_room_that_another_process_held_meanwhile_is_room() -> None:
    before = Memory(reserved_bytes=10, free_bytes=90)
    assert uncrowded(Memory(reserved_bytes=20, free_bytes=60), before).free_bytes == 80
    assert uncrowded(Memory(reserved_bytes=20, free_bytes=85), before).free_bytes == 85
    assert uncrowded(Memory(host_bytes=3), before) == Memory(host_bytes=3)


def test_a_program_with_a_device_is_known_by_what_its_one_process_held_and_what_was_left() -> None:
    names = ("host.rss_bytes", "allocator.peak_reserved_bytes", "gpu.memory_used_bytes")
    counters = Counters.build({"name": [0, 1, 2, 1, 2], "value": [3.0, 10.0, 12.0, 20.0, 25.0]})
    facts = Facts(device_name="some GPU", device_memory_bytes=100)
    rank = Trace("rank", names=names, counters=counters, facts=facts)
    assert while_watched([rank]) == Memory(None, 20, 75, 100, 3)
    assert while_watched([rank, rank]) == Memory()  # its ranks may share a device or not


def test_a_program_without_readings_is_not_known() -> None:
    assert while_watched([watched(1.0, facts=Facts(device_name="some GPU"))]) == Memory()
    assert while_watched([watched()]) == while_watched([Trace("rank")]) == while_watched([]) == Memory()
