"""Operators that compute on the processor while the device idles, told from operators that are held up."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.rule import Confidence, Trace, drawn

MS = 1_000_000
OPS = {"n": "aten::normal_", "o": "aten::mm"}


def trace(picture: str, repeat: int = 5) -> Trace:
    return drawn(picture, repeat=repeat, ops=OPS, frames={"f": "train.py(12): augment"})


DRAWS = """
    host: nnnnnnnnnnnnol
    call: ffffffffffff
    gpu :              kkkkkkkk
    step:                      |
"""
QUICK = """
    host: ol
    gpu :  kkkkkkkk
    step:          |
"""
ONE_OF_MANY = """
    host: n.n.n.n.n.nnnnol
    gpu :                kkkkkkkk
    step:                        |
"""
IN_A_LOADER = """
    load: wwwwwwwwwwww
    host: nnnnnnnnnnnnol
    gpu :              kkkkkkkk
    step:                      |
"""
HIDDEN = """
    host: olnnnnnn
    gpu :  kkkkkkkk
    step:          |
"""


def test_random_numbers_drawn_on_the_host_are_the_first_finding() -> None:
    first = diagnose([trace(DRAWS)], plugins.load_rules()).findings[0]
    assert (first.rule, first.recoverable_ns) == ("python-stall", 12 * MS)
    assert [(place.file, place.line) for place in first.where] == [("train.py", 12)]
    assert "aten::normal_" in first.summary
    assert first.fixers == ()


def test_that_time_is_not_said_to_be_spent_standing_still() -> None:
    measures = Measures(trace(DRAWS))
    assert measures.host_computing.by_op == {"aten::normal_": 12 * MS * measures.step_count}
    assert (measures.stands_still & measures.host_computing.time).total_ns == 0


@pytest.mark.parametrize("picture", [QUICK, ONE_OF_MANY, IN_A_LOADER, HIDDEN])
def test_what_is_quick_seldom_long_in_a_loader_or_hidden_is_no_computing(picture: str) -> None:
    measures = Measures(trace(picture))
    assert measures.step_count >= 3
    assert measures.host_computing.by_op == {}


def test_once_is_no_habit() -> None:
    """The first use of an operator gets ready for it; two steps may be a chance."""
    once = drawn(
        """
        host: ol       ol       nnnnnnnnol       ol
        gpu :  kkkkkkkk kkkkkkkk         kkkkkkkk kkkkkkkk
        step:          |        |                |        |
        """,
        ops=OPS,
    )
    assert Measures(once).host_computing.by_op == {}
    assert Measures(trace(DRAWS, repeat=3)).step_count == 2
    assert Measures(trace(DRAWS, repeat=3)).host_computing.by_op == {}


COMPILED = """
    op  : CCCCCCCCCC
    host: xl      yl
    gpu :   kk      kkkkk
    step:                |
"""
"""A compiled function that works by itself for 4 ms before it launches the second kernel."""


def test_what_an_operator_does_before_the_same_one_that_it_holds_is_computing() -> None:
    measures = Measures(drawn(COMPILED, repeat=5, ops={"C": "CompiledFunction", "x": "triton_0", "y": "triton_1"}))
    assert measures.host_computing.by_op == {"CompiledFunction before triton_1": 4 * MS * measures.step_count}


def test_an_operator_that_is_held_up_before_another_one_each_time_is_not() -> None:
    ops = {"C": "CompiledFunction", "x": "triton_0", "y": "triton_1", "z": "triton_2", "w": "triton_3"}
    varying = """
        op  : CCCCCCCCCCCC      CCCCCCCCCCCC      CCCCCCCCCCCC      CCCCCCCCCCCC
        host: xlyl    zlwl      xl    ylzlwl      xlylzl    wl      xlyl    zlwl
        gpu :   k k     k kkkkk   k     k k kkkkk   k k k     kkkkk   k k     k kkkkk
        step:                  |                 |                 |                 |
    """
    measures = Measures(drawn(varying, repeat=2, ops=ops))
    assert measures.step_count >= 6
    assert measures.host_computing.by_op == {}


HELD_UP = """
    host: xxxxxxol ol      ol   yyyyyyol ol      ol
    gpu :         kk k       kkk        kk k       kkk
    step:                      |                     |
"""
"""An operator that issues nothing for 6 ms, another one each time, and then 6 ms of Python."""


def test_python_of_a_thread_that_stands_still_in_operators_as_well_is_a_bound() -> None:
    """No core to run on shows in both, and who had it is not recorded."""

    def confidence(picture: str) -> Confidence:
        trace = drawn(picture, repeat=4, ops={"x": "aten::view", "y": "aten::empty"})
        findings = diagnose([trace], plugins.load_rules()).findings
        return next(one for one in findings if one.rule == "python-stall").confidence

    assert confidence(HELD_UP) is Confidence.BOUND
    assert confidence(HELD_UP.replace("xxxxxx", " " * 6).replace("yyyyyy", " " * 6)) is Confidence.MEASURED
