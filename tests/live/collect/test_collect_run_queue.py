"""The time for which training was ready and had no core: whose it is, and how that of several threads adds up."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diagnose.collect.run_queue import RunQueue

PID, BACKWARD, SECOND, OTHER = 100, 101, 102, 103
READING_NS = 1_000
needs_schedstat = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count it")


class Machine:
    """A process of a made-up /proc, a reading every 1,000 ns."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ns = 0
        self.counted: dict[int, tuple[int, int]] = {}
        self.thread(PID, "python")

    def thread(self, tid: int, name: str) -> None:
        folder = self.root / str(PID) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        self.spend(tid)

    def spend(self, tid: int, ran: int = 0, queued: int = 0) -> None:
        """Let a thread run and be queued for so many ns."""
        before = self.counted.get(tid, (0, 0))
        self.counted[tid] = before[0] + ran, before[1] + queued
        text = f"{self.counted[tid][0]} {self.counted[tid][1]} 7\n"
        (self.root / str(PID) / "task" / str(tid) / "schedstat").write_text(text)

    def end(self, tid: int) -> None:
        folder = self.root / str(PID) / "task" / str(tid)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        del self.counted[tid]

    def watch(self) -> RunQueue:
        return RunQueue(PID, self.root, lambda: self.now_ns)

    def after(self, queue: RunQueue, passed_ns: int = READING_NS) -> float | None:
        self.now_ns += passed_ns
        return queue.queued_percent()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_process_of_one_thread_was_queued_for_as_long_as_that_thread(machine: Machine) -> None:
    machine.spend(PID, ran=5_000, queued=9_000)  # before anybody watched
    queue = machine.watch()
    machine.spend(PID, ran=300, queued=400)
    assert machine.after(queue) == 40
    assert machine.after(queue) == 0


def test_backward_in_a_thread_of_its_own_counts_as_the_thread_that_waits_for_it(machine: Machine) -> None:
    machine.thread(BACKWARD, "pt_autograd_0")
    queue = machine.watch()
    machine.spend(PID, ran=100, queued=300)
    machine.spend(BACKWARD, ran=150, queued=400)
    assert machine.after(queue) == 70


@pytest.mark.parametrize("name", ["python", "pt_data_pin", "pt_data_worker", ""])
def test_threads_that_run_ahead_of_training_do_not_count(machine: Machine, name: str) -> None:
    machine.thread(OTHER, name)
    queue = machine.watch()
    machine.spend(PID, ran=100, queued=100)
    machine.spend(OTHER, queued=800)
    assert machine.after(queue) == 10


def test_no_time_counts_in_which_one_of_them_had_a_core(machine: Machine) -> None:
    """One that is done and has not gone to sleep yet is queued while the other runs."""
    machine.thread(BACKWARD, "pt_autograd_0")
    queue = machine.watch()
    machine.spend(PID, ran=350, queued=650)
    machine.spend(BACKWARD, ran=550, queued=450)
    assert machine.after(queue) == 10
    machine.spend(PID, ran=400, queued=600)
    machine.spend(BACKWARD, ran=650, queued=300)
    assert machine.after(queue) == 0


def test_devices_that_run_backward_at_once_have_a_core_for_as_long_as_the_busiest(machine: Machine) -> None:
    machine.thread(BACKWARD, "pt_autograd_0")
    machine.thread(SECOND, "pt_autograd_1")
    queue = machine.watch()
    machine.spend(PID, ran=100)
    machine.spend(BACKWARD, ran=400, queued=300)
    machine.spend(SECOND, ran=500, queued=300)
    assert machine.after(queue) == 40


def test_a_thread_that_began_meanwhile_counts_from_the_next_reading_on(machine: Machine) -> None:
    queue = machine.watch()
    machine.thread(BACKWARD, "pt_autograd_0")
    machine.spend(BACKWARD, queued=900)
    assert machine.after(queue) == 0
    machine.spend(BACKWARD, queued=200)
    assert machine.after(queue) == 20


def test_a_thread_that_gets_its_name_after_it_was_first_seen_is_known_by_it(machine: Machine) -> None:
    queue = machine.watch()
    machine.thread(BACKWARD, "python")
    machine.after(queue)
    machine.thread(BACKWARD, "pt_autograd_0")
    machine.after(queue)
    assert queue.threads == (PID, BACKWARD)


