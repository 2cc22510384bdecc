"""Fixes that take no time off a step, and are kept for what they mend or free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, Stage, finding

from diagnose.model import Decision, Interval, Verdict

pytestmark = pytest.mark.usefixtures("nothing_new")


def test_what_ends_the_run_is_mended_though_no_step_gets_shorter(tmp_path: Path) -> None:
    deadly = replace(finding("leaking-memory", 0, "faster-loader"), ends_run=True)
    stage = Stage(tmp_path, [LOADER], [deadly], {"faster-loader": Decision.NO_CHANGE})
    (verdict,) = stage.run().verdicts
    assert verdict.decision is Decision.KEPT
    assert verdict.summary.startswith("the step takes as long as before, but the run would end of leaking-memory")
    harmless = Stage(tmp_path, [LOADER], [replace(deadly, ends_run=False)], {"faster-loader": Decision.NO_CHANGE})
    assert harmless.run().verdicts[0].decision is Decision.NO_CHANGE


def short_of_memory(folder: Path, peak_bytes: tuple[int, int] | None, saving: float = 0.0) -> Verdict:
    short = replace(finding("memory-pressure", 0, "faster-loader"), short_of_memory=True)
    stage = Stage(folder, [LOADER], [short], {"faster-loader": Decision.NO_CHANGE})
    stage.bench.saving = Interval(saving, saving - 0.02, saving + 0.02)
    stage.bench.peak_bytes = peak_bytes
    return stage.run().verdicts[0]


def test_where_memory_is_short_a_fix_is_kept_for_what_it_frees(tmp_path: Path) -> None:
    verdict = short_of_memory(tmp_path, (80 << 30, 60 << 30))
    assert verdict.decision is Decision.KEPT
    assert "but memory is short, and its peak falls from 80.0 GiB to 60.0 GiB" in verdict.summary


@pytest.mark.parametrize(
    ("peak_bytes", "saving"), [((80 << 30, 78 << 30), 0.0), ((80 << 30, 60 << 30), -0.03), (None, 0.0)]
)
def test_little_memory_slower_steps_or_an_unknown_peak_are_no_reason(
    tmp_path: Path, peak_bytes: tuple[int, int] | None, saving: float
) -> None:
    assert short_of_memory(tmp_path, peak_bytes, saving).decision is Decision.NO_CHANGE


@pytest.mark.parametrize(("short", "checked"), [(True, []), (False, ["faster-loader"])])
def test_what_frees_memory_is_not_left_out_for_saving_no_time(tmp_path: Path, short: bool, checked: list[str]) -> None:
    first = replace(finding("memory-pressure", 0, "faster-loader"), short_of_memory=short)
    stage = Stage(
        tmp_path,
        [LOADER, ITEM],
        [first, finding("b", 0, "no-item")],
        dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT),
    )
    stage.run()
    assert [name for name, _, _ in stage.bench.checks] == checked
