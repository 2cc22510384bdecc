"""A loader that is built once, anew in each epoch, or for one pass, told apart by where it or its function stands."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.fixer import Advice, Answer, Edits, Site, example_request, lines_with
from diagnose.plugins import load
from diagnose.source.batches import loader_lifetime
from diagnose.source.batches.loader_lifetime import is_built_again, is_for_one_pass
from diagnose.source.tree.syntax import parse

FIXERS = load().fixers
LOADER = "DataLoader(data, num_workers=2)"
MAKE = f"def make():\n    return {LOADER}\n\n"


def asked(name: str, program: str) -> Answer:
    text = f"from torch.utils.data import DataLoader\nimport engine\n{program}"
    line = lines_with(text, "DataLoader(")[0]
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 2, "shuffle": True})
    return FIXERS[name].rewrite(example_request("input-bound", text, sites=[site]))


ONCE = [
    f"for batch in forever({LOADER}):\n    step(batch)\n",
    f"for batch in []:\n    pass\nelse:\n    loader = {LOADER}\n",
    f"def train():\n    loader = {LOADER}\n    for epoch in range(9):\n        model.train()\n\ntrain()\n",
    f"class Task:\n    def train(self):\n        loader = {LOADER}\n        for epoch in range(9):\n"
    "            self.model.train()\n",
    f"{MAKE}loader = make()\nfor epoch in range(9):\n    for batch in loader:\n        step(batch)\n",
]


@pytest.mark.parametrize("program", ONCE)
def test_what_is_built_once_is_fixed(program: str) -> None:
    assert isinstance(asked("persistent-workers", program), Edits)


FOR_ONE_PASS = [
    f"for batch in {LOADER}:\n    step(batch)\n",
    f"for index, batch in enumerate(tqdm({LOADER})):\n    step(batch)\n",
    f"{MAKE}for batch in make():\n    step(batch)\n",
]


@pytest.mark.parametrize("program", FOR_ONE_PASS)
def test_what_a_loop_goes_through_where_it_is_built_is_not_said_to_be_built_anew(program: str) -> None:
    answer = asked("persistent-workers", program)
    assert isinstance(answer, Advice)
    assert "is gone through once, where it is built" in answer.text


BUILT_AGAIN = [
    f"for epoch in range(9):\n    for batch in {LOADER}:\n        step(batch)\n",
    f"while next(iter({LOADER})):\n    pass\n",
    f"{MAKE}def train():\n    loader = make()\n\nfor epoch in range(9):\n    train()\n",
    f"def train():\n    loader = {LOADER}\n\nfor epoch in range(9):\n    engine.train()\n",
    f"class Task:\n    def train(self):\n        loader = {LOADER}\n\nfor epoch in range(9):\n    task.train()\n",
]


@pytest.mark.parametrize("program", BUILT_AGAIN)
def test_a_loader_is_built_again_in_each_epoch(program: str) -> None:
    source = parse(f"import engine\n{program}")
    assert source is not None
    (built,) = source.calls_named("DataLoader")
    assert is_built_again({"train.py": source.text}, source, built)


def test_each_function_is_looked_at_once_where_all_call_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"Part{index}" for index in range(8)]
    classes = [f"class {name}(Base):\n    def __init__(self):\n        super().__init__()\n" for name in names]
    loader = f"        self.loader = {LOADER}\n"
    text = "from torch.utils.data import DataLoader\n" + "".join(classes) + loader
    source = parse(text)
    assert source is not None
    (built,) = source.calls_named("DataLoader")
    looked_at: list[object] = []
    monkeypatch.setattr(loader_lifetime, "is_repeated", lambda _source, node: looked_at.append(node))
    assert not is_built_again({"train.py": text}, source, built)
    assert len(looked_at) <= 1 + len(names) ** 2, "each of the calls in each function"


def test_functions_that_hand_a_loader_on_to_each_other_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 30
    makers = [
        f"def make{n + 1}(old):\n    if old:\n        return make{n}()\n    return make{n}()\n" for n in range(depth)
    ]
    text = f"def make0():\n    return {LOADER}\n" + "".join(makers) + f"for batch in make{depth}(1):\n    step(batch)\n"
    source = parse(text)
    assert source is not None
    (built,) = source.calls_named("DataLoader")
    looked_at: list[object] = []
    calls_of = loader_lifetime._calls_of

    def counted(*given: Any) -> Any:
        looked_at.append(given)
        return calls_of(*given)

    monkeypatch.setattr(loader_lifetime, "_calls_of", counted)
    assert is_for_one_pass({"train.py": text}, source, built)
    assert len(looked_at) == 1 + depth


TWICE = [
    f"loader = {LOADER}\nfor one, other in zip(loader, loader):\n    step(one, other)\n",
    f"loader = {LOADER}\nfor one in loader:\n    for other in loader:\n        step(one, other)\n",
    f"def train(model, batches):\n    for at, one in enumerate(batches):\n        evaluate(model, batches)\n\n"
    f"train(model, {LOADER})\n",
    f"class Task:\n    def __init__(self):\n        self.loader = {LOADER}\n    def train(self):\n"
    "        for one in self.loader:\n            score = sum(loss(each) for each in self.loader)\n",
    f"loader = {LOADER}\nfirst, second = iter(loader), 0\nones = iter(loader)\nothers = iter(loader)\n",
    f"class Task:\n    def __init__(self):\n        self.loader = {LOADER}\n    def score(self):\n"
    "        return sum(loss(each) for each in self.loader)\n    def train(self):\n"
    "        for one in self.loader:\n            step(one)\n            self.score()\n",
    f"class Task:\n    def __init__(self):\n        self.loader = {LOADER}\n    def batches(self):\n"
    "        for one in self.loader:\n            yield one\n    def score(self):\n"
    "        for one in self.loader:\n            loss(one)\n",
    "class Task:\n    def __init__(self, model, batches):\n        self.model, self.batches = model, batches\n"
    "    def score(self):\n        return sum(loss(each) for each in self.batches)\n    def train(self):\n"
    f"        for one in self.batches:\n            step(one)\n            self.score()\n\nTask(0, {LOADER}).train()\n",
    f"loader = {LOADER}\n\ndef first(batches):\n    return len(batches), next(iter(batches))\n\n"
    "for one in loader:\n    step(one, first(loader))\n",
    f"loader = {LOADER}\n\ndef score(batches):\n    return batches.evaluate()\n\n"
    "for one in loader:\n    step(one, score(batches=loader))\n",
    f"loader = {LOADER}\n\ndef score(**given):\n    return sum(map(loss, given['batches']))\n\n"
    "for one in loader:\n    step(one, score(batches=loader))\n",
    f"{MAKE}loader = make()\nforever = itertools.cycle(loader)\nfor one in loader:\n    step(one, next(forever))\n",
]


@pytest.mark.parametrize("program", TWICE)
def test_workers_do_not_live_on_where_a_loader_is_gone_through_beside_itself(program: str) -> None:
    answer = asked("persistent-workers", program)
    assert isinstance(answer, Advice)
    assert "is gone through while the program goes through it already" in answer.text


ONE_AFTER_THE_OTHER = [
    f"loader = {LOADER}\n\ndef rate(args, batches, step):\n    return step / (args.epochs * len(batches))\n\n"
    "for step, one in enumerate(loader):\n    lr = rate(args, loader, step)\n",
    f"loader = {LOADER}\n\ndef size(batches):\n    return batches.dataset.size * batches.batch_size\n\n"
    "for one in loader:\n    step(one, size(batches=loader))\n",
    f"loader = {LOADER}\n\ndef size(one, *, batches):\n    return len(one) * len(batches)\n\n"
    "for one in loader:\n    step(one, size(one, batches=loader))\n",
    f"loader = {LOADER}\nfor one in loader:\n    log(len(loader), loader.dataset)\nfor one in loader:\n    step(one)\n",
    f"loader = {LOADER}\nit = iter(loader)\nwhile True:\n    try:\n        one = next(it)\n"
    "    except StopIteration:\n        it = iter(loader)\n",
    f"loader = {LOADER}\nother = DataLoader(more)\nfor one in loader:\n    for each in other:\n        step(each)\n",
    f"def forever(loader):\n    while True:\n        for one in loader:\n            yield one\n\nloader = {LOADER}\n"
    "for one in forever(loader):\n    step(one)\n",
    "class Task:\n    def __init__(self, ones, others):\n        self.ones, self.others = ones, others\n"
    "    def score(self):\n        return sum(loss(each) for each in self.others)\n    def train(self):\n"
    "        for one in self.ones:\n            step(one)\n            self.score()\n\n"
    f"Task({LOADER}, DataLoader(more))\n",
    f"loader = {LOADER}\nother = DataLoader(more)\n\ndef score(loader):\n    for one in loader:\n        loss(one)\n\n"
    "for one in loader:\n    score(other)\n",
    f"def train(loader):\n    for one in loader:\n        step(one)\n\nloader = {LOADER}\ntrain(loader)\n"
    "evaluate(loader)\n",
    "class Resize:\n    def __init__(self, size):\n        self.size = size\n\ndef ratios(one, other):\n"
    "    return [a / b for a, b in zip(one.size, other.size)]\n\n"
    f"loader = {LOADER}\nfor one in loader:\n    step(one)\n",
]


@pytest.mark.parametrize("program", ONE_AFTER_THE_OTHER)
def test_workers_live_on_where_passes_follow_each_other(program: str) -> None:
    assert isinstance(asked("persistent-workers", program), Edits)