def test_a_thread_s_number_may_be_another_s_later(machine: Machine) -> None:
    machine.thread(BACKWARD, "pt_autograd_0")
    queue = machine.watch()
    machine.end(BACKWARD)
    machine.after(queue)
    assert queue.threads == (PID,)
    machine.thread(BACKWARD, "python")
    machine.after(queue)
    machine.after(queue)
    assert queue.threads == (PID,)


def test_names_are_asked_for_twice_and_never_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    read_text: Callable[[Path], str] = Path.read_text

    def read(path: Path) -> str:
        asked.append(path.name)
        return read_text(path)

    monkeypatch.setattr("diagnose.collect.run_queue.Path.read_text", read)
    for number in range(OTHER, OTHER + 50):
        machine.thread(number, "python")
    queue = machine.watch()
    machine.after(queue)
    assert asked.count("comm") == 2 * 51
    asked.clear()
    machine.after(queue)
    assert asked == ["schedstat"]


def test_where_the_kernel_does_not_count_nothing_is_said(machine: Machine, tmp_path: Path) -> None:
    queue = machine.watch()
    (tmp_path / str(PID) / "task" / str(PID) / "schedstat").unlink()
    assert machine.after(queue) is None
    machine.spend(PID, queued=900)
    assert machine.after(queue) is None  # nobody knows what it was before
    machine.spend(PID, queued=100)
    assert machine.after(queue) == 10


def test_two_readings_at_the_same_moment_say_nothing(machine: Machine) -> None:
    assert machine.after(machine.watch(), passed_ns=0) is None


@contextmanager
def named_thread(name: str, then: Callable[[], None] = lambda: None) -> Iterator[int]:
    """A thread that the kernel knows by that name, and does something before it waits."""
    ready, done = threading.Event(), threading.Event()

    def run() -> None:
        set_name = 15
        ctypes.CDLL(None).prctl(set_name, name.encode(), 0, 0, 0)
        then()
        ready.set()
        done.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        done.set()
        thread.join()


def counted() -> set[int]:
    """The threads of this very process that count, of devices that no machine has besides its own."""
    return set(RunQueue(os.getpid()).threads)


@needs_schedstat
def test_threads_are_known_by_the_names_that_the_kernel_has_for_them() -> None:
    before = counted()
    with named_thread("pt_data_pin"), named_thread("pt_autograd_98") as first, named_thread("pt_autograd_99") as second:
        assert counted() - before == {first, second}
    assert counted() == before
    assert os.getpid() in before


@needs_schedstat
def test_what_a_thread_of_autograd_starts_has_its_name_and_does_not_count() -> None:
    before, done = counted(), threading.Event()
    helper = threading.Thread(target=done.wait, daemon=True)
    with named_thread("pt_autograd_99", then=helper.start) as backward:
        name = Path(f"/proc/self/task/{helper.native_id}/comm").read_text().strip()
        found = counted() - before
        done.set()
        helper.join()
    assert name == "pt_autograd_99"
    assert found == {backward}


TRAINS = """
import threading
import torch
from torch.utils import backend_registration

backend_registration._setup_privateuseone_for_python_backend("made_up")

class OnDevice(torch.Tensor):
    @staticmethod
    def __new__(cls):
        made = torch._C._acc.create_empty_tensor(torch.Size([1]), torch.float32)
        made.__class__ = cls
        return made

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return OnDevice()

    @staticmethod
    def backward(ctx, gradient):
        print(threading.get_native_id(), flush=True)
        return OnDevice()

x = OnDevice().requires_grad_()
torch.autograd.grad(Twice.apply(x), x, OnDevice())
input()
"""


@needs_schedstat
def test_the_thread_in_which_torch_runs_backward_of_what_is_on_a_device_is_found() -> None:
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch makes up no device")
    program = [sys.executable, "-c", TRAINS]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ran_in = int(child.stdout.readline())
        threads = RunQueue(child.pid).threads
        child.communicate("\n")
    assert ran_in != child.pid
    assert threads == (child.pid, ran_in)
