"""What is noted of the program's classes of modules that have instances."""

from __future__ import annotations

import gc
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.module_classes import BUILT, ModuleClasses


class Base(nn.Module):
    pass


class Net(Base):
    pass


class Unused(nn.Module):
    pass


def noted(probe: ModuleClasses, sites: Sites) -> dict[str, list[str]]:
    probe.note(torch)
    lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    assert {one["kind"] for one in lines} <= {BUILT}
    return {one["file"]: one["arguments"]["classes"].split(", ") for one in lines}


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Sites:
    found = Sites()
    monkeypatch.setattr(found.ownership, "owns", lambda file: Path(file) == Path(__file__))
    return found


def test_classes_with_instances_are_noted_with_those_they_are_derived_from(sites: Sites) -> None:
    model = nn.Sequential(Net(), nn.Linear(2, 2))
    assert noted(ModuleClasses(sites), sites) == {__file__: ["Base", "Net"]}, model


def test_a_class_of_a_file_that_was_loaded_under_the_name_of_another_is_noted(sites: Sites, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return x\n")
    spec = importlib.util.spec_from_file_location("json", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    sites.ownership.owns = lambda file: file == str(path)  # type: ignore[method-assign]
    model = loaded.Net()
    assert noted(ModuleClasses(sites), sites) == {str(path): ["Net"]}, model


def test_nothing_is_noted_where_the_program_hides_objects_from_the_collector(sites: Sites) -> None:
    probe, model = ModuleClasses(sites), Net()
    gc.freeze()
    try:
        assert noted(probe, sites) == {}, model
    finally:
        gc.unfreeze()
