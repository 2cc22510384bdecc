"""`diagnose cache`: what tuning found, listed, exported and imported."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from diagnose.cli import main
from diagnose.kernels.launch import tuning_file
from diagnose.kernels.launch.tuning_file import Choice, Config, Key

pytest.importorskip("torch")

H200 = Key("swiglu", (1, 1 << 25), "bfloat16", "NVIDIA H200 (9.0)", "torch 2.11.0, triton 3.6.0, diagnose 0.1.0")
MI300 = Key("swiglu", (1, 1 << 25), "bfloat16", "AMD Instinct MI300X (gfx942)", "torch 2.11.0, triton 3.6.0")
FOUND = {
    H200: Choice(Config(block=2048, threads=256), 60_000, 75_000),
    MI300: Choice(Config(native=True), 80_000, 80_000),
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this machine; nothing is in it yet."""
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / tuning_file.NAME


def written(path: Path, **changes: Any) -> Path:
    """A file with one entry, some of whose fields are something else."""
    tuning_file.write(path, {H200: FOUND[H200]})
    content = json.loads(path.read_text())
    content["entries"][0] |= changes
    path.write_text(json.dumps(content))
    return path


def test_what_one_machine_found_goes_to_another(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning_file.write(own, FOUND)
    shared = tmp_path / "shared.json"
    assert main(["cache", "export", str(shared)]) == 0
    assert capsys.readouterr().out == f"{shared}: 2 choices exported\n"
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path / "elsewhere"))
    assert main(["cache", "import", str(shared)]) == 0
    assert capsys.readouterr().out == f"{shared}: 2 choices added\n"
    assert tuning_file.read(tmp_path / "elsewhere" / tuning_file.NAME) == FOUND


def test_the_list_is_by_device(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning_file.write(own, FOUND)
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{MI300.device}, {MI300.versions}",
        "  swiglu 1×33554432 bfloat16: torch's own (80.0 µs)",
        f"{H200.device}, {H200.versions}",
        "  swiglu 1×33554432 bfloat16: block 2048, threads 256 (60.0 µs, 75.0 µs by default)",
    ]
    assert main(["cache", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [(entry["device"], entry["config"]["native"]) for entry in entries] == [
        (MI300.device, True),
        (H200.device, False),
    ]


def test_nothing_yet(own: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cache", "list"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{own}: 0 choices\n")
    assert main(["cache", "export", str(tmp_path / "shared.json")]) == 2
    assert "nothing was tuned here yet" in capsys.readouterr().err
    assert not (tmp_path / "shared.json").exists()


def test_what_was_found_here_stays_unless_it_is_to_be_replaced(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Choice(Config(block=1024, threads=128), 70_000, 70_000)
    tuning_file.write(own, {H200: mine})
    shared = tmp_path / "shared.json"
    tuning_file.write(shared, FOUND)
    assert main(["cache", "import", str(shared)]) == 0
    assert capsys.readouterr().out == (
        f"{shared}: 1 choice added, 1 left as they are here (--replace takes the file's)\n"
    )
    assert tuning_file.read(own) == FOUND | {H200: mine}
    assert main(["cache", "import", "--replace", "--json", str(shared)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "file": str(own),
        "added": 0,
        "replaced": 1,
        "kept": 1,
    }
    assert tuning_file.read(own) == FOUND


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernel": ""}, "entry 1 does not say its kernel"),
        ({"shape": "8x8"}, "entry 1 (swiglu) has no shape"),
        ({"shape": [True]}, "has no shape of whole numbers"),
        ({"config": {"block": 2**40}}, "no whole numbers up to"),
        ({"config": {"block": 64.5}}, "no whole numbers up to"),
        ({"config": {"native": 1}}, "no whole numbers up to"),
        ({"config": {"code": "import os"}}, "settings other than block, native, rows, threads"),
        ({"time_ns": -1}, "no times in whole nanoseconds"),
    ],
)
def test_a_file_that_says_something_else_is_refused_whole(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    shared = written(tmp_path / "shared.json", **changes)
    assert main(["cache", "import", str(shared)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"diagnose: {shared}: ") and said in error and error.count("\n") == 1
    assert not own.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[]", "not a tuning file"),
        ('{"schema": 9, "entries": []}', "its schema is 9; this version reads schema 1"),
        ('{"schema": 1, "entries": [1]}', "entry 1 is not an object"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "shared.json").write_text(text)
    assert main(["cache", "import", str(tmp_path / "shared.json")]) == 2
    assert said in capsys.readouterr().err
    assert main(["cache", "import", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_an_unreadable_file_of_ones_own_is_listed_by_no_guess_and_lost_by_no_import(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.parent.mkdir()
    own.write_text("half of a fi")
    assert main(["cache", "list"]) == 2
    assert "is not JSON" in capsys.readouterr().err
    assert own.read_text() == "half of a fi"
    shared = tmp_path / "shared.json"
    tuning_file.write(shared, FOUND)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["cache", "import", str(shared)]) == 0
    assert "kept as kernels.unreadable-1.json" in capsys.readouterr().err
    assert own.with_name("kernels.unreadable-1.json").read_text() == "half of a fi"
    assert tuning_file.read(own) == FOUND


def test_where_nothing_is_kept_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", "off")
    assert main(["cache", "list"]) == 2
    assert "DIAGNOSE_CACHE=off keeps nothing" in capsys.readouterr().err
