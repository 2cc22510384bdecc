"""The adversarial suite: what fixers may and must not edit, and that the oracle sees what an edit changes.

All edits are run by `make safety`; here a few are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from adversarial.families import suite
from adversarial.mutations import Mutation, mutations
from adversarial.oracle import Oracle
from adversarial.program import Program
from adversarial.proposals import fixers, proposals
from adversarial.running import Runner
from diagnose.fixer import Gate
from diagnose.model import Site

PLAIN = "log_script_loss_interval_reset"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as one:
        yield one


def noted(runner: Runner, program: Program, fixer: str) -> Sequence[Site]:
    """What a run shows of the program's optimizers, which one fixer asks for."""
    return runner.run(program.files, ranks=program.ranks).noted if fixer == "fused-optimizer" else ()


def named(name: str) -> Program:
    return next(one for one in suite() if one.name == name)


def test_there_are_three_hundred_programs_and_all_are_python() -> None:
    assert len(suite()) >= 300
    for program in suite():
        for name, text in program.files.items():
            compile(text, f"{program.name}/{name}", "exec")
            assert "<" not in {line.strip()[:1] for line in text.splitlines()}, "a slot was left open"


def test_programs_name_fixers_that_exist() -> None:
    assert {name for one in suite() for name in (*one.edited, *one.left_alone)} <= set(fixers())


EXPECTED = sorted({name for one in suite() for name in one.edited})
LEFT_ALONE = sorted({name for one in suite() for name in one.left_alone})


@pytest.mark.parametrize("fixer", EXPECTED)
def test_what_is_safe_is_edited(runner: Runner, fixer: str) -> None:
    asked = [one for one in suite() if fixer in one.edited]
    assert [one.name for one in asked if not any(proposals(one, fixer, noted(runner, one, fixer)))] == []


@pytest.mark.parametrize("fixer", LEFT_ALONE)
def test_what_is_not_safe_is_left_alone(runner: Runner, fixer: str) -> None:
    asked = [one for one in suite() if fixer in one.left_alone]
    made = [each for one in asked for each in proposals(one, fixer, noted(runner, one, fixer))]
    assert {each.program.name for each in made if each.gate is not Gate.TRAINING} == set()


def test_a_program_agrees_with_itself(runner: Runner) -> None:
    program = named(PLAIN)
    assert [*Oracle(runner, program.files).compare(program.files, Gate.BITWISE)] == []


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("lr=0.1", "lr=0.11", "printed"),
        ("print(epoch", "print('epoch', epoch", "printed"),
        ("for epoch in range(3):", "for epoch in range(2):", "printed"),
        ("import csv, json, math", "import csv, json, no_such_module", "exit"),
        ("torch.manual_seed", "open('left.txt', 'w').close()\ntorch.manual_seed", "files"),
    ],
)
def test_a_change_of_the_program_is_seen(runner: Runner, before: str, after: str, kind: str) -> None:
    program = named(PLAIN)
    edited = program.text.replace(before, after)
    assert edited != program.text
    found = [*Oracle(runner, program.files).compare({"train.py": edited}, Gate.BITWISE)]
    assert kind in {one.kind for one in found}


def test_a_history_that_is_written_only_at_the_end_is_missed_after_ctrl_c(runner: Runner) -> None:
    program = named("loop_finally_writes")
    edited = program.text.replace("finally:", "except ValueError:\n    pass\nelse:")
    found = [*Oracle(runner, program.files).compare({"train.py": edited}, Gate.BITWISE)]
    assert {(one.mode, one.kind) for one in found} == {("exception", "files"), ("interrupt", "files")}


def test_rounding_may_move_figures_as_far_as_a_disturbed_weight_does_and_no_farther(runner: Runner) -> None:
    program = named("norm_rms_small")
    oracle = Oracle(runner, program.files)
    sooner = program.text.replace("x * torch.rsqrt(", "(x * self.weight) * torch.rsqrt(").replace(
        "+ self.eps) * self.weight", "+ self.eps)"
    )
    wrong = program.text.replace("+ self.eps) * self.weight", "+ 100 * self.eps) * self.weight")
    assert program.text not in (sooner, wrong)
    assert [*oracle.compare({"train.py": sooner}, Gate.ROUNDING)] == []
    assert [*oracle.compare({"train.py": wrong}, Gate.ROUNDING)] != []


@pytest.mark.parametrize("fixer", ["zero-grad-none", "loader-workers"])
def test_a_proposal_for_a_plain_program_keeps_what_it_does(runner: Runner, fixer: str) -> None:
    program = named("step_adamw_kept_both_heads") if fixer == "zero-grad-none" else named("data_function_plain")
    made = [*proposals(program, fixer)]
    assert made
    assert [str(one) for one in Oracle(runner, program.files).differences(made[0])] == []


def test_there_are_forty_wrong_edits_and_each_fits_its_program() -> None:
    wrong = [*mutations()]
    assert len(wrong) >= 40
    assert len({(one.name, one.fixer) for one in wrong}) == len(wrong)
    for one in wrong:
        compile(one.edited, one.name, "exec")


@pytest.mark.parametrize("mutation", [*mutations()][::8], ids=lambda one: one.name)
def test_the_oracle_sees_a_wrong_edit(runner: Runner, mutation: Mutation) -> None:
    program = mutation.program
    assert [*Oracle(runner, program.files, program.ranks).compare({"train.py": mutation.edited}, mutation.gate)]
