"""Calls that are wrong: one line says what is wrong, and what to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--plain", "run", "train.py"], "--plain is no command: that comes first"),
        (["analyze"], "PATH is missing; see `diagnose analyze --help`"),
        (["gather"], "RUN, -o/--output are missing"),
        (["run", "--budget", "10m", "train.py"], "--budget bounds --fix and --probe"),
        (["fix", "--budget", "0", "train.py"], "--budget 0 leaves no time for anything"),
    ],
)
def test_a_wrong_call_ends_in_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_the_options_that_need_no_command_may_be_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--vers"])
    assert capsys.readouterr().out.startswith("diagnose ")
