"""A journal that another process still writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from diagnose.session import JOURNAL, AnyEvent, JournalTail, ProgramOutput, RunEnded, Session
from diagnose.session.owner import OWNER, own


def texts(events: list[AnyEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, ProgramOutput)]


def test_every_event_is_told_once_and_a_torn_line_when_it_is_whole(tmp_path: Path) -> None:
    session, tail = Session(tmp_path), JournalTail(tmp_path)
    assert tail.new() == []
    session.record(ProgramOutput(text="one"))
    assert texts(tail.new()) == ["one"]
    with (tmp_path / JOURNAL).open("ab", buffering=0) as file:
        file.write(b'{"type":"ProgramOutput","at_ns":1,')
        assert tail.new() == []
        file.write(b'"text":"two"}\n{"type":"OfAnotherVersion"}\n')
    session.record(ProgramOutput(text="three"))
    assert texts(tail.new()) == ["two", "three"]
    session.close()


def test_it_is_followed_until_it_ends(tmp_path: Path) -> None:
    own(tmp_path)
    session = Session(tmp_path)
    told: list[AnyEvent] = []
    tail = JournalTail(tmp_path)
    session.record(ProgramOutput(text="one"))
    session.record(RunEnded(returncode=0, exit_code=0))
    assert tail.goes_on()
    tail.follow(told.append, threading.Event())
    assert texts(told) == ["one"]
    assert not tail.goes_on()
    session.close()


def test_a_run_whose_process_is_gone_goes_on_no_more(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        own(tmp_path)
        note = json.loads((tmp_path / OWNER).read_text())
        started = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (tmp_path / OWNER).write_text(json.dumps(note | {"pid": other.pid, "started": int(started)}))
        tail = JournalTail(tmp_path)
        assert tail.goes_on()
        other.communicate(b"\n")
    assert not tail.goes_on()
    assert os.getpid() == note["pid"]
