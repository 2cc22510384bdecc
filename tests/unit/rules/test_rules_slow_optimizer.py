"""What `slow-optimizer` says where one step is unlike the others."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Facts, Site, drawn

RULE = plugins.load().rules["slow-optimizer"]
ADAMW = (Site("optimizer", "train.py", 20, "main", {"name": "AdamW", "foreach": False}),)
USUAL = ("oooooooooooo oo oo oo ", "             OOOOOOOO ")
HELD_UP = ("oooooooooooo oo oo ooo" + "o" * 200 + " ", "             OOOOOOOOO" + "O" * 200 + " ")


def told(*steps: tuple[str, str]) -> Claim:
    host, optimizer = ("".join(lane) for lane in zip(*steps, strict=True))
    trace = drawn(f"host: {host}\nopt : {optimizer}\n", facts=Facts(cpu_count=2), sites=ADAMW)
    (claim,) = (answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim))
    return claim


def test_a_step_in_which_the_optimizer_was_held_up_is_left_out() -> None:
    """Six columns of operators and two of Python in each step, and two hundred more in one."""
    even, odd = told(*[USUAL] * 6), told(*[USUAL] * 5, HELD_UP)
    assert "AdamW.step takes 8.00 ms" in even.summary
    assert "AdamW.step takes 8.00 ms" in odd.summary
    assert odd.recoverable_ns <= even.recoverable_ns


def test_an_optimizer_that_steps_in_every_third_micro_step_is_no_exception() -> None:
    trace = drawn(
        """
        host: ol      ol      ol     olololol
        gpu :   kkkkk   kkkkk   kkkkkkp p p p
        opt :                        OOOOOOOO
        step: |       |       |              |
        """,
        repeat=4,
        kernels={"p": "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"},
        sites=ADAMW,
    )
    measures = Measures(trace)
    (claim,) = (answer for answer in RULE.check(measures) if isinstance(answer, Claim))
    assert measures.step_count > 4
    assert claim.recoverable_ns > 0


def test_who_calls_the_optimizer_is_named_where_nobody_saw_it_made() -> None:
    """A profile with stacks knows no constructors."""
    trace = drawn(
        """
        host: oooooooooooo oo oo oo
        call: ffffffffffffffffffffff
        opt :              OOOOOOOO
        """,
        repeat=4,
        frames={"f": "train.py(44): train_step"},
        facts=Facts(cpu_count=2),
    )
    (claim,) = (answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim))
    assert [(place.file, place.line, place.function) for place in claim.where] == [("train.py", 44, "train_step")]


SGD = (Site("optimizer", "train.py", 20, "main", {"name": "SGD", "foreach": True}),)
LISTS = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor>"


def saved_ms(*ops: str) -> float:
    """What a fused SGD would save of 8 ms of kernels a step, launched by such operators from a host that is ahead."""
    trace = drawn(
        """
        host: olmlalssssssss
        gpu :   kkkkppppqqqq
        opt :   OOOO
        """,
        repeat=4,
        ops=dict(zip("ma", ops, strict=True)),
        kernels=dict.fromkeys("pq", LISTS),
        sites=SGD,
    )
    measures = Measures(trace)
    claims = [answer for answer in RULE.check(measures) if isinstance(answer, Claim)]
    return sum(claim.recoverable_ns for claim in claims) / measures.step_count / 1e6


def test_what_an_optimizer_moves_when_it_is_fused_depends_on_its_terms() -> None:
    assert saved_ms("aten::_foreach_mul_", "aten::_foreach_add_") == pytest.approx(8 * (1 - 0.63), rel=0.01)
    assert saved_ms("aten::_foreach_add_", "aten::_foreach_add_") == pytest.approx(0, abs=0.01), "nothing but gradients"
    assert saved_ms("aten::_foreach_mul_", "aten::_foreach_add") == pytest.approx(8 * (1 - 0.45), rel=0.01)


def test_the_way_into_the_step_stays_whatever_it_launches() -> None:
    """Nine milliseconds of Python before the first kernel, and one before the second."""
    trace = drawn(
        """
        host: ol  oooooooololsss
        gpu :   kk        pp qq
        opt :     OOOOOOOOOOOO
        """,
        repeat=4,
        unit_ns=10_000,
        kernels=dict.fromkeys("pq", "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"),
        sites=ADAMW,
    )
    measures = Measures(trace)
    (claim,) = (answer for answer in RULE.check(measures) if isinstance(answer, Claim))
    assert claim.claims.total_ns == measures.step_count * 50_000, "both kernels and the gap between them"
