"""Batches that are late in the log of a live run, while the traced steps live on what workers had made before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Site, drawn
from diagnose.trace.schema import RangeKind, Ranges, StepLog

MS = 1_000_000
LOADER = Site("DataLoader", "train.py", 12, "main", {"num_workers": 4, "batch_size": 64})
DRAWING = """
    host: olsssssss olsssssss
    gpu :   kkkkkkk   kkkkkkk
    opt :         O         O
    """


def claims(
    waits_ms: Sequence[float], lengths_ms: Sequence[float] | None = None, passes: Sequence[int] = ()
) -> list[Claim]:
    """What `input-bound` says of steps that compute for 10 ms each, where the log has these waits.

    `passes` are the steps in which a pass over the loader begins.
    """
    waits = np.array(waits_ms)
    lengths = waits + 10 if lengths_ms is None else np.array(lengths_ms)
    log = StepLog.build({"end_ns": np.cumsum(lengths * MS).astype(int), "input_ns": (waits * MS).astype(int)})
    trace = drawn(DRAWING, repeat=2, sites=(LOADER,), step_log=log)
    begins = log.end_ns[list(passes)] - 9 * MS
    columns = {"kind": [RangeKind.INPUT] * len(begins), "name": [len(trace.names)] * len(begins)}
    ranges = Ranges.build({"start_ns": begins, "end_ns": begins + MS, **columns})
    trace = replace(trace, ranges=ranges, names=(*trace.names, "DataLoader.__iter__")) if passes else trace
    return [one for one in plugins.load().rules["input-bound"].check(Measures(trace)) if isinstance(one, Claim)]


def test_every_fourth_batch_of_four_workers_is_late() -> None:
    (claim,) = claims([0, 0, 0, 6] * 12)
    assert claim.recoverable_ns == 0
    assert claim.unseen_ns == pytest.approx(1.5 * MS, rel=0.1)
    assert "its 4 workers are too few; about 5 would keep up" in claim.summary
    (late,) = [one.value for one in claim.evidence if one.measure == "late batches in the log"]
    assert late == 10


def test_one_late_batch_in_twenty_is_the_start_of_an_epoch() -> None:
    assert claims(([0] * 19 + [60]) * 6) == []


def test_a_late_batch_with_which_a_pass_begins_is_the_start_of_an_epoch_however_short() -> None:
    waits = ([0] * 11 + [60]) * 6
    assert claims(waits, passes=range(11, 72, 12)) == []
    assert len(claims(waits)) == 1, "nothing saw where passes begin"


def test_two_late_batches_are_an_accident() -> None:
    assert claims([0] * 20 + [6] + [0] * 10 + [6] + [0] * 4) == []


def test_a_host_ahead_of_its_device_makes_up_for_a_late_batch() -> None:
    """Its steps take 5 ms beside a device that needs 7, and the wait hides in what it was ahead."""
    hidden = claims([0, 0, 0, 8] * 12, [5, 5, 5, 13] * 12)
    assert sum(one.unseen_ns for one in hidden) < 0.3 * MS, "two ms, were none made up for"


def test_steps_that_are_long_for_another_reason_are_not_the_loaders() -> None:
    assert claims([0.2] * 48, [10, 10, 10, 16] * 12) == []
