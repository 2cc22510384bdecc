"""The program's own files that are loaded are noted, also those whose names its text does not tell."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.loaded_files import note_loaded_files
from diagnose.collect.records import LOADED


def test_a_module_that_is_imported_by_a_computed_name_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("noisy_dataset", "quiet_dataset"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(f"{'noisy'}_dataset")
    sites = Sites()
    monkeypatch.setattr(sites.ownership, "roots", [str(tmp_path)])
    note_loaded_files(sites)
    noted = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    assert [(each["kind"], each["file"]) for each in noted] == [(LOADED, str(tmp_path / "noisy_dataset.py"))]
