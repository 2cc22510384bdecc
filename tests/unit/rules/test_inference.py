"""A recording that infers only: nothing is asked of it that only training has."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, drawn
from diagnose.trace import Collective

RULES = plugins.load().rules
OF_TRAINING = (
    "over-checkpointing",
    "regathering-parameters",
    "slow-optimizer",
    "syncing-every-microstep",
    "unoverlapped-gradients",
)
INFERS = """
    host  : olololsssss
    gpu   :   kkkk  kkk
    gpu 20:       gg
"""
TRAINS = """
    host  : olxlolsssss
    gpu   :   kkkk  kkk
    gpu 20:       gg
"""


def answers(rule: str, picture: str) -> list[object]:
    ops = {"o": "aten::mm", "x": "autograd::engine::evaluate_function: MmBackward0"}
    gathered = {"g": Collective("all_gather", 25 << 20, 2, "default_pg")}
    return list(RULES[rule].check(Measures(drawn(picture, repeat=4, ops=ops, comms=gathered))))


@pytest.mark.parametrize("rule", OF_TRAINING)
def test_rules_about_training_ask_for_nothing(rule: str) -> None:
    assert answers(rule, INFERS) == []


def test_names_of_python_functions_are_no_training() -> None:
    """An engine that infers imports what saves tensors for a backward pass that never comes."""
    called = drawn("host: olol\ncall: ffff\ngpu :  k k", repeat=4, frames={"f": "function.py(39): save_for_backward"})
    assert Measures(called).only_infers
    assert not Measures(drawn("host: olxl\ngpu :  k k", repeat=4, ops={"x": "aten::mm_backward"})).only_infers


def test_copying_many_tensors_at_once_is_no_optimizer() -> None:
    """Inputs of a compiled function are copied so to where its graph reads them."""
    for op, infers in (("aten::_foreach_copy_", True), ("aten::_foreach_addcdiv_", False)):
        assert Measures(drawn("host: olxl\ngpu :  k k", repeat=4, ops={"x": op})).only_infers is infers


def test_where_no_optimizer_steps_none_is_treated() -> None:
    late = "host: ol ol xl ol ol\ngpu :   k  k  k  k  k"
    ops = {"x": "autograd::engine::evaluate_function: MmBackward0"}
    for more, expected in (({}, False), ({"o": "aten::_foreach_add_"}, True)):
        measures = Measures(drawn(late, repeat=4, unit_ns=10_000, ops=ops | more))
        (claim,) = (answer for answer in RULES["launch-bound"].check(measures) if isinstance(answer, Claim))
        assert (claim.fixers is None) == expected
        assert not measures.only_infers
        assert expected or claim.fixers == ("compile-model", "cuda-graphs", "bigger-microbatch")


def test_where_there_is_a_backward_pass_the_optimizer_is_asked_for() -> None:
    assert answers("slow-optimizer", TRAINS) != []


def test_python_between_inferences_is_no_metric_of_a_training() -> None:
    def fixers(op: str) -> object:
        picture = "host: ol        xl        \ncall: ffffffffffffffffffff\ngpu :   k         k       "
        trace = drawn(picture, repeat=4, ops={"x": op}, frames={"f": "serve.py(12): answer"})
        (claim,) = (answer for answer in RULES["python-stall"].check(Measures(trace)) if isinstance(answer, Claim))
        assert [(place.file, place.line) for place in claim.where] == [("serve.py", 12)]
        return claim.fixers

    assert fixers("aten::mm") == ()
    assert fixers("autograd::engine::evaluate_function: MmBackward0") == ("guard-metric",)
