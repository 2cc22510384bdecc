"""A loader with workers asks its sampler for an order ahead, and a batch sampler for its iterator twice."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

GROUPS = """class Groups:
    def __init__(self, n, seed=0):
        self.n, self.seed, self.epoch = n, seed, 0
    def __len__(self):
        return 4
    def pick(self):
        return random.sample(range(self.n), 8)  # !
    def __iter__(self):
        {body}
"""
LISTED = "return iter([random.sample(range(self.n), 8) for _ in range(4)])  # !"
CALLED = "return iter([self.pick() for _ in range(4)])"
YIELDED = "batches = [random.sample(range(self.n), 8) for _ in range(4)]\n        yield from batches"
SEEDED = "own = random.Random(self.seed)\n        return iter([own.sample(range(self.n), 8) for _ in range(4)])"


def sampled(body: str, options: str) -> str:
    plain = program(top=GROUPS.format(body=body), options=options)
    return plain.replace("batch_size=8, shuffle=True, batch", "batch").replace("batch_size=8, shuffle=True, ", "")


@pytest.mark.parametrize("options", [", batch_sampler=Groups(9)", ", batch_size=None, sampler=Groups(9)"])
@pytest.mark.parametrize("body", [LISTED, CALLED], ids=["in __iter__", "in what it calls"])
def test_workers_are_refused_where_asking_for_an_iterator_draws(body: str, options: str) -> None:
    refused("loader-workers", sampled(body, options), "# !")


@pytest.mark.parametrize("options", [", batch_sampler=Groups(9)", ", batch_size=None, sampler=Groups(9)"])
def test_workers_are_given_where_the_iterator_draws_by_a_generator_of_its_own(options: str) -> None:
    assert isinstance(asked("loader-workers", sampled(SEEDED, options)), Edits)


@pytest.mark.parametrize(
    ("body", "options"),
    [(LISTED.replace(", 8)", ", 1)[0]"), ", batch_size=8, sampler=Groups(9)"), (YIELDED, ", batch_sampler=Groups(9)")],
    ids=["a sampler of single samples", "a generator"],
)
def test_workers_are_given_where_the_draws_wait_for_the_first_sample(body: str, options: str) -> None:
    assert isinstance(asked("loader-workers", sampled(body, options)), Edits)


STREAM = """class Endless:
    def __init__(self, n):
        self.stream = {made}
    def __iter__(self):
        return {used}
"""


@pytest.mark.parametrize(
    ("made", "used", "sampler"),
    [
        ("itertools.cycle(range(n))  # !", "self.stream", "Endless(9)"),
        ("iter(range(n))  # !", "itertools.islice(self.stream, 4)", "Endless(9)"),
        ("range(n)", "iter(self.stream)", "itertools.count()  # !\n    "),
    ],
    ids=["an iterator it returns", "an iterator it takes values of", "an iterator itself"],
)
def test_workers_are_refused_where_a_pass_takes_what_the_last_one_left(made: str, used: str, sampler: str) -> None:
    text = program(
        top=STREAM.format(made=made, used=used), options=f", sampler={sampler}", step="if step > 3:\n    break"
    )
    refused("loader-workers", text.replace("shuffle=True, ", ""), "# !")


@pytest.mark.parametrize("used", ["iter(self.stream)", "itertools.cycle(self.stream)"])
def test_workers_are_given_where_each_pass_begins_anew(used: str) -> None:
    text = program(top=STREAM.format(made="range(n)", used=used), options=", sampler=Endless(9)")
    assert isinstance(asked("loader-workers", text.replace("shuffle=True, ", "")), Edits)
