"""One checkpoint is written while another waits: they appear in order, no error is lost, and there is room for both."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from background_saves import Disk, made

GIB = 1 << 30


@pytest.fixture
def shim() -> Any:
    module = made()
    module._has_room_for = lambda _size: True
    return module


@pytest.fixture
def disk(shim: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(shim, monkeypatch)
    yield disk
    disk.let_all_go()
    for thread in shim._saving:
        disk._join(thread)


def step_of(path: Path) -> int:
    return int(torch.load(path)["step"])


def ended(disk: Disk, thread: threading.Thread) -> None:
    """A thread that the test let go has come to its end."""
    disk._join(thread)
    assert not thread.is_alive()


def test_a_second_file_is_written_after_the_first_without_the_program_waiting(
    shim: Any, disk: Disk, tmp_path: Path
) -> None:
    for step in range(2):
        shim.save_in_background({"step": step}, tmp_path / f"{step}.pt")
    assert disk.heard() == "0 begins"
    assert disk.waited_for == []
    disk.let_go(0)
    assert [disk.heard(), disk.heard()] == ["0 is there", "1 begins"]


def test_a_third_waits_for_the_first(shim: Any, disk: Disk, tmp_path: Path) -> None:
    for step in range(3):
        shim.save_in_background({"step": step}, tmp_path / f"{step}.pt")
    assert disk.waited_for == [0]
    assert disk.replaced == [0]


def test_without_room_each_waits_for_the_one_before_it(shim: Any, disk: Disk, tmp_path: Path) -> None:
    shim._has_room_for = lambda _size: False
    for step in range(3):
        shim.save_in_background({"step": step}, tmp_path / f"{step}.pt")
    assert disk.waited_for == [0, 1]
    assert disk.replaced == [0, 1]


def test_a_file_that_fails_does_not_stop_the_next(shim: Any, disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    disk.failing = {0}
    for step in range(2):
        shim.save_in_background({"step": step}, path)
    disk.let_all_go()
    with pytest.raises(OSError, match="no room for 0"):
        shim.finish_saving()
    assert step_of(path) == 1
    assert list(tmp_path.iterdir()) == [path]
    shim.finish_saving()  # what was raised once is not raised again


def test_a_failure_of_the_first_is_raised_while_the_second_is_written(shim: Any, disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    disk.failing = {0}
    for step in range(2):
        shim.save_in_background({"step": step}, path)
    first = shim._saving[0]
    disk.let_go(0)
    ended(disk, first)
    with pytest.raises(OSError, match="no room for 0"):
        shim.save_in_background({"step": 2}, path)
    shim.save_in_background({"step": 3}, path)  # by a program that goes on
    assert disk.replaced == disk.waited_for == []
    disk.let_all_go()
    shim.finish_saving()
    assert disk.replaced == [1, 3]


def test_of_two_failures_both_are_told(shim: Any, disk: Disk, tmp_path: Path) -> None:
    disk.failing = {0, 1}
    for step in range(2):
        shim.save_in_background({"step": step}, tmp_path / "latest.pt")
    disk.let_all_go()
    with pytest.raises(OSError, match="no room for 1") as raised:
        shim.finish_saving()
    assert str(raised.value.__context__) == "no room for 0"
    assert not list(tmp_path.iterdir())
    shim.finish_saving()


def test_ranks_that_write_one_path_do_not_write_one_file(shim: Any, disk: Disk, tmp_path: Path) -> None:
    shim._rank_of = lambda: (1, 2)
    shim.save_in_background({"step": 0}, tmp_path / "latest.pt")
    other = made()
    other._rank_of = lambda: (0, 2)
    other.save_in_background({"step": 1}, tmp_path / "latest.pt")
    disk.let_all_go()
    shim.finish_saving()
    other.finish_saving()
    assert disk.names[0] != disk.names[1]


def test_files_of_one_stem_are_not_written_into_one(shim: Any, disk: Disk, tmp_path: Path) -> None:
    """Two runs of a search, each with a file of its own in one folder; their names are no suffixes."""
    other = made()
    shim.save_in_background({"step": 0}, tmp_path / "rate-0.1")
    other.save_in_background({"step": 1}, tmp_path / "rate-0.01")
    disk.let_all_go()
    shim.finish_saving()
    other.finish_saving()
    assert disk.names[0] != disk.names[1]
    assert (step_of(tmp_path / "rate-0.1"), step_of(tmp_path / "rate-0.01")) == (0, 1)


def test_ranks_that_never_joined_a_group_are_told_apart(
    shim: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = made()
    for step, one in enumerate((shim, other)):
        monkeypatch.setenv("RANK", str(step))
        one.save_in_background({"step": step}, tmp_path / "latest.pt")
    disk.let_all_go()
    shim.finish_saving()
    other.finish_saving()
    assert disk.names[0] != disk.names[1]


def test_a_newer_file_that_the_program_writes_itself_stays(shim: Any, disk: Disk, tmp_path: Path) -> None:
    """As where Ctrl-C, or a return, leaves the loop without a wait, and what comes then saves under the same name."""
    path = tmp_path / "latest.pt"
    for step in range(2):
        shim.save_in_background({"step": step}, path)
    disk._save({"step": 2}, path)
    disk.let_all_go()
    shim.finish_saving()
    assert disk.replaced == []
    assert step_of(path) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_an_older_file_that_the_program_wrote_itself_does_not(shim: Any, disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    shim.save_in_background({"step": 0}, path)
    disk._save({"step": 1}, path)
    shim.save_in_background({"step": 2}, path)
    disk.let_all_go()
    shim.finish_saving()
    assert step_of(path) == 2


def test_a_save_whose_start_was_interrupted_keeps_its_turn(
    shim: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest.pt"
    start = shim._Save.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shim._Save, "start", interrupted)
        shim.save_in_background({"step": 0}, path)
    shim.save_in_background({"step": 1}, path)
    disk.let_all_go()
    shim.finish_saving()
    assert disk.replaced == [0, 1]


def test_a_state_for_which_no_thread_starts_is_written_at_once(
    shim: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are too many threads, or the program saves while Python ends."""
    path = tmp_path / "latest.pt"

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk.let_all_go()
    for step in range(2):
        shim.save_in_background({"step": step}, path)
    with monkeypatch.context() as patch:
        patch.setattr(shim._Save, "start", refused)
        shim.save_in_background({"step": 2}, path)
    assert torch.load(path) == {"step": 2}
    shim.finish_saving()
    assert list(tmp_path.iterdir()) == [path]


