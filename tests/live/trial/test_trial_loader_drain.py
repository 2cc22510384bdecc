"""A block shows what a loader delivers in the long run, whatever its workers made while the program rested.

The program is a puppet with a loader on a clock of its own. It hears when it may go on after a rest, in which its
workers made all that they were asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from watching import LIMIT_NS

from diagnose.collect.inside.hooks.loader_stock import stock_of
from diagnose.collect.inside.hooks.step_hooks import StepHooks, hook_loader
from diagnose.program import Program
from diagnose.trial.process.arm import Arm, Workplace
from diagnose.trial.process.loader_drain import MOST_ROUNDS, LoaderDrain, LoaderStock
from diagnose.trial.process.process_group import Groups

PUPPET = """
import json, os, signal, socket, sys

workers, ahead, work, step, passes = map(int, (*sys.argv[1:], 10**9)[:5])

class Loader:
    def __init__(self):
        self.now, self.taken, self.waited, self.made = 0, 0, 0, []
        self.steps_taken = self.ends = 0
        self.begin()
    def begin(self):
        self.ends += passes
        for _ in range(workers * ahead):
            self.ask(self.now)
    def ask(self, at):
        if len(self.made) == self.ends:
            return
        before = self.made[-workers] if len(self.made) >= workers else 0
        self.made.append(max(at, before) + work)
    def take(self):
        self.steps_taken += 1
        if self.taken == self.ends:
            self.begin()
        self.waited += max(0, self.made[self.taken] - self.now)
        self.now = max(self.now, self.made[self.taken])
        self.taken += 1
        self.ask(self.now)
        self.now += step
    @property
    def stock(self):
        left = self.made[self.taken:]
        held = sum(made <= self.now for made in left)
        return {"held": held, "asked": len(left), "workers": workers, "most": workers * ahead}

loader = Loader()
def rested(*_):
    loader.now += 100 * work
signal.signal(signal.SIGCONT, rested)
recipe = json.loads(os.environ["DIAGNOSE_RECIPE"])
link = socket.socket(socket.AF_UNIX)
link.connect(recipe["socket"])
lines = link.makefile("r")
def say(**message):
    link.sendall(json.dumps(message).encode() + b"\\n")
say(hello={"rank": 0, "world_size": 1, "pid": os.getpid(), "group": os.getpgid(0)})
for _ in range(5):
    loader.take()
say(ready={"steps": 5, "step_ns": 1, "at_ns": 1, "memory": {"peak_bytes": 7}, "stock": loader.stock})
for line in lines:
    word, wanted = next(iter(json.loads(line).items()))
    for _ in range(wanted["drop"]):
        loader.take()
    began, waited = loader.now, loader.waited
    for _ in range(wanted["steps"]):
        loader.take()
    took, waits = loader.now - began, loader.waited - waited
    memory = {"peak_bytes": loader.steps_taken}
    say(block={"total_ns": took, "steps_ns": [], "input_ns": waits, "memory": memory, "stock": loader.stock})
