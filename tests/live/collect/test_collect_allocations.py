"""What the allocator of a device is asked to note of a watched program, and when; the allocator here is a stand-in."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from watching import run

from diagnose.collect.inside import guard
from diagnose.collect.inside.probes.allocations import FIRST, GROWING, SNAPSHOTS, Allocations, pieces_of
from diagnose.collect.records import MEMORY


class Allocator:
    """A torch with a device that is first used when `use` is called."""

    def __init__(self, noting: bool = False) -> None:
        self.asked: list[tuple[str | None, str | None]] = []
        self.observers: list[Callable[..., None]] = []
        self.waiting: list[Callable[[], None]] = []
        self.snapshots = 0
        memory = SimpleNamespace(_record_memory_history=self.record, _snapshot=self.snapshot)
        self.cuda = SimpleNamespace(
            _lazy_call=self.waiting.append,
            memory=memory,
            current_device=lambda: 0,
            get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 30),
            memory_allocated=lambda: 10 << 30,
        )
        self._C = SimpleNamespace(
            _cuda_attach_out_of_memory_observer=self.observers.append,
            _cuda_isHistoryEnabled=lambda: noting,
            _cuda_record_memory_history=self.asked_of_allocator,
        )

        class Optimizer:
            def __init__(self, groups: list[dict[str, Any]]) -> None:
                self.param_groups = groups
                self.state: dict[object, object] = {}

        self.optim = SimpleNamespace(Optimizer=Optimizer)

    def record(self, enabled: str | None, context: str | None = None, **_: Any) -> None:
        self._C._cuda_record_memory_history(enabled, context)

    def asked_of_allocator(self, enabled: str | None, context: str | None) -> None:
        self.asked.append((enabled, context))

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        return {"segments": [], "device_traces": [], "number": self.snapshots}

    def use(self) -> None:
        for call in self.waiting:
            call()


class Watched:
    def __init__(self, folder: Path, allocator: Allocator | None = None) -> None:
        self.folder, self.torch = folder, allocator or Allocator()
        self.allocations = Allocations(SimpleNamespace(folder=folder, pid=1))  # type: ignore[arg-type]  # a part of it
        self.allocations.install(self.torch)

    def written(self) -> dict[str, Any] | None:
        path = self.folder / MEMORY
        found: dict[str, Any] | None = pickle.loads(path.read_bytes()) if path.exists() else None
        return found

    def run_out(self) -> None:
        for observer in self.torch.observers:
            observer(0, 3 << 20, 1 << 30, 5)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    guard.failures.clear()
    return Watched(tmp_path)


def test_a_device_is_not_used_for_our_sake(watched: Watched) -> None:
    assert (watched.torch.asked, watched.torch.observers) == ([], [])
    watched.torch.use()
    assert watched.torch.asked == [("all", "alloc")]
    assert len(watched.torch.observers) == 1


def test_only_the_first_steps_and_those_after_the_window_are_noted(watched: Watched) -> None:
    watched.torch.use()
    for index in range(FIRST + 4):
        watched.allocations.step_ended(index, 5)
    assert watched.torch.asked == [("all", "alloc"), (None, None)]
    watched.allocations.begin_history()
    watched.allocations.end_history()
    assert watched.torch.asked[2:] == [("all", "alloc"), (None, None)]
    written = watched.written()
    assert written is not None
    assert written["diagnose"]["reason"] == "steady"
    assert guard.failures == []


def test_what_steps_leave_behind_is_noted_while_it_grows(watched: Watched) -> None:
    watched.torch.use()
    watched.allocations.step_ended(FIRST - 1, None)
    watched.allocations.begin_history()
    watched.allocations.end_history()
    del watched.torch.asked[:]
    for index, held in enumerate((10 << 30, 11 << 30, None)):
        watched.allocations.step_ended(20 + index, held)
    assert watched.torch.asked == []
    watched.allocations.step_ended(30, 12 << 30)
    assert watched.torch.asked == [("all", "alloc")]
    watched.allocations.step_ended(30 + GROWING - 1, 13 << 30)
    watched.allocations.step_ended(30 + GROWING, 14 << 30)
    assert watched.torch.asked == [("all", "alloc"), (None, None)]
    watched.allocations.step_ended(200, 15 << 30)  # no more than a tenth since
    assert len(watched.torch.asked) == 2
    watched.allocations.step_ended(210, 16 << 30)
    assert watched.torch.asked[2:] == [("all", "alloc")]


def test_a_run_without_steps_after_the_window_leaves_nothing(watched: Watched) -> None:
    watched.torch.use()
    watched.allocations.end_history()
    assert watched.written() is None


def test_what_the_program_has_noted_for_itself_is_left_alone(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Allocator(noting=True))
    watched.torch.use()
    watched.allocations.begin_history()
    watched.allocations.end_history()
    assert watched.torch.asked == []


def test_a_program_that_begins_to_note_has_its_own_way_from_then_on(watched: Watched) -> None:
    watched.torch.use()
    watched.torch.cuda.memory._record_memory_history("all")
    watched.allocations.step_ended(FIRST - 1, None)
    watched.allocations.begin_history()
    assert watched.torch.asked == [("all", "alloc"), ("all", None)]


def test_it_does_not_matter_by_which_name_it_does(tmp_path: Path) -> None:
    allocator = Allocator()
    imported = allocator.cuda.memory._record_memory_history  # from torch.cuda.memory import …, before anything of ours
    watched = Watched(tmp_path, allocator)
    allocator.use()
    imported("all")
    watched.allocations.step_ended(FIRST - 1, None)
    assert allocator.asked == [("all", "alloc"), ("all", None)]


def test_a_program_that_notes_before_it_uses_a_device_is_left_alone(watched: Watched) -> None:
    watched.torch.cuda.memory._record_memory_history("state")
    watched.torch.use()
    watched.allocations.begin_history()
    assert watched.torch.asked == [("state", None)]


def test_the_last_moment_without_memory_is_what_is_written(watched: Watched) -> None:
    watched.torch.use()
    watched.run_out()
    watched.run_out()
    assert watched.written() is None  # it may go on
    watched.allocations.save_lack()
    written = watched.written()
    assert written is not None
    assert written["number"] == 2
    why = written["diagnose"]
    assert (why["reason"], why["wanted_bytes"], why["free_bytes"]) == ("out of memory", 3 << 20, 5)


def test_it_is_not_replaced_by_the_steps_after_the_window(watched: Watched) -> None:
    watched.torch.use()
    watched.allocations.begin_history()
    watched.run_out()
    watched.allocations.save_lack()
    watched.allocations.end_history()
    written = watched.written()
    assert written is not None
    assert written["diagnose"]["reason"] == "out of memory"


def test_a_program_that_tries_sizes_until_one_fits_pays_for_a_few_looks(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    watched.torch.use()
    for _ in range(100):
        watched.run_out()
    assert watched.torch.snapshots == SNAPSHOTS


def test_what_pieces_serve_as() -> None:
    parameter = torch.nn.Parameter(torch.ones(4, device="meta"))
    parameter.grad = torch.ones(4, device="meta")

    class OnDevice:
        """A tensor as one on a device looks."""

        device = SimpleNamespace(type="cuda")

        def __init__(self, address: int, count: int) -> None:
            self.address, self.count = address, count
            self.grad: object = None

        def untyped_storage(self) -> None: ...

        def numel(self) -> int:
            return self.count

        def element_size(self) -> int:
            return 2

        def data_ptr(self) -> int:
            return self.address

    weight, bias = OnDevice(1024, 8), OnDevice(2048, 0)
    weight.grad = OnDevice(4096, 8)
    state = {weight: {"step": torch.tensor(3.0), "exp_avg": OnDevice(8192, 8)}, bias: "nothing"}
    optimizer = SimpleNamespace(param_groups=[{"params": [weight, bias, parameter]}], state=state)
    assert list(pieces_of(optimizer)) == [
        (1024, 16, "parameter"),
        (4096, 16, "gradient"),
        (8192, 16, "optimizer_state"),
    ]


def test_optimizers_are_known_from_when_they_are_built(watched: Watched) -> None:
    watched.torch.use()
    optimizer = watched.torch.optim.Optimizer([{"params": []}])
    watched.run_out()
    watched.allocations.save_lack()
    written = watched.written()
    assert written is not None
    assert written["diagnose"]["pieces"] == []
    assert optimizer.param_groups
    assert guard.failures == []


def test_a_program_without_a_device_leaves_no_snapshot(tmp_path: Path) -> None:
    ran = run(tmp_path, "leaking.py", "20")
    assert ran.returncode == 0
    assert not ran.has(MEMORY)
    assert ran.record("facts.json")["watcher_failures"] == []
