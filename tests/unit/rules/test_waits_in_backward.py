"""Waits for the device on autograd's own thread: a custom backward pass that reads a value holds training up."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Diagnosis, Severity
from diagnose.rule import Claim, Trace, drawn
from diagnose.trace.schema import HostCalls, Ops, Ranges

T = TypeVar("T", Ops, HostCalls, Ranges)
RULES = plugins.load_rules()
ON_ITS_OWN = """
    host   : ol
    host 1 :         ol sssss  ol sssss  ol sssss
    call 1 :         ffffffff  ffffffff  ffffffff
    gpu    :   kkkkk   kkkkkk    kkkkkk    kkkkkk
    step   :                                     |
"""
ON_THE_SAME = """
    host   : ol      ol sssss  ol sssss  ol sssss
    call   :         ffffffff  ffffffff  ffffffff
    gpu    :   kkkkk   kkkkkk    kkkkkk    kkkkkk
    step   :                                     |
"""
OF_A_HELPER = """
    host   : olol
    host 1 :    sssssssssssssssssssssssssssssssss
    gpu    :   kkkkkkkkkkkkkkkkkKKKKKKKKKKKKKKKKKK
    step   :                                     |
"""


def pictured(picture: str) -> Trace:
    return drawn(
        picture,
        unit_ns=50_000,
        repeat=4,
        ops={"o": "aten::item"},
        kernels={"K": "other_kernel"},
        frames={"f": "clip.py(12): backward"},
    )


def diagnosed(picture: str) -> Diagnosis:
    return diagnose([pictured(picture)], RULES)


@pytest.mark.parametrize("picture", [ON_ITS_OWN, ON_THE_SAME])
def test_a_backward_pass_that_reads_values_is_found_on_whatever_thread(picture: str) -> None:
    first = diagnosed(picture).findings[0]
    assert (first.rule, first.severity) == ("host-sync", Severity.HIGH)
    assert [(place.file, place.line) for place in first.where] == [("clip.py", 12)]


def test_it_costs_the_same_on_either_thread() -> None:
    own, same = (diagnosed(picture).findings[0].recoverable_ns for picture in (ON_ITS_OWN, ON_THE_SAME))
    assert own == pytest.approx(same, rel=0.05)


def test_the_operator_of_a_wait_is_named_where_no_thread_is_known() -> None:
    trace = pictured(ON_THE_SAME)
    around = replace(trace.ops, end_ns=trace.ops.end_ns + 350_000)  # until the wait after it has returned
    for ops, calls, ranges in (
        (around, trace.calls, trace.ranges),
        (nowhere(around), nowhere(trace.calls), nowhere(trace.ranges)),
    ):
        measures = Measures(replace(trace, ops=ops, calls=calls, ranges=ranges))
        summaries = [claim.summary for claim in RULES.rules["host-sync"].check(measures) if isinstance(claim, Claim)]
        assert len(summaries) == 1
        assert "aten::item" in summaries[0]
    assert measures.thread == -1


def nowhere(table: T) -> T:
    return replace(table, thread=np.full_like(table.thread, -1))


def test_a_thread_that_only_waits_is_no_part_of_training() -> None:
    """As one that writes a log, or watches over collectives."""
    measures = Measures(pictured(OF_A_HELPER))
    assert measures.training_threads == {0}
    assert len(measures.wait_calls) == 0
    assert "host-sync" not in {finding.rule for finding in diagnosed(OF_A_HELPER).findings}
