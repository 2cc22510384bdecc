"""What the window of the patched program says of all that is still to be tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, Stage, finding, fixer, replacing

from diagnose.compose.proposals import candidates
from diagnose.engine import DiagnosisWithClaims
from diagnose.model import Accounting, CannotTell, Confidence, Decision, Diagnosis, Finding, Steps
from diagnose.source.rewrite.line_map import LineMap
from diagnose.trace import Trace

pytestmark = pytest.mark.usefixtures("nothing_new")


def find_next(
    monkeypatch: pytest.MonkeyPatch,
    *findings: Finding,
    cannot_tell: Sequence[CannotTell] = (),
    claimed: Mapping[str, float] | None = None,
    step_ns: int = 10_000_000,
) -> None:
    answer = Diagnosis(1, (), 1, None, Steps(4, step_ns, step_ns), Accounting(), findings, tuple(cannot_tell))
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [Trace("patched arm")])
    monkeypatch.setattr(candidates, "examine", lambda _traces, _catalogue: DiagnosisWithClaims(answer, claimed or {}))


def test_findings_of_the_patched_program_decide_what_is_tried_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch, finding("new", 2, "faster-loader", "narrow-model"), finding("b", 1, "no-item"))
    narrow = fixer("narrow-model", replacing("model = 3", "model = 30"))
    decisions = dict.fromkeys(("faster-loader", "no-item", "narrow-model"), Decision.KEPT)
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(tmp_path, [LOADER, ITEM, narrow], findings, decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "narrow-model", "no-item"]


def test_an_ailment_that_went_away_with_a_kept_fix_is_not_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch)
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(tmp_path, [LOADER, ITEM], findings, {"faster-loader": Decision.KEPT})
    verdict = stage.run().verdicts[1]
    assert verdict.decision is Decision.NOT_TRIED
    assert verdict.summary == "b is gone since faster-loader was kept"


def test_what_completes_a_kept_fix_is_tried_though_its_ailment_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch)
    more = fixer("no-item", replacing("item", "none"), completes=("faster-loader",))
    findings = [finding("a", 9, "faster-loader", "no-item")]
    stage = Stage(tmp_path, [LOADER, more], findings, dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT))
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


def test_what_speeds_up_the_whole_step_is_tried_though_its_ailment_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch)
    broad = replace(ITEM, whole_step=True)
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(tmp_path, [LOADER, broad], findings, dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT))
    verdict = stage.run().verdicts[1]
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]
    assert verdict.prediction is Confidence.HINT


def test_an_ailment_that_only_sank_into_the_noise_of_the_new_window_is_still_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.3 ms were claimed of a step of 20 ms; of the new one, 10 ms long, they would be 3 %.
    find_next(monkeypatch, claimed={"b": 0.006})
    small = replace(finding("b", 1, "no-item"), recoverable_ns=300_000)
    decisions = {"faster-loader": Decision.KEPT, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), small], decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


@pytest.mark.parametrize(
    ("claimed", "predicted_ns", "reason"),
    [
        (0.004, 300_000, "b is gone since faster-loader was kept"),
        (0.006, 99_000, "b is down to less than 1.0 % of a step since faster-loader was kept"),
    ],
)
def test_an_ailment_too_small_to_be_kept_a_fix_for_is_not_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: float, predicted_ns: int, reason: str
) -> None:
    find_next(monkeypatch, claimed={"b": claimed})
    small = replace(finding("b", 1, "no-item"), recoverable_ns=predicted_ns)
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), small], {"faster-loader": Decision.KEPT})
    verdict = stage.run().verdicts[1]
    assert (verdict.decision, verdict.summary) == (Decision.NOT_TRIED, reason)


def test_an_ailment_that_the_new_window_cannot_judge_is_still_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch, cannot_tell=[CannotTell("b", "samples")])
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    decisions = {"faster-loader": Decision.KEPT, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], findings, decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


def test_places_follow_their_lines_through_a_kept_edit(tmp_path: Path) -> None:
    longer = fixer("imports-more", replacing("import torch\n", "import os\nimport torch\n"))
    findings = [finding("a", 9, "imports-more"), finding("b", 3, "no-item", line=3)]
    decisions = {"imports-more": Decision.KEPT, "no-item": Decision.NO_CHANGE}
    second = Stage(tmp_path, [longer, ITEM], findings, decisions).run().verdicts[1]
    assert (second.where[0].line, second.where[0].code) == (4, "loss = 2")


def test_files_that_are_alike_are_not_compared_line_by_line() -> None:
    before = {"a.py": "one\n", "b.py": "two\n"}
    lines = LineMap.between(before, {"a.py": "one\n", "b.py": "zero\ntwo\n"})
    assert list(lines.files) == ["b.py"]
    assert (lines.line("a.py", 1), lines.line("b.py", 1)) == (1, 2)


def test_a_line_is_found_again_after_an_edit() -> None:
    lines = LineMap.between({"a.py": "one\ntwo\nthree\n"}, {"a.py": "zero\none\nTWO\nthree\n"})
    assert [lines.line("a.py", line) for line in (1, 2, 3)] == [2, 3, 4]
    assert lines.line("b.py", 7) == 7
    assert lines.line("a.py", 99) == 99


def test_a_form_feed_ends_no_line() -> None:
    lines = LineMap.between({"a.py": "one\n\x0ctwo\r\nthree\n"}, {"a.py": "one\n\x0ctwo\r\nhalf\nthree\n"})
    assert [lines.line("a.py", line) for line in (1, 2, 3)] == [1, 2, 4]
