"""Options that need workers are given only where there are some, whatever the number is made of."""

from __future__ import annotations

import pytest
from rewriting import FIXERS

from diagnose.fixer import Edits, Site, example_request

_TOP = "from torch.utils.data import DataLoader\n\n"


@pytest.mark.parametrize(
    ("count", "option"),
    [
        ("max(0, args.workers - 1)", "persistent_workers=max(0, args.workers - 1) > 0"),
        ("max(args.workers, least)", "persistent_workers=max(args.workers, least) > 0"),
        ("max(args.workers, 2)", "persistent_workers=True"),
    ],
)
def test_workers_are_kept_where_there_are_some(count: str, option: str) -> None:
    text = _TOP + f"loader = DataLoader(rows, num_workers={count})\n"
    site = Site("DataLoader", "train.py", 3, arguments={"num_workers": 2, "persistent_workers": False})
    answer = FIXERS["persistent-workers"].rewrite(example_request("periodic-stall", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    assert option in answer.files["train.py"]
