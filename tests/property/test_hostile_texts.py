"""What a file says is printed as text and nothing else: it steers no terminal, breaks no line, opens no file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from nsight_exports import export, training

from diagnose.cli import main
from diagnose.engine import diagnose
from diagnose.errors import InputError
from diagnose.plugins import Catalogue
from diagnose.rule import Claim, Confidence, Measures, Place, Rule
from diagnose.trace.readers import open_traces
from diagnose.units import printable

CODES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
EVIL = CODES + "\ud800"


def test_texts_are_made_printable() -> None:
    assert printable("gemm<float>(µ, 中)") == "gemm<float>(µ, 中)"
    assert printable("a\nb\r\n\tc") == "a b c"
    assert printable("a\x1b[31mb\x9b\ud800") == "a\ufffd[31mb\ufffd\ufffd"


def folder_of_a_run(path: Path) -> Path:
    """What a watched program may have left, with control codes wherever a text can be."""
    rank = path / "rank0"
    rank.mkdir(parents=True)
    lines = {
        "facts.json": {"rank": 0, "device_name": CODES, "torch_version": CODES, "watcher_failures": [CODES]},
        "steps.jsonl": {"t": 1_000_000},
        "ranges.jsonl": {"k": "user", "s": 1, "e": 2, "n": CODES},
        "stacks.jsonl": {"i": 0, "f": [[CODES, 1, CODES]]},
        "samples.jsonl": {"t": [1], "s": [0]},
        "sites.jsonl": {"kind": CODES, "file": CODES, "line": 1, "arguments": {CODES: CODES}},
        "syncs.jsonl": {"file": CODES, "line": 1, "function": CODES},
        "counters.jsonl": {"t": 1, "v": {CODES: 1.0}},
    }
    for name, line in lines.items():
        (rank / name).write_text(json.dumps(line) + "\n")
    return path


def test_no_text_of_a_run_folder_steers_a_terminal(tmp_path: Path) -> None:
    (trace,) = open_traces([folder_of_a_run(tmp_path)])
    assert "owned" in trace.stacks[0][0].file
    assert "owned" in trace.sites[0].file
    assert "owned" in (trace.facts.device_name or "")
    assert "\\x1b" not in repr((trace.names, trace.stacks, trace.sites, trace.sync_sites, trace.facts, trace.warnings))


def test_names_and_warnings_of_a_trace_are_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = {"ph": "X", "pid": 1, "tid": 1, "dur": 1000, "args": {"device": 0, "stream": 7}}
    events = [{**mark, "cat": "kernel", "name": f"k{EVIL}", "ts": 1000 * number} for number in range(3)]
    events.append({**mark, "cat": EVIL, "name": "unknown", "ts": 5})
    device = [{"id": 0, "name": EVIL}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": events}))
    (trace,) = open_traces([path])
    assert all(name.isprintable() for name in (*trace.names, *trace.device_names, *trace.warnings))
    assert main(["analyze", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "owned" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_a_refusal_that_quotes_the_file_is_one_printable_line(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "x", "cat": f"a\nb{EVIL}"}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    with pytest.raises(InputError, match="owned") as refusal:
        open_traces([path])
    assert str(refusal.value).isprintable()


def test_an_nsight_database_without_device_names_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = export(tmp_path / "run.sqlite", ["cudaLaunchKernel_v7000", "gemm", "gemm"], **training())
    assert main(["analyze", str(path)]) == 0
    assert "a device of unknown name" in capsys.readouterr().out
    assert main(["analyze", "--json", str(path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["device"], said["has_device"]) == (None, True)


@pytest.mark.parametrize("name", ["/dev/zero", "id_rsa", "fifo.py", "folder.py", "\0.py", "x" * 9000 + ".py"])
def test_only_source_files_are_quoted(name: str, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("PRIVATE\n")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "fifo.py")
    place = name if name.startswith("/") else str(tmp_path / name)
    assert quoted(place, tmp_path) is None


def test_a_line_of_source_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("loss.item()\n")
    assert quoted(str(tmp_path / "train.py"), tmp_path) == "loss.item()"


def quoted(file: str, folder: Path) -> str | None:
    """The code that a finding shows of the first line of a file which the recording names."""

    def check(measures: Measures) -> list[Claim]:
        time = measures.counted
        return [Claim("s", time.total_ns, time, Confidence.MEASURED, [], [Place(file, 1)])]

    path = export(folder / "run.sqlite", ["cudaLaunchKernel_v7000", "gemm", "gemm"], **training())
    (finding,) = diagnose(open_traces([path]), Catalogue({"r": Rule("r", check)}, {}, ())).findings
    return finding.where[0].code