"""


@contextmanager
def arms_with(
    folder: Path, *loader: int, edited: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[list[Arm]]:
    """Two warmed-up arms whose loaders have so many workers, ask each for so many, and take so long for a batch; then
    the length of a step, and of a pass over the data. `edited` files of either make it another program."""
    programs = []
    for name in ("one", "other"):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(PUPPET)
        programs.append(Program.parse(["train.py", *map(str, loader)], cwd=folder / name))
    files = {folder / name: [str(folder / name / file) for file in edited.get(name, ())] for name in ("one", "other")}
    with Groups() as groups, ExitStack() as stack:
        place = Workplace(groups, folder / "arms", sys.executable, lambda _: dict(os.environ), edited=files)
        arms = [stack.enter_context(Arm(place, one, str(number), 5)) for number, one in enumerate(programs)]
        for arm in arms:
            arm.ready(LIMIT_NS)
        yield arms


@contextmanager
def arm_with(folder: Path, *loader: int) -> Iterator[Arm]:
    """One of those."""
    with arms_with(folder, *loader) as (arm, _):
        yield arm


@pytest.mark.parametrize(
    ("loader", "step"),
    [
        ((2, 4, 60, 5), 30),  # far behind: the queues would serve a whole block
        ((12, 2, 360, 6), 30),  # batches come in waves of twelve
        ((10, 4, 300, 15), 30),
        ((3, 2, 100, 20), 100 / 3),
        ((16, 4, 600, 30), 37.5),  # a little behind, with a long stock
        ((6, 2, 100, 13), 100 / 6),
        ((2, 2, 60, 25), 30),
        ((8, 4, 330, 30), 41.25),
        ((4, 2, 100, 40), 40),  # keeps up
        ((1, 2, 10, 40), 40),
        ((16, 4, 2400, 22, 48), 150),
        ((4, 4, 400, 10, 8), 100),
        ((4, 4, 4, 40, 8), 40),
    ],
)
def test_blocks_show_what_is_delivered_in_the_long_run(tmp_path: Path, loader: tuple[int, ...], step: float) -> None:
    with arm_with(tmp_path, *loader) as arm:
        blocks = [arm.run(10, 2, LIMIT_NS) for _ in range(4)]
    assert [block.mean_ns for block in blocks] == pytest.approx([step] * 4, rel=0.04)


def test_a_loader_that_keeps_up_costs_no_steps(tmp_path: Path) -> None:
    with arm_with(tmp_path, 1, 2, 10, 40) as arm:
        blocks = [arm.run(10, 2, LIMIT_NS) for _ in range(3)]
    assert [block.memory.peak_bytes for block in blocks] == [5 + 12, 5 + 24, 5 + 36]


def test_where_a_loader_is_behind_each_worker_has_its_turn_in_a_block(tmp_path: Path) -> None:
    with arm_with(tmp_path, 12, 2, 360, 6) as arm:
        assert arm.run(10, 2, LIMIT_NS).steps == 12
        assert arm.run(13, 2, LIMIT_NS).steps == 24


def test_using_up_and_the_block_after_it_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rounds it takes, a turn ends when a budget does."""
    with arm_with(tmp_path, 12, 2, 360, 6) as arm:
        ends: list[int] = []
        answers = arm._answers

        def noted(name: str, end_ns: int) -> list[dict[str, Any]]:
            ends.append(end_ns)
            return answers(name, end_ns)

        monkeypatch.setattr(arm, "_answers", noted)
        arm.run(10, 2, LIMIT_NS)
    assert len(ends) > 2
    assert len(set(ends)) == 1


def test_steps_go_before_a_block_as_far_as_it_then_ends_in_time(tmp_path: Path) -> None:
    """Each worker's turn may take longer than a block of long steps has: better a block too fast than none."""
    second = 10**9
    with arm_with(tmp_path, 16, 2, 20 * second, second) as arm:
        blocks = [arm.run(2, 1, limit_s * second) for limit_s in (100, 30, 20)]
    assert [block.steps for block in blocks] == [16, 16, 2]
    taken = [5, *(block.memory.peak_bytes or 0 for block in blocks)]
    rounds, *none = (after - before for before, after in pairwise(taken))
    assert rounds > 1 + 16 + 16
    assert none == [1 + 16, 1 + 2]


def test_what_was_shown_holds_until_training_waits_in_blocks_however_short(tmp_path: Path) -> None:
    with arm_with(tmp_path, 2, 1, 60, 5) as arm:
        arm._stock = LoaderDrain(())
        steps = [arm.run(3, 2, LIMIT_NS).steps for _ in range(3)]
    assert steps == [3, 3, 4]  # whole turns of both workers, by then


def stock(held: int) -> LoaderStock:
    return LoaderStock(held, asked=8, workers=2, most=8)


def over(*held: int, waited: float = 0.0) -> tuple[int, LoaderDrain]:
    """After how many rounds the steps before a block end, where the stock is this after each, and what is done next."""
    using = LoaderDrain.of([stock(3)])
    rounds = next(number for number, left in enumerate(held) if not using.goes_on([stock(left)], waited))
    return rounds, using.then()


def test_rounds_end_once_the_stock_shrinks_no_more() -> None:
    assert over(8, 5, 2, 0, 0, 0)[0] == 5
    assert over(5, 5, 5, 5)[0] == 2


def test_a_wave_of_batches_in_one_round_hides_no_shrinking() -> None:
    assert over(8, 6, 7, 5, 6, 4, 6)[0] == 6


def test_rounds_end_once_training_waits_with_less_in_stock_than_comes_at_once() -> None:
    assert over(5, 3, 1, 0, waited=0.2)[0] == 2
    assert over(1, waited=0.2)[0] == 0


