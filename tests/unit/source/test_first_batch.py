"""An iterator of a loader that is made by hand, and when it is asked for its first batch."""

from __future__ import annotations

import pytest

from diagnose.source.batches.first_batch import late_first_batch

HEAD = "import itertools\nloader, other = DataLoader(data, shuffle=True), DataLoader(more, shuffle=True)\n"


@pytest.mark.parametrize(
    ("lines", "late"),
    [
        ("it = iter(loader)\nmodel = Net()\nx = next(it)\n", True),
        ("it = iter(loader)\nx = next(it)\nmodel = Net()\n", False),
        ("it = iter(loader)\nfor step in range(9):\n    x = next(it)\n    train(x)\n", False),
        ("it = iter(loader)\nfor step in range(9):\n    train(model)\n    x = next(it)\n", True),
        ("it = iter(loader)\nfor x in it:\n    train(x)\n", False),
        ("try:\n    x = next(it)\nexcept StopIteration:\n    it = iter(loader)\n    x = next(it)\n", False),
        ("x = next(iter(loader))\n", False),
        ("class Feed:\n    def __init__(self, loader):\n        self.it = iter(loader)\n", True),
        ("names = ['a', 'b']\nit = iter(names)\nmodel = Net()\n", False),
        ("for x in loader:\n    train(x)\n", False),
        ("for x in iter(loader):\n    train(x)\n", False),
        ("for i, x in enumerate(loader):\n    train(x)\n", False),
        ("first = [x.mean() for x in iter(loader)]\n", False),
        ("it = itertools.cycle(loader)\nmodel = Net()\nx = next(it)\n", True),
        ("it = itertools.cycle(DataLoader(data))\nmodel = Net()\n", True),
        ("it = itertools.cycle(loader)\nx = next(it)\n", False),
        ("it = enumerate(loader)\nmodel = Net()\n", True),
        ("for a, b in zip(loader, other):\n    train(a, b)\n", True),
        ("for i, (a, b) in enumerate(zip(itertools.cycle(loader), other)):\n    train(a, b)\n", True),
        ("for i, x in zip(range(9), loader):\n    train(x)\n", False),
        ("def fit(ours, theirs):\n    for a, b in zip(ours, theirs):\n        f(a, b).backward()\n", True),
        ("def fit(ours, theirs):\n    for a, b in zip(ours, theirs):\n        a.lerp_(b, 0.1)\n", False),
        ("one = iter(loader)\ntwo = iter(other)\nx, y = next(one), next(two)\n", True),
        ("def feed():\n    return iter(loader)\n", True),
        ("class Feed:\n    def __iter__(self):\n        return iter(self.order)\n", False),
    ],
)
def test_whether_anything_may_be_drawn_before_the_first_batch(lines: str, late: bool) -> None:
    assert (late_first_batch({"train.py": HEAD + lines}) is not None) is late
