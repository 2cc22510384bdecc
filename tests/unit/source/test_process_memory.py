"""What the main process binds anew while workers make samples never reaches them, however many they are."""

from __future__ import annotations

from typing import Any

import pytest
from dataset_programs import FIXERS, NOISY, program

from diagnose.fixer import Advice, Answer, Edits, Facts, Site, example_request, lines_with

SWITCH = """@property
def on(self):
    return self.strength
@on.setter
def on(self, x):
    {}"""
SHARED = "return torch.load(self.paths[i]) * self.strength.value, i"


def asked_for_more_workers(text: str, workers: int) -> Answer:
    """What `loader-workers` answers where six of them were better than those that there are."""
    sites = [Site("DataLoader", "train.py", lines_with(text, "DataLoader(")[0], arguments={"num_workers": workers})]
    facts = Facts(cpu_count=8)
    request = example_request("input-bound", text, sites=sites, facts=facts, setting={"num_workers": 6})
    return FIXERS["loader-workers"].rewrite(request)


def changed(step: str, sample: str = NOISY, workers: int = 2, **parts: str) -> Answer:
    options = f", num_workers={workers}"
    return asked_for_more_workers(program(sample, "self.strength = 1.0", options=options, step=step, **parts), workers)


@pytest.mark.parametrize(
    "given",
    [
        {"step": "data.strength = 2.0"},
        {"step": "loader.dataset.strength = 2.0"},
        {"step": "data.on = 2.0", "more": SWITCH.format("self.strength = x")},
    ],
    ids=["an attribute", "through the loader", "a property that binds one"],
)
def test_more_workers_see_no_more_of_what_is_bound_anew_than_those_that_are_there(given: dict[str, Any]) -> None:
    answer = changed(**given)
    assert isinstance(answer, Edits), answer


@pytest.mark.parametrize(
    "given",
    [
        {"step": "data.strength = 2.0", "workers": 0},
        {"step": "data.strength += 1.0"},
        {"step": "data.strength.value = 2.0", "sample": SHARED},
        {"step": "data.on = 2.0", "more": SWITCH.format("self.strength.value = x"), "sample": SHARED},
        {"step": "data.strength = 2.0", "top": "from multiprocessing import Manager\n"},
        {"step": "data.strength[0] = 1"},
        {
            "step": "data.strength = 2.0",
            "more": "def put(self, x):\n    self.x.fill_(x)\nstrength = property(None, put)",
        },
        {
            "step": "data.strength = 2.0",
            "more": "def put(self, x):\n    self.x.fill_(x)\nstrength: property = property(None, put)",
        },
        {
            "step": "data.strength = 2.0",
            "top": "class Level:\n    def __set__(self, owner, x):\n        owner.x.fill_(x)\n",
        },
        {"step": "data.paths.real = 2.0"},
        {"step": "data.paths.flat = 2.0"},
    ],
    ids=lambda given: " ".join(map(str, (given["step"], *sorted(given.keys() - {"step"})))),
)
def test_what_other_processes_may_see_is_still_a_change(given: dict[str, Any]) -> None:
    answer = changed(**given)
    assert isinstance(answer, Advice), answer
    assert "Samples that are loaded ahead would differ" in answer.text
