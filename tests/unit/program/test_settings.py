"""What a project says of its findings: which are accepted, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tinygpt

from diagnose.errors import InputError
from diagnose.model import Diagnosis, Place
from diagnose.program.settings import Settings, drop_ignored, settings_of


def written(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    written(tmp_path, '[tool.diagnose.ignore]\nhost-sync = "read once an epoch"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    written(inner, "[tool.ruff]\n")
    assert settings_of(inner).ignored == {"host-sync": "read once an epoch"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.diagnose.ignore]\nhost-sync = ""\n', "no reason for host-sync"),
        ("[tool.diagnose]\nignored = 1\n", "has no 'ignored'"),
        ('[tool.diagnose]\nignore = ["host-sync"]\n', "rules with reasons"),
        ("[tool]\ndiagnose = 3\n", "is no table"),
    ],
)
def test_what_cannot_be_understood_is_said_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        settings_of(written(tmp_path, text))


@pytest.mark.parametrize("text", ["", "not toml [", "[tool.ruff]\nline-length = 120\n"])
def test_a_file_without_the_table_says_nothing(tmp_path: Path, text: str) -> None:
    assert settings_of(written(tmp_path, text)).ignored == {}


def with_lines(*codes: str) -> Diagnosis:
    diagnosis = tinygpt.gpu_diagnosis()
    places = tuple(Place("train.py", number, code) for number, code in enumerate(codes, 1))
    return replace(diagnosis, findings=(replace(diagnosis.findings[0], where=places),))


def test_an_ignored_rule_is_no_finding_and_a_warning_says_why() -> None:
    before = tinygpt.gpu_diagnosis()
    rule = before.findings[0].rule
    after = drop_ignored(before, Settings({rule: "the data set is read once"}))
    assert [one.rule for one in after.findings] == [one.rule for one in before.findings[1:]]
    assert after.warnings[-1] == f"{rule} is ignored: the data set is read once"


def test_a_comment_holds_for_its_line_and_needs_a_reason() -> None:
    rule = tinygpt.gpu_diagnosis().findings[0].rule
    accepted = f"x = f()  # diagnose: ignore[{rule}] once an epoch"
    assert drop_ignored(with_lines(accepted), Settings()).findings == ()
    assert drop_ignored(with_lines(accepted, accepted), Settings()).warnings[-1].endswith("once an epoch (train.py:1)")
    for kept in (
        with_lines(accepted, "y = g()"),
        with_lines(f"x = f()  # diagnose: ignore[{rule}]"),
        with_lines("x = f()  # diagnose: ignore[other-rule] once an epoch"),
        with_lines(),
    ):
        assert drop_ignored(kept, Settings()) == kept
