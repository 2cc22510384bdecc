"""What goes wrong while a program is followed, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.session import AnyEvent, Session
from diagnose.watching import service
from diagnose.watching.service import Watching, _of_trace
from diagnose.watching.watcher import Notice


@pytest.fixture
def told() -> list[AnyEvent]:
    """Events of the journal."""
    return []


@pytest.fixture
def watching(tmp_path: Path, told: list[AnyEvent]) -> Iterator[Watching]:
    """A program that ends at once."""
    (tmp_path / "script.py").touch()
    session = Session.create("script", told.append, tmp_path)
    program = Program.parse([str(tmp_path / "script.py")], cwd=tmp_path)
    yield Watching(program, session, 1 << 20, tmp_path / "folder", lambda _event: None)
    session.close()


def test_a_file_for_prometheus_that_cannot_be_written_is_told_before_the_program_runs(
    tmp_path: Path, watching: Watching
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        watching.run()


def test_an_error_while_following_is_told_once_and_the_program_runs_to_its_end(
    watching: Watching, told: list[AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise KeyError("i")

    monkeypatch.setattr(service, "LOOK_S", 0.01)
    monkeypatch.setattr(Watching, "_look", fail)
    assert watching.run().returncode == 0
    [warned] = told
    assert "watching goes on after an error of diagnose: KeyError('i')" in warned.message  # type: ignore[union-attr]


def test_a_trace_that_never_came_gives_way_to_the_next_change(watching: Watching, tmp_path: Path) -> None:
    list(watching._watcher.beat(0, {"t": 0, "i": 100, "e": 0, "w": 0, "f": 0}))
    notice = Notice("slower", 0, 0, 0, None, "steps take longer")
    [run] = (tmp_path / ".diagnose" / "runs").iterdir()

    def asked() -> str:
        watching._notice(notice)
        return Path(json.loads((run / "trace_request.json").read_text())["folder"]).name

    assert (asked(), asked()) == ("0001", "0001")
    watching._traced_s -= service.TRACES_APART_S
    assert asked() == "0002"


def test_a_trace_that_could_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "diagnosis.json").touch()
    assert _of_trace(tmp_path).message == f"traced, but the trace was not read: diagnose analyze {tmp_path}"


def test_memory_that_is_free_is_read_again_while_the_program_runs(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    monkeypatch.setattr(service, "free_bytes", lambda: 5)
    watching.run()
    assert watching._watcher.room == {"resident": 5.0}
