"""A process that is there for numbers alone spares its collector torch, and no more than that."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collect.inside.process.garbage_collection import pass_over_torch


class ProcessHooks:
    """Takes the callback for the time when torch has been imported."""

    def __init__(self) -> None:
        self.torch_imported: list[Any] = []
        self.on_torch = self.torch_imported.append


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_nothing_is_collected_until_torch_is_there_and_nothing_of_it_then() -> None:
    gc.enable()
    hub: Any = ProcessHooks()
    pass_over_torch(hub)
    assert not gc.isenabled()
    kept, frozen = [SimpleNamespace(it=at) for at in range(100)], gc.get_freeze_count()
    (imported,) = hub.torch_imported
    imported(None)
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(kept)


def test_a_program_that_turned_its_collector_off_keeps_it_off() -> None:
    gc.disable()
    hub: Any = ProcessHooks()
    pass_over_torch(hub)
    assert hub.torch_imported == []
    assert not gc.isenabled()
