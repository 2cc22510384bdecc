"""Programs that train on a device which is not the current one: it is that one which is waited for and read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collect.inside.hooks.devices_in_use import in_use
from diagnose.collect.inside.modes.heartbeat import Heartbeat
from diagnose.collect.inside.process_hooks import ProcessHooks


class Devices:
    """Stands in for `torch.cuda` on a host with several devices, of which this process holds so many bytes each."""

    def __init__(self, *held: int, current: int = 0, backend: str = "native", initialized: bool = True) -> None:
        self.held = held
        self.current = current
        self.backend = backend
        self.initialized = initialized
        self.waited_for: list[int] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.held)

    def current_device(self) -> int:
        return self.current

    def get_allocator_backend(self) -> str:
        return self.backend

    def memory_reserved(self, ordinal: int) -> int:
        assert self.backend == "native", "the question would take the device into use"
        return self.held[ordinal]

    def synchronize(self, ordinal: int) -> None:
        self.waited_for.append(ordinal)

    @contextlib.contextmanager
    def device(self, ordinal: int) -> Iterator[None]:
        before, self.current = self.current, ordinal
        yield
        self.current = before

    def get_device_properties(self, ordinal: int) -> Any:
        return SimpleNamespace(uuid=f"uuid of {ordinal}", total_memory=100 + ordinal)

    def memory_stats_as_nested_dict(self) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": self.held[self.current]}}}


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        (Devices(5), [0]),
        (Devices(0, 7), [1, 0]),
        (Devices(7, 7), [0, 1]),
        (Devices(7, 7, current=1), [1, 0]),
        (Devices(0, 0, 3, 0, current=2), [2]),
        (Devices(0, 7, backend="cudaMallocAsync"), [0]),
        (Devices(7, initialized=False), []),
    ],
)
def test_the_device_that_holds_most_comes_first_and_the_current_one_is_never_missing(
    cuda: Devices, expected: list[int]
) -> None:
    assert in_use(SimpleNamespace(cuda=cuda)) == expected


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessHooks]:
    for name in ("atexit.register", "atexit.unregister", "os.register_at_fork"):
        monkeypatch.setattr(name, lambda *_arguments, **_keywords: None)
    monkeypatch.setattr("diagnose.collect.inside.process_hooks.after_import", lambda *_arguments: None)
    yield ProcessHooks({"folder": str(tmp_path)})


def test_callbacks_see_the_device_that_is_trained_on_and_the_program_its_own(hub: ProcessHooks, tmp_path: Path) -> None:
    cuda = Devices(0, 7)
    hub.torch = SimpleNamespace(cuda=cuda)  # type: ignore[assignment]  # what a module would be
    hub._synchronize = cuda.synchronize
    seen: list[int] = []
    hub.on_claim(lambda: seen.append(cuda.current))
    hub.on_step(lambda _index: seen.append(cuda.current))
    hub._step_ended(False)
    assert seen == [1, 1]
    assert cuda.current == 0
    hub.synchronize()
    assert cuda.waited_for == [1, 0]
    assert '"uuid of 1"' in (tmp_path / "rank0" / "claim").read_text()


def test_a_heartbeat_has_the_memory_of_the_device_that_is_trained_on(hub: ProcessHooks) -> None:
    hub.torch = SimpleNamespace(cuda=Devices(0, 7))  # type: ignore[assignment]  # what a module would be
    assert hub.claim()
    [(_, line)] = Heartbeat(hub, 1)._beat()  # on a thread of its own, whose current device is the first
    beat = json.loads(line)
    assert (beat["a"], beat["b"]) == (7, 101)
