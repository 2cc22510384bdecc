"""A trace that is asked for in mid-run leaves the program's signals as they are."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collect.inside.process.termination import Termination
from diagnose.collect.inside.window.profiler_window import Window
from diagnose.collect.inside.window.requested_window import RequestedWindow


def test_a_forked_child_that_is_terminated_closes_nothing(tmp_path: Path) -> None:
    termination = Termination((tmp_path / "closed").touch)
    termination.arm()
    try:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    finally:
        termination.disarm()
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not (tmp_path / "closed").exists()


def test_a_window_that_cannot_be_opened_leaves_no_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise RuntimeError("no profiler")

    monkeypatch.setattr(Window, "other_is_recording", lambda *_arguments: False)
    monkeypatch.setattr(Window, "open", refuse)
    hub: Any = SimpleNamespace(folder=tmp_path / "rank0", rank=0, torch=None, end_ns=lambda: 0)
    hub.steps = SimpleNamespace(loader=None)
    window = RequestedWindow(hub, SimpleNamespace(roots=[]), lambda: None)  # type: ignore[arg-type]  # not used here
    (tmp_path / "trace_request.json").write_text(json.dumps({"step": 5, "steps": 4, "ranks": [0], "folder": ""}))
    window.look()
    window.step_ended(4)
    with pytest.raises(RuntimeError, match="no profiler"):
        window.step_ended(5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not window.busy
