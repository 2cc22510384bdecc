"""Device work in the order of its launches, under the names of what launched it."""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure import Measures
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn

OPS = {
    "a": "aten::mm",
    "b": "aten::_softmax",
    "r": "aten::add_",
    "n": "autograd::engine::evaluate_function: MmBackward0",
}


def words(trace: Trace) -> list[str]:
    order = Measures(trace).program_order
    return [order.words[index] for index in order.word_index.tolist()]


def test_work_goes_under_the_name_of_its_operator_without_namespace_and_underscore() -> None:
    trace = drawn(
        """
        host: al bl rl
        gpu :    kkkqqqppp
        opt :          O
        """,
        ops=OPS,
        kernels={"q": "softmax", "p": "add"},
    )
    assert words(trace) == ["mm", "_softmax", "add"]


def test_work_without_an_operator_goes_under_its_kernels_name() -> None:
    forward = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, {}, false>(float*)"
    trace = drawn(
        """
        gpu : abc
        step:    |
        """,
        kernels={"a": forward.format("false"), "b": forward.format("true"), "c": "nvjet_tst_128x256"},
    )
    assert words(trace) == ["_softmax", "_log_softmax", "nvjet_tst_128x256"]


def test_copies_from_the_host_and_sets_are_left_out() -> None:
    trace = drawn(
        """
        gpu : kkhhzzkk
        step:         |
        """
    )
    assert len(words(trace)) == 2


def test_runs_are_the_longest_stretches_of_chosen_neighbours() -> None:
    order = Measures(drawn("gpu : kqkqkq\nstep:       |", kernels={"q": "other"})).program_order
    assert order.runs(np.array([True, True, False, False, True, True])) == [(0, 2), (4, 6)]
    assert order.runs(np.zeros(6, np.bool_)) == []


def test_an_operator_is_within_those_around_it() -> None:
    trace = drawn(
        """
        host: nlln
        gpu :     kk
        opt :     O
        """,
        ops=OPS,
    )
    order = Measures(trace).program_order
    assert order.within(re.compile("MmBackward")).tolist() == [True]
    assert order.backward.tolist() == [True]
    assert order.node.tolist() == [0]
