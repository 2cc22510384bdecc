"""Attributes that a sample's code sets for the time of one call are no state of the dataset."""

from __future__ import annotations

import libcst as cst
import pytest

from diagnose.source.samples.sharing.shared_state import shared_state
from diagnose.source.tree.syntax import parse

PROGRAM = """import torch
from torch.utils.data import DataLoader, Dataset


class Other:
    def __init__(self):
        self.size = 3

    def __call__(self):
        return self.size


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        row = self.rows[index]
        {body}
        return row


rows = Rows(torch.ones(8, 8))
loader = DataLoader(rows)
for row in loader:
    {turn}
"""


def trace(body: str, turn: str = "pass") -> str | None:
    source = parse(PROGRAM.format(body=body.replace("\n", "\n        "), turn=turn))
    assert source is not None
    (loader,) = source.calls_named("DataLoader")
    given = loader.args[0].value
    assert isinstance(given, cst.Name)
    found = shared_state({"train.py": source.text}, "train.py", loader, (given,), ("Rows",), None).trace
    return found.words if found is not None else None


@pytest.mark.parametrize(
    "body",
    [
        "self.size = row.shape[0]",
        "self.size = row.shape[0]\nrow = row / self.size",
        "self.low, self.high = row.min(), row.max()\nrow = (row - self.low) / self.high",
        "self.parts = []\nself.parts.append(row)\nrow = sum(self.parts)",
        "self.parts = []\nif index:\n    self.parts += [row]\nrow = sum(self.parts)",
    ],
)
def test_what_each_call_sets_before_it_reads_it_leaves_nothing_behind(body: str) -> None:
    assert trace(body) is None


@pytest.mark.parametrize(
    ("body", "turn"),
    [
        ("self.size = row.shape[0]", "print(rows.size)"),
        ("self.size = row.shape[0]", "print(getattr(rows, 'size'))"),
        ("row = row / self.size\nself.size = row.shape[0]", "pass"),
        ("if index:\n    self.size = row.shape[0]\nrow = row / self.size", "pass"),
        ("self.size = self.size + 1", "pass"),
        ("self.parts = self.rows\nself.parts.append(row)", "pass"),
        ("self.parts.append(row)", "pass"),
        ("self.size += 1", "pass"),
    ],
)
def test_what_is_read_from_a_call_before_or_by_others_is_kept(body: str, turn: str) -> None:
    assert "while it makes a sample" in str(trace(body, turn))


def test_a_base_class_may_read_what_the_method_of_a_derived_one_sets() -> None:
    base = "class Rows(Dataset):"
    assert base in PROGRAM
    read = "class Sized(Dataset):\n    def extent(self):\n        return self.size\n\n\nclass Rows(Sized):"
    source = parse(PROGRAM.replace(base, read).format(body="self.size = row.shape[0]", turn="pass"))
    assert source is not None
    (loader,) = source.calls_named("DataLoader")
    state = shared_state({"train.py": source.text}, "train.py", loader, (loader.args[0].value,), ("Rows",), None)
    assert state.trace is not None
