"""benchmarks/safety.py: parts cover all pairs once, are put together, and what does not end in time is not judged."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import safety
from adversarial.program import Program
from adversarial.proposals import proposals
from adversarial.running import TIMED_OUT, Outcome
from parts import Part, read_part

from diagnose.model import Site

TEXT = (
    "import torch\noptimizer = torch.optim.SGD(w, lr=0.1)\nfor x in data:\n    f(x).backward()\n    optimizer.step()\n"
)
TEXT += "    optimizer.zero_grad(set_to_none=False)\n"
PROGRAMS = [Program(name, "test", TEXT + f"print('{name}')\n") for name in ("one", "two", "three")]
FIXERS = ["zero-grad-none", "fused-optimizer", "use-sdpa", "native-gelu"]
Codes = Callable[[bool, str], int]
"""The exit code of the program as found (or edited), in a mode."""


def well(_edited: bool, _mode: str) -> int:
    """All runs end as they should."""
    return 0


class FakeRunner:
    """Runs nothing."""

    codes: Codes = staticmethod(well)

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def run(self, files: Mapping[str, str], *, mode: str = "whole", **_others: int) -> Outcome:
        edited = all(files != program.files for program in PROGRAMS)
        return Outcome((type(self).codes(edited, mode),), ("1.5",), ("",), {}, 9, ())


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(safety, "suite", lambda: PROGRAMS)
    monkeypatch.setattr(safety, "Runner", FakeRunner)
    yield


def called(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str, codes: Codes | None = None) -> int:
    """Run the command."""
    monkeypatch.setattr(FakeRunner, "codes", staticmethod(codes or well))
    fixers = [word for name in FIXERS for word in ("--fixer", name)] if "--merge" not in words else []
    monkeypatch.setattr(sys, "argv", ["safety.py", str(out), *fixers, *words])
    return safety.main()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def late(which: bool, mode: str) -> Codes:
    """Codes of runs of which one does not end in time."""
    return lambda edited, now: TIMED_OUT if (edited, now) == (which, mode) else 0


@pytest.mark.parametrize("mode", ["whole", "exception", "interrupt"])
def test_an_edit_that_does_not_end_in_time_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    assert called(monkeypatch, tmp_path, "--program", "one", codes=late(True, mode)) == 1
    rows = lines(tmp_path / "pairs.jsonl")
    assert {row["answer"] for row in rows} == {"not judged"}
    assert str(rows[0]["detail"]).endswith(f"({mode})")
    summary = (tmp_path / "summary.md").read_text()
    assert f" 0 wrong, 0 unwarranted, 0 missing, {len(rows)} not judged, 0 failed." in summary


def test_a_program_that_does_not_end_in_time_as_found_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert called(monkeypatch, tmp_path, "--program", "one", codes=late(False, "whole")) == 1
    (row,) = lines(tmp_path / "pairs.jsonl")
    assert (row["fixer"], row["answer"]) == ("", "not judged")
    assert " 0 edits proposed, 0 wrong, " in (tmp_path / "summary.md").read_text()


def test_an_edit_that_is_wrong_before_another_run_takes_too_long_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    codes = {"exception": 3, "interrupt": TIMED_OUT}
    assert called(monkeypatch, tmp_path, codes=lambda edited, mode: codes.get(mode, 0) if edited else 0) == 1
    assert {row["answer"] for row in lines(tmp_path / "pairs.jsonl")} == {"wrong"}


def test_edits_that_change_nothing_are_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert called(monkeypatch, tmp_path) == 0
    assert {row["answer"] for row in lines(tmp_path / "pairs.jsonl")} == {"right"}


def test_a_fixer_that_raises_has_failed_and_all_others_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def raising(program: Program, name: str, noted: Sequence[Site]) -> Iterator[object]:
        if (program.name, name) == ("one", "zero-grad-none"):
            raise IndexError("list index out of range")
        return proposals(program, name, noted)

    monkeypatch.setattr(safety, "proposals", raising)
    assert called(monkeypatch, tmp_path) == 1
    rows = lines(tmp_path / "pairs.jsonl")
    (failed,) = [row for row in rows if row["answer"] == "failed"]
    assert failed == {
        "program": "one",
        "fixer": "zero-grad-none",
        "answer": "failed",
        "detail": "IndexError: list index out of range",
    }
    assert {str(row["program"]) for row in rows if row["answer"] == "right"} >= {"two", "three"}
    assert "12 pairs asked" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_parts_together_are_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int) -> None:
    parts = [tmp_path / f"part{number}" for number in range(1, count + 1)]
    for number, part in enumerate(parts, 1):
        assert called(monkeypatch, part, "--part", f"{number}/{count}") == 0
    assert called(monkeypatch, tmp_path / "all") == 0
    assert called(monkeypatch, tmp_path / "merged", "--merge", *map(str, parts)) == 0
    rows = [sorted(map(str, lines(tmp_path / folder / "pairs.jsonl"))) for folder in ("all", "merged")]
    assert rows[0] == rows[1]
    heads = [(tmp_path / folder / "summary.md").read_text().splitlines()[0] for folder in ("all", "merged")]
    assert heads[0] == heads[1]
    assert "3 programs × 4 fixers: 12 pairs asked" in heads[0]


def test_parts_that_do_not_cover_all_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert called(monkeypatch, tmp_path / "1", "--part", "1/2") == 0
    assert called(monkeypatch, tmp_path / "merged", "--merge", str(tmp_path / "1")) == 1
    summary = (tmp_path / "merged" / "summary.md").read_text()
    assert "**Not asked: 4 of 12 pairs.**" in summary
    assert "- two: all fixers\n" in summary
    assert called(monkeypatch, tmp_path / "2", "--part", "2/2") == 0
    assert called(monkeypatch, tmp_path / "again", "--merge", str(tmp_path / "merged"), str(tmp_path / "2")) == 0


def test_a_program_that_a_part_was_ended_in_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called(monkeypatch, tmp_path / "part")
    told = tmp_path / "part" / "asked.jsonl"
    told.write_text("".join(told.read_text().splitlines(keepends=True)[:-1]))
    assert called(monkeypatch, tmp_path / "merged", "--merge", str(tmp_path / "part")) == 1
    assert "- three: all fixers\n" in (tmp_path / "merged" / "summary.md").read_text()


def test_parts_are_every_nth_item() -> None:
    items: Sequence[int] = range(7)
    assert [list(Part(number, 3).of(items)) for number in (1, 2, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert read_part("2/3") == Part(2, 3)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "/2", "a/b", "1/0", "-1/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read_part(text)
