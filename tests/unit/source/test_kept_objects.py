"""Samples that change an object which the program keeps, by another name of it or as a part of what they gather."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

TOP = "POOL = torch.zeros(3)\nSCALE = 3\nSIZE = (3, 4)\ndef shift(x, by):\n    x.sub_(by)\n    return x\n"


@pytest.mark.parametrize(
    "sample",
    [
        "x = POOL\nx += 1  # !\nreturn x, i",
        "x = POOL\nx.add_(1)  # !\nreturn x, i",
        "rows = [POOL]\nrows[0] += 1  # !\nreturn rows[0], i",
        "rows = {'a': self.pool}\nrows['a'] += 1  # !\nreturn rows['a'], i",
        "rows = [self.pool]\nrows[0].add_(1)  # !\nreturn rows[0], i",
        "x = torch.rand(3)\nshift(POOL, x)  # !\nreturn x, i",
        "rows = torch.zeros(3, out=POOL)  # !\nreturn rows, i",
        "rows = torch.add(POOL, 1, out=self.pool)  # !\nreturn rows, i",
    ],
)
def test_an_object_that_is_kept_is_changed(sample: str) -> None:
    refused("loader-workers", program(sample, "self.pool = torch.zeros(3)", top=TOP), "# !")


@pytest.mark.parametrize(
    "sample",
    [
        "x = POOL + 0\nx += 1\nreturn x, i",
        "return shift(torch.rand(3), POOL), i",
        "x = SCALE\nx += 1\nreturn x, i",
        "h, w = SIZE\nh += 1\nreturn h * w, i",
        "rows = [0, 0]\nrows[0] += 1\nreturn rows[0], i",
        "rows = [POOL, POOL]\nrows[0] = 1\nreturn rows[0], i",
        "rows = [POOL]\nrows.append(POOL)\nreturn torch.stack(rows), i",
        "rows = torch.zeros(3)\nrows = torch.add(POOL, 1, out=rows)\nrows += 1\nreturn rows, i",
    ],
)
def test_an_object_of_the_samples_own_is_changed(sample: str) -> None:
    answer = asked("loader-workers", program(sample, "self.pool = torch.zeros(3)", top=TOP))
    assert isinstance(answer, Edits), answer
