"""What `slow-optimizer` says where one step is unlike the others."""

from __future__ import annotations

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
