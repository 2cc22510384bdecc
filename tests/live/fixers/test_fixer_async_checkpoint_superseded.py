"""A state that still waits to be written is not written where a newer one is saved to the same path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from background_saves import Disk, made
from watching import LIMIT_S


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "latest.pt"


def begun(shim: Any, disk: Disk, path: Path, **state: object) -> None:
    """A first save, of which the disk is told to wait."""
    shim.save_in_background({"step": 0, **state}, path)
    assert disk.heard() == "0 begins"


def ended(disk: Disk, thread: Any) -> None:
    """A thread comes to its end."""
    disk._join(thread, LIMIT_S)
    assert not thread.is_alive()


def finish(shim: Any, disk: Disk) -> list[int]:
    """The steps whose files appeared, when all are written."""
    disk.let_all_go()
    shim.finish_saving()
    return disk.replaced


def test_of_ten_saves_to_one_path_the_first_and_the_last_are_written(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    for step in range(1, 10):
        shim.save_in_background({"step": step}, path)
    assert disk.waited_for == []
    assert finish(shim, disk) == [0, 9]
    assert sorted(disk.names) == [0, 9]
    assert torch.load(path) == {"step": 9}
    assert list(path.parent.iterdir()) == [path]


def test_the_file_at_the_end_is_to_the_byte_that_of_the_last_save(shim: Any, disk: Disk, path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    begun(shim, disk, path, model=model.state_dict())
    for step in range(1, 4):
        torch.nn.init.constant_(model.weight, step)
        shim.save_in_background({"step": step, "model": model.state_dict()}, path)
    plain = path.parent / "plain" / "latest.pt"
    plain.parent.mkdir()
    disk._save({"step": 3, "model": model.state_dict()}, plain)
    torch.nn.init.zeros_(model.weight)  # training goes on
    assert finish(shim, disk) == [0, 3]
    assert path.read_bytes() == plain.read_bytes()


def test_a_file_that_is_begun_is_written_though_a_newer_is_saved(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    disk.let_go(0)
    assert [disk.heard(), disk.heard()] == ["0 is there", "1 begins"]
    disk._join(shim._saving[0])
    for step in (2, 3):
        shim.save_in_background({"step": step}, path)
    assert disk.waited_for == []
    assert finish(shim, disk) == [0, 1, 3]


def test_a_state_gives_way_or_is_written_and_never_both(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    first, second = shim._saving
    assert not first.gives_way()
    assert second.gives_way()
    assert not second.gives_way()
    ended(disk, second)
    assert finish(shim, disk) == [0]


def test_files_at_different_paths_are_all_written_in_order(shim: Any, disk: Disk, tmp_path: Path) -> None:
    names = ["latest.pt", "best.pt", "latest.pt", "best.pt"]
    for step, name in enumerate(names):
        shim.save_in_background({"step": step}, tmp_path / name)
    assert finish(shim, disk) == [0, 1, 2, 3]


def test_a_path_is_the_same_by_whatever_name(shim: Any, disk: Disk, path: Path) -> None:
    link = path.parent / "link.pt"
    link.symlink_to(path)
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    shim.save_in_background({"step": 2}, link)
    assert finish(shim, disk) == [0, 2]


def test_a_thread_whose_state_gave_way_ends_while_the_first_is_written(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    for step in range(2, 5):
        waiting = shim._saving[1]
        shim.save_in_background({"step": step}, path)
        ended(disk, waiting)
        assert waiting.state is None
    assert disk.replaced == []
    assert finish(shim, disk) == [0, 4]


def test_two_states_are_in_memory_at_most_and_none_is_copied_into_one_being_written(
    shim: Any, disk: Disk, path: Path
) -> None:
    weight = torch.zeros(3)
    memory = []
    begun(shim, disk, path, weight=weight)
    first = shim._saving[0].buffers[0][1].data_ptr()
    for step in range(1, 5):
        weight.fill_(step)
        shim.save_in_background({"step": step, "weight": weight}, path)
        memory.append(shim._saving[-1].buffers[0][1].data_ptr())
        assert not shim._spare
    assert len({weight.data_ptr(), first, memory[0]}) == 3
    assert set(memory) == {memory[0]}
    assert shim._saving[0].state["weight"].tolist() == [0, 0, 0]
    finish(shim, disk)
    assert torch.load(path)["weight"].tolist() == [4, 4, 4]


def test_a_newer_state_needs_no_more_room_than_the_one_that_gives_way(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    shim._has_room_for = lambda _size: False
    shim.save_in_background({"step": 2}, path)
    assert disk.waited_for == []
    assert finish(shim, disk) == [0, 2]


def test_memory_is_used_again_only_when_the_device_has_copied_into_it(
    shim: Any, disk: Disk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream, or another thread's, may be the one that copies the newer state."""
    log: list[str] = []
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    shim._saving[1].copying = {
        name: SimpleNamespace(synchronize=lambda name=name: log.append(f"wait for {name}"))
        for name in ("cuda:0", "cuda:1")
    }
    copied = shim._copied

    def copy(*given: object) -> object:
        log.append("copy")
        return copied(*given)

    monkeypatch.setattr(shim, "_copied", copy)
    shim.save_in_background({"step": 2}, path)
    assert log[:3] == ["wait for cuda:0", "wait for cuda:1", "copy"]
    assert finish(shim, disk) == [0, 2]


