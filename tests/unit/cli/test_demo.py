"""`diagnose demo` leaves the folder in which its last words are to be followed."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pytest

from diagnose.cli.programs import demo
from diagnose.cli.programs.watched_run import Watching
from diagnose.errors import EnvironmentLacks


def test_the_folder_of_the_demo_stays_and_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Watching, "carry_out", lambda *_args: 0)
    assert demo.run(argparse.Namespace(keep=None, plain=True, json=False, budget=None)) == 0
    (folder,) = tmp_path.iterdir()
    assert (folder / demo.PROGRAM.name).is_file()
    assert f"cd {folder}" in capsys.readouterr().err.splitlines()[-1]


def test_without_pytorch_it_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentLacks, match="PyTorch is not installed"):
        demo.run(argparse.Namespace(keep=None, plain=True, json=False, budget=None))
    assert list(tmp_path.iterdir()) == []
