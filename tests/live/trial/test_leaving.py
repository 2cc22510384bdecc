"""Leaving while trials go on: whatever is waited for, it ends at once, and nothing is left running or lying about."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from composing import finding, fixer, replacing
from watching import LIMIT_S, left_of

from diagnose import compose
from diagnose.cli.programs.watched_run import leaving_on
from diagnose.errors import Cancelled
from diagnose.model import Accounting, Diagnosis, Steps
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.trace import Trace
from diagnose.trial.process.arm import Arm, Workplace
from diagnose.trial.process.process_group import Groups

FAR_NS = 600 * 10**9
STUBBORN = """
import os, signal, socket, json, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if {meets}:
    link = socket.socket(socket.AF_UNIX)
    link.connect(json.loads(os.environ["DIAGNOSE_RECIPE"])["socket"])
    hello = {{"rank": 0, "world_size": 1, "pid": os.getpid(), "group": os.getpgid(0)}}
    link.sendall(json.dumps({{"hello": hello}}).encode() + b"\\n")
    if {warms_up}:
        link.sendall(json.dumps({{"ready": {{"steps": 5, "step_ns": 1000, "at_ns": 0}}}}).encode() + b"\\n")
        link.recv(1)
with open({mark!r}, "w") as mark:
    mark.write(str(os.getpid()) + "\\n")
time.sleep(600)
"""
"""Says nothing more once it has written its mark, and ends for nobody."""


def marked(mark: Path) -> Callable[[], bool]:
    """The user leaves once the program is where it says nothing more."""
    return lambda: mark.exists() and mark.read_text().endswith("\n")


def of(mark: Path) -> psutil.Process | None:
    try:
        return psutil.Process(int(mark.read_text()))
    except psutil.NoSuchProcess:
        return None


@pytest.mark.parametrize(
    ("meets", "warms_up"), [(False, False), (True, False), (True, True)], ids=["importing", "compiling", "in a block"]
)
def test_an_arm_that_says_nothing_keeps_nobody(tmp_path: Path, meets: bool, warms_up: bool) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "train.py").write_text(STUBBORN.format(meets=meets, warms_up=warms_up, mark=str(mark)))
    program = Program.parse(["train.py"], cwd=tmp_path)
    with Groups(marked(mark)) as groups:
        place = Workplace(groups, tmp_path / "arms", sys.executable, lambda _: dict(os.environ))
        arm = Arm(place, program, "arm", warmup_steps=5)
        with pytest.raises(Cancelled):
            arm.ready(FAR_NS)
            arm.run(10, 2, FAR_NS)
        running = of(mark)
        arm.close()
    assert running is not None
    assert left_of([running]) == []


def test_a_capture_that_says_nothing_keeps_nobody(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = STUBBORN.format(meets=False, warms_up=False, mark=str(mark))
    with Groups(marked(mark)) as groups:
        group = groups.start([sys.executable, "-S", "-c", script], tmp_path, os.environ, tmp_path / "capture")
        with pytest.raises(Cancelled):
            group.wait(FAR_NS)
        running = of(mark)
    assert running is not None
    assert left_of([running]) == []


def test_whoever_leaves_in_a_silent_trial_leaves_no_copy_and_no_process(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "train.py").write_text(STUBBORN.format(meets=False, warms_up=False, mark=str(mark)))
    program = Program.parse(["train.py"], cwd=tmp_path)
    waits_less = fixer("waits-less", replacing("600", "60"))
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Accounting(), (finding("waits", 9, waits_less.name),))
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(Cancelled):
        compose.fix(
            program,
            diagnosis,
            [Trace("run")],
            Catalogue({}, {waits_less.name: waits_less}),
            lambda _event: None,
            run,
            cancelled=marked(mark),
        )
    assert list(run.iterdir()) == []
    running = of(mark)
    assert running is None or left_of([running]) == []


def test_a_second_ctrl_c_while_all_is_cleared_away_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    program = Program.parse(["train.py"], cwd=tmp_path)
    run = tmp_path / "run"
    run.mkdir()

    def interrupted(*_: object) -> None:
        (run / "trials" / "copy").mkdir(parents=True)
        raise KeyboardInterrupt

    def impatient(*words: Any, **named: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        rmtree(*words, **named)

    rmtree = shutil.rmtree
    monkeypatch.setattr(compose.GreedySearch, "run", interrupted)
    monkeypatch.setattr(shutil, "rmtree", impatient)
    before = signal.getsignal(signal.SIGINT)
    nothing = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Accounting(), ())
    with pytest.raises(KeyboardInterrupt):
        compose.fix(program, nothing, [Trace("run")], Catalogue({}, {}), lambda _event: None, run)
    assert list(run.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def hung_up() -> Iterator[None]:
    """Under nohup, SIGHUP means nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hung_up")
def test_a_request_to_end_is_leaving_too_and_no_hang_up_under_nohup() -> None:
    stop = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    with leaving_on(stop):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait(LIMIT_S)
    assert signal.getsignal(signal.SIGTERM) is before
