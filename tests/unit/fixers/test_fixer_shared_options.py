"""A dictionary of options that others take too gets no key that would break them, and none that would not count."""

from __future__ import annotations

import pytest
from rewriting import imported

from diagnose.fixer import Edits, Site, example_request
from diagnose.plugins import load

FIXER = load().fixers["loader-workers"]
_TOP = "from torch.utils.data import DataLoader\n\nrows = list(range(64))\n"
_TRAIN = "train_loader = DataLoader(rows, shuffle=True, **kwargs)\n"
_TEST = "test_loader = DataLoader(rows, **kwargs)\n"
_KWARGS = "kwargs = {'batch_size': 8}\n"


@pytest.mark.parametrize(
    ("program", "of_test"),
    [
        (_KWARGS + _TRAIN + "test_loader = DataLoader(rows, num_workers=0, **kwargs)\n", 0),
        (_KWARGS + "def count(batch_size):\n    return batch_size\n\n\ncount(**kwargs)\n" + _TRAIN + _TEST, 0),
        (_KWARGS + "kwargs['num_workers'] = 0\n" + _TRAIN + _TEST, 0),
        (_KWARGS + "kwargs |= {'num_workers': 0}\n" + _TRAIN + _TEST, 0),
        ("kwargs = {'batch_size': 8, 'num_workers': 0}\nkwargs.pop('num_workers')\n" + _TRAIN + _TEST, 0),
        (_KWARGS + _TRAIN + "kwargs.update({'num_workers': 1})\n" + _TEST, 1),
        (_KWARGS + _TRAIN + _TEST, 2),
        (_KWARGS + _TRAIN + "test_loader = DataLoader(rows, **dict(drop_last=True, **kwargs))\n", 2),
    ],
    ids=["own key", "function", "subscript", "or", "pop", "updated later", "shared", "dict"],
)
def test_the_training_loader_gets_workers_and_the_program_runs(program: str, of_test: int) -> None:
    text = _TOP + program
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith("train_loader"))
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 0, "shuffle": True, "batch_size": 8})
    answer = FIXER.rewrite(example_request("input-bound", text, sites=[site], setting={"num_workers": 2}))
    assert isinstance(answer, Edits), answer
    program_after = imported(answer.files["train.py"])
    assert program_after.train_loader.num_workers == 2
    assert program_after.test_loader.num_workers == of_test