def test_training_that_waits_by_then_has_it_used_up_before_every_block() -> None:
    assert not over(7, 7, 7)[1].needed
    assert over(7, 1, waited=0.2)[1].needed
    assert over(1, 1, 1, waited=0.2)[1].needed


def test_a_loader_whose_workers_have_more_to_make_than_they_are_at_is_not_known_to_keep_up() -> None:
    assert over(6, 6, 6)[1].needed
    assert over(7, 6, 7)[1].needed


def test_taking_a_batch_that_is_there_is_no_wait_however_long_it_takes() -> None:
    assert not over(7, 7, 7, waited=0.2)[1].needed


def test_the_end_of_a_pass_shows_nothing_of_workers_that_have_made_all_that_is_left() -> None:
    assert not LoaderDrain.of([LoaderStock(held=64, asked=64, workers=16, most=64)]).needed
    assert LoaderDrain.of([LoaderStock(held=31, asked=31, workers=16, most=64)]).needed


def test_a_loader_that_is_gone_has_shown_nothing() -> None:
    using = LoaderDrain.of([stock(3)])
    assert [using.goes_on([left], 0.0) for left in (stock(7), stock(7), None)] == [True, True, False]
    assert using.then().needed


def test_a_loader_that_keeps_up_is_asked_again_once_training_has_waited_for_each_worker() -> None:
    using = LoaderDrain(())
    assert not using.after(2, [stock(1)], 0.3).needed  # a wait for a wave of batches may have fallen into the block
    assert using.after(2, [stock(1)], 0.3).needed
    using = LoaderDrain(())
    assert not any(using.after(2, [stock(1)], waited).needed for waited in (0.15, 0.0, 0.0, 0.0))
    assert not LoaderDrain(()).after(9, [stock(1)], 0.05).needed
    assert not LoaderDrain(()).after(9, [stock(8)], 0.9).needed  # all that was asked for is there


def test_all_ranks_go_on_while_one_of_them_has_a_stock() -> None:
    using = LoaderDrain.of([stock(3), None, stock(8)])
    assert using.unsure == [True, False, False]
    assert all(using.goes_on([stock(held), None, stock(8)], 0.0) for held in (8, 7, 6, 5))
    assert not using.goes_on([stock(6), None, stock(7)], 0.0)


def test_rounds_end_at_some_time_and_have_shown_nothing_then() -> None:
    assert not LoaderDrain.of([stock(8)]).needed
    using = LoaderDrain.of([stock(3)])
    rounds = 0
    while using.goes_on([stock(2 * MOST_ROUNDS - rounds)], 0.0):
        rounds += 1
    assert rounds == MOST_ROUNDS
    assert using.then().needed


def test_each_process_is_asked_for_itself(tmp_path: Path) -> None:
    """A loader that was not done with all when the warm-up ended, and then turned out to keep up: once in each process.

    What one has shown by luck would hold for all of its side, and make two equal programs differ.
    """
    with arms_with(tmp_path, 4, 4, 300, 80) as arms:
        for arm in arms:
            assert arm.run(10, 2, LIMIT_NS).memory.peak_bytes == 5 + 2 + 3 * 4 + 10
            assert arm.run(10, 2, LIMIT_NS).memory.peak_bytes == 5 + 2 + 3 * 4 + 10 + 2 + 10


def test_a_program_without_workers_has_nothing_to_use_up() -> None:
    assert not LoaderDrain.of([None]).needed
    assert LoaderDrain.of([None]).whole_turns(10) == 10


def test_the_stock_of_a_real_loader_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import dataloader

    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    steps = StepHooks(lambda _: None)
    hook_loader(torch, steps)
    samples: Any = range(100)
    loader: Any = DataLoader(samples, num_workers=2, prefetch_factor=3, multiprocessing_context="fork")
    assert stock_of(steps) is None
    batches = iter(loader)
    next(batches)
    made = stock_of(steps)
    assert made is not None
    assert (made["asked"], made["workers"], made["most"]) == (6, 2, 6)
    while made["held"] < 6:  # workers make all that they are asked for while nobody takes it
        os.sched_yield()
        made = stock_of(steps)
        assert made is not None
    del batches
    assert stock_of(steps) is None
    next(iter(DataLoader(samples)))
    assert stock_of(steps) is None