def test_a_signals_handler_that_saves_before_a_thread_has_come_to_life_loses_no_state(
    shim: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest.pt"
    start = shim._Save.start
    handled: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if not handled:
            handled.append(thread)
            shim.save_in_background({"step": 1}, path)
        start(thread)

    disk.let_all_go()
    with monkeypatch.context() as patch:
        patch.setattr(shim._Save, "start", interrupted)
        shim.save_in_background({"step": 0}, path)
    shim.finish_saving()
    assert disk.replaced == [0, 1]
    assert torch.load(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_is_that_of_the_folder_in_which_it_was_given(
    shim: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    shim.save_in_background({"step": 0}, "latest.pt")
    monkeypatch.chdir(tmp_path / "later")
    disk.let_all_go()
    shim.finish_saving()
    assert step_of(tmp_path / "latest.pt") == 0


def test_a_file_is_to_the_byte_what_torch_would_have_written(shim: Any, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    weight = torch.randn(4, 3)
    state = {
        "step": 7,
        "weights": [weight, weight, torch.randn(4, 3).t()],
        "model": torch.nn.Linear(2, 2).state_dict(),
    }
    torch.save(state, tmp_path / "before" / "last.best.pt")
    shim.save_in_background(state, tmp_path / "last.best.pt")
    shim.finish_saving()
    plain = tmp_path / "before" / "last.best.pt"
    assert (tmp_path / "last.best.pt").read_bytes() == plain.read_bytes()


def test_each_file_holds_the_state_of_its_step_in_memory_that_is_used_again(
    shim: Any, disk: Disk, tmp_path: Path
) -> None:
    weight = torch.zeros(3)
    memory = []
    for step in range(4):  # one is written and one waits; the third and the fourth wait for a place
        weight.fill_(step)
        shim.save_in_background({"step": step, "weight": weight}, tmp_path / f"{step}.pt")
        memory.append(shim._saving[-1].buffers[0][1].data_ptr())
    disk.let_all_go()
    shim.finish_saving()
    assert memory[2:] == memory[:2]
    assert len({weight.data_ptr(), *memory}) == 3
    assert [torch.load(tmp_path / f"{step}.pt")["weight"].tolist() for step in range(4)] == [
        [step] * 3 for step in range(4)
    ]
    assert not shim._spare


def test_memory_of_another_shape_is_not_kept(shim: Any) -> None:
    shim.save_in_background({"seen": torch.zeros(3)}, os.devnull + ".absent/a.pt")
    with pytest.raises((OSError, RuntimeError)):
        shim.finish_saving()
    shim._spare["an older state's"] = [torch.zeros(5)]
    shim.save_in_background({"seen": torch.zeros(4)}, os.devnull + ".absent/a.pt")
    assert not shim._spare
    with pytest.raises((OSError, RuntimeError)):
        shim.finish_saving()


def test_a_state_may_be_saved_in_inference_mode_and_outside(shim: Any, tmp_path: Path) -> None:
    weight = torch.zeros(3)
    for step, inference in enumerate((True, False, True)):
        shim._has_room_for = lambda _size: False
        with torch.inference_mode(inference):
            shim.save_in_background({"weight": weight + step}, tmp_path / f"{step}.pt")
    shim.finish_saving()
    assert [torch.load(tmp_path / f"{step}.pt")["weight"][0].item() for step in range(3)] == [0, 1, 2]


def test_the_copies_of_all_devices_are_waited_for(shim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def stream(device: object) -> object:
        def record(event: object) -> object:
            assert event == "event that does not spin"
            return SimpleNamespace(synchronize=lambda: log.append(f"wait for {device}"))

        return SimpleNamespace(record_event=record)

    def write(_state: object, path: str) -> None:
        log.append("write")
        Path(path).touch()

    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: "event that does not spin" if blocking else "event")
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: log.append(f"on {device}"))
    monkeypatch.setattr(torch, "save", write)
    copies = [
        (SimpleNamespace(is_cuda=name != "cpu", device=name), ("kind",), torch.zeros(2))
        for name in ("cuda:0", "cuda:1", "cpu", "cuda:1")
    ]
    save = shim._Save({}, tmp_path / "a.pt", copies, None)
    save.run()
    assert save.error is None
    waits = [log[:2], log[2:4]]
    assert sorted(waits) == [["on cuda:0", "wait for cuda:0"], ["on cuda:1", "wait for cuda:1"]]
    assert log[4:] == ["write"]
    assert save.size == 4 * 2 * 4


def test_a_state_that_stays_on_its_device_leaves_no_room_for_a_second(tmp_path: Path) -> None:
    shim = made()
    state = torch.zeros(2).to_sparse()
    copies: dict[object, Any] = {}
    shim._copied({"state": state, "weight": torch.zeros(2)}, copies, {})
    assert shim._Save({}, tmp_path / "a.pt", copies.values(), None).size == 8
    beside = [*copies.values(), (state, None, torch.zeros(2, device="meta"))]
    assert not shim._has_room_for(shim._Save({}, tmp_path / "a.pt", beside, None).size)


V1, V2 = "/sys/fs/cgroup/memory/", "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("gib", "free", "files", "ranks", "room"),
    [
        (1, 8, {}, 1, True),
        (1, 7.9, {}, 1, False),
        (1, 8, {}, 2, False),
        (1, 99, {f"{V2}//memory.max": 16, f"{V2}//memory.current": 8}, 1, True),
        (1, 99, {f"{V2}//memory.max": 16, f"{V2}//memory.current": 9}, 1, False),
        (1, 99, {f"{V2}//memory.max": "max\n", f"{V2}//memory.current": 9}, 1, True),
        (1, 99, {f"{V2}//job/memory.max": 16, f"{V2}//job/memory.current": 9}, 1, False),
        (1, 99, {f"{V2}//job/step/memory.max": 16, f"{V2}//job/step/memory.current": 9}, 1, False),
        (1, 99, {f"{V1}//job/memory.limit_in_bytes": 16, f"{V1}//job/memory.usage_in_bytes": 9}, 1, False),
        (1, 99, {f"{V1}//memory.limit_in_bytes": 16, f"{V1}//memory.usage_in_bytes": 8}, 1, True),
        (1, 99, {"/proc/self/cgroup": None}, 1, False),
    ],
)
def test_a_second_state_is_copied_where_eight_times_the_state_is_free_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, gib: float, free: float, files: dict[str, Any], ranks: int, room: bool
) -> None:
    shim = made()
    files = {"/proc/self/cgroup": "4:memory:/job/step\n0::/job/step\n"} | files
    files = {
        os.path.normpath(path): str(int(text * GIB)) if isinstance(text, int) else text for path, text in files.items()
    }

    def read(path: str) -> Any:
        text = files.get(os.path.normpath(path))
        if text is None:
            raise FileNotFoundError(path)
        return text

    shim._read = read
    shim._rank_of = lambda: (0, ranks)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": int(free * GIB) // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert shim._has_room_for(gib * GIB) is room


def test_a_host_that_does_not_tell_its_memory_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysconf(_name: str) -> int:
        raise ValueError("unrecognized configuration name")

    shim = made()
    monkeypatch.setattr(os, "sysconf", sysconf)
    assert not shim._has_room_for(0)