def test_an_error_of_the_first_is_raised_and_keeps_no_later_state_from_being_saved(
    shim: Any, disk: Disk, path: Path
) -> None:
    begun(shim, disk, path)
    disk.failing = {0}
    shim.save_in_background({"step": 1}, path)
    first = shim._saving[0]
    disk.let_go(0)
    disk._join(first)
    with pytest.raises(OSError, match="no room for 0"):
        shim.save_in_background({"step": 2}, path)
    assert finish(shim, disk) == [1, 2]
    assert torch.load(path) == {"step": 2}


def test_an_error_of_the_first_is_told_after_others_gave_way(shim: Any, disk: Disk, path: Path) -> None:
    disk.failing = {0}
    begun(shim, disk, path)
    for step in range(1, 4):
        shim.save_in_background({"step": step}, path)
    with pytest.raises(OSError, match="no room for 0"):
        finish(shim, disk)
    assert disk.replaced == [3]
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_the_program_wrote_itself_is_replaced_by_a_newer_state(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    disk._save({"step": 2}, path)
    shim.save_in_background({"step": 3}, path)
    assert finish(shim, disk) == [3]
    assert torch.load(path) == {"step": 3}


def test_a_newer_file_that_the_program_wrote_itself_stays(shim: Any, disk: Disk, path: Path) -> None:
    begun(shim, disk, path)
    for step in (1, 2):
        shim.save_in_background({"step": step}, path)
    disk._save({"step": 3}, path)
    assert finish(shim, disk) == []
    assert torch.load(path) == {"step": 3}
    assert list(path.parent.iterdir()) == [path]


class Uncopied:
    """What can be written, but not copied."""

    def __deepcopy__(self, _seen: object) -> Any:
        raise ValueError("it cannot be copied")


def test_a_state_that_cannot_be_copied_is_written_in_the_place_of_one_that_waits(
    shim: Any, disk: Disk, path: Path
) -> None:
    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    disk.let_go(2)
    shim.save_in_background({"step": 2, "uncopied": Uncopied()}, path)
    assert disk.waited_for == [0]
    assert list(disk.names) == [0, 2]
    assert torch.load(path, weights_only=False)["step"] == 2
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupt_while_a_newer_state_is_copied_loses_neither_it_nor_the_next(
    shim: Any, disk: Disk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_given: object) -> object:
        raise KeyboardInterrupt

    begun(shim, disk, path)
    shim.save_in_background({"step": 1}, path)
    disk.let_go(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shim, "_copied", interrupted)
        shim.save_in_background({"step": 2}, path)
    assert torch.load(path) == {"step": 2}, "the one before it has given way"
    shim.save_in_background({"step": 3}, path)
    assert finish(shim, disk) == [0, 3]
    assert list(path.parent.iterdir()) == [path]
