"""What launches cost, and where: the lines whose operators launch the late work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import CannotTell, Claim, drawn
from diagnose.trace.schema import RangeKind


def test_late_work_of_a_backward_pass_is_the_forward_lines() -> None:
    """The backward pass takes most of the time; the line is that of the operator which it goes back to."""
    trace = drawn(
        """
        call: uuuuuuuuuuuuuuuuuu
        call: ffff
        host: nl bl bl bl bl bl
        gpu :   k  k  k  k  k  k
        step:                   |
        """,
        repeat=4,
        unit_ns=10_000,
        ops={"n": "aten::linear", "b": "AddmmBackward0"},
        frames={"u": "train.py(46): main", "f": "model.py(17): forward"},
    )
    number = np.where(trace.ops.end_ns > trace.ops.start_ns, 7, -1)
    trace = replace(trace, ops=replace(trace.ops, sequence=number))
    (claim,) = (a for a in plugins.load().rules["launch-bound"].check(Measures(trace)) if isinstance(a, Claim))
    assert [place.file for place in claim.where] == ["model.py"]


INFERENCE = """
host: nl ol nl ol nl ol
gpu :   k  k  k  k  k  k
step:                   |
"""


def test_a_recording_of_inference_gets_no_fix_of_training() -> None:
    trained = drawn(INFERENCE, repeat=4, unit_ns=10_000, ops={"n": "aten::linear", "o": "aten::relu"})
    rule = plugins.load().rules["launch-bound"]
    (claim,) = (a for a in rule.check(Measures(trained)) if isinstance(a, Claim))
    assert claim.fixers is None  # all of the rule's: its steps end with an optimizer's
    names = tuple(name.replace("Optimizer.step", "decode") for name in trained.names)
    ranges = replace(trained.ranges, kind=np.full_like(trained.ranges.kind, RangeKind.STEP))
    (claim,) = (a for a in rule.check(Measures(replace(trained, names=names, ranges=ranges))) if isinstance(a, Claim))
    assert claim.fixers == ("compile-model", "cuda-graphs")


WITH_AN_OPTIMIZER = """
host: ol ol ol ol ol ol
opt :             oooooo
gpu :   k  k  k  k  e  e
step:                   |
"""


def test_launches_of_the_optimizer_are_a_claim_of_their_own() -> None:
    """A model that is compiled launches its optimizer's kernels as before, and a fused optimizer only those at once."""
    rule = plugins.load().rules["launch-bound"]
    trace = drawn(WITH_AN_OPTIMIZER, repeat=4, unit_ns=10_000, kernels={"e": "vectorized_elementwise_kernel"})
    model, optimizer = (a for a in rule.check(Measures(trace)) if isinstance(a, Claim))
    assert model.fixers is not None and "fused-optimizer" not in model.fixers
    assert optimizer.fixers == ("fused-optimizer",)
    assert 0 < optimizer.recoverable_ns < model.recoverable_ns
    assert (model.claims & optimizer.claims).total_ns == 0
    assert "launches of the optimizer" in optimizer.summary


def test_each_claim_tells_what_its_own_launches_take_on_the_host() -> None:
    drawing = """
    host: ol ol ol ol ooool ooool
    opt :             ooooooooooo
    gpu :   k  k  k  k     e     e
    step:                         |
    """
    trace = drawn(drawing, repeat=4, unit_ns=10_000, kernels={"e": "vectorized_elementwise_kernel"})
    claims = [a for a in plugins.load().rules["launch-bound"].check(Measures(trace)) if isinstance(a, Claim)]
    model, optimizer = (int(one.evidence[1].value) for one in claims)
    assert 25_000 < model <= 35_000
    assert 50_000 <= optimizer < 65_000


def test_an_operator_that_is_held_up_is_not_part_of_what_launches_take() -> None:
    drawing = """
    host: ol ol ol ol xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ol
    gpu :   k  k  k  k                                           kkk
    step:                                                           |
    """
    trace = drawn(drawing, repeat=4, unit_ns=100_000, ops={"x": "aten::view"})
    (claim,) = (a for a in plugins.load().rules["launch-bound"].check(Measures(trace)) if isinstance(a, Claim))
    assert claim.evidence[1].measure == "host time per kernel"
    assert 200_000 <= claim.evidence[1].value <= 300_000, "4 ms of 5.6 ms are no launches"


def test_launches_into_a_graph_that_is_captured_are_none_that_the_device_waits_for() -> None:
    drawing = """
    host: BnononononoE ol ol
    gpu :                k  k
    step:                    |
    """

    def answers(begins: str, ends: str) -> list[Claim | CannotTell]:
        trace = drawn(drawing, repeat=4, unit_ns=100_000, calls={"B": begins, "E": ends}, ops={"n": "aten::add"})
        return list(plugins.load().rules["launch-bound"].check(Measures(trace)))

    (answer,) = answers("hipStreamBeginCapture", "hipStreamEndCapture")
    assert isinstance(answer, CannotTell)
    assert "captured" in answer.needs
    assert any(isinstance(one, Claim) for one in answers("cudaEventQuery", "cudaEventRecord"))


def test_an_operator_that_takes_much_of_the_issuing_is_named() -> None:
    drawing = """
    host: vv vv vv   ol ol
    gpu :              k  k
    step:                  |
    """
    trace = drawn(drawing, repeat=4, unit_ns=10_000, ops={"v": "aten::as_strided"})
    (claim,) = (a for a in plugins.load().rules["launch-bound"].check(Measures(trace)) if isinstance(a, Claim))
    told = {one.measure: one.value for one in claim.evidence}
    assert told["aten::as_strided per step"] == 3
    assert told["aten::as_strided, by itself"] == 60_000


def test_a_few_kernels_do_not_tell_how_fast_the_host_issues_them() -> None:
    few = drawn("host: oooool ol ol\ngpu :       k  k  k", unit_ns=100_000)
    assert list(plugins.load().rules["launch-bound"].check(Measures(few))) == []
