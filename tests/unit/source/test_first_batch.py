"""An iterator of a loader that is made by hand, and when it is asked for its first batch."""

from __future__ import annotations

import pytest

from diagnose.source.batches.first_batch import late_first_batch

HEAD = "loader = DataLoader(data, shuffle=True)\n"


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
    ],
)
def test_whether_anything_may_be_drawn_before_the_first_batch(lines: str, late: bool) -> None:
    assert (late_first_batch({"train.py": HEAD + lines}) is not None) is late
