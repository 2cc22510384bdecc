"""Programs with a dataset of their own, and what fixers of loaders answer for them."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent, indent

from diagnose.fixer import Advice, Edits, Facts, Site, example_request, lines_with
from diagnose.plugins import load

FIXERS = load().fixers
TOP = """import os, time, itertools, sqlite3, zipfile, random, logging
import h5py
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, random_split
"""
DATASET = """
class Images(Dataset):
    def __init__(self, paths, transform=None):
        self.paths, self.transform = paths, transform
        {init}
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, i):
        {sample}
    {more}
"""
MAIN = """
def main():
    paths = sorted(os.listdir("images"))
    data = {dataset}
    loader = DataLoader(data, batch_size=8, shuffle=True{options})
    model = nn.Linear(16, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        {epoch}
        for step, (x, y) in enumerate(loader):
            loss = model(x).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            {step}
    {end}

if __name__ == "__main__":
    main()
"""


def program(
    sample: str = "return torch.load(self.paths[i]), i",
    init: str = "pass",
    more: str = "",
    dataset: str = "Images(paths)",
    options: str = "",
    epoch: str = "pass",
    step: str = "pass",
    end: str = "pass",
    top: str = "",
) -> str:
    """A program with a dataset of its own."""
    parts = {"init": (init, 8), "sample": (sample, 8), "more": (more, 4)}
    text = DATASET.format(**{name: indent(dedent(code), " " * by).lstrip() for name, (code, by) in parts.items()})
    loop = {"epoch": (epoch, 8), "step": (step, 12), "end": (end, 4)}
    given = {name: indent(dedent(code), " " * by).lstrip() for name, (code, by) in loop.items()}
    return TOP + top + text + MAIN.format(dataset=dataset, options=options, **given)


def asked(fixer: str, text: str, **others: str) -> Edits | Advice | None:
    """Return what a fixer answers for the one loader of a program."""
    workers = 2 if fixer == "persistent-workers" else 0
    line = lines_with(text, "DataLoader(")[0]
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": workers, "shuffle": True})
    setting = {"num_workers": 2} if fixer == "loader-workers" else {}
    facts = Facts(cpu_count=4, device_name="NVIDIA H200" if fixer == "loader-pin" else None)
    request = example_request("input-bound", text, sites=[site], facts=facts, setting=setting)
    return FIXERS[fixer].rewrite(
        replace(request, sources={**request.sources, **{f"{name}.py": code for name, code in others.items()}})
    )


def refused(fixer: str, text: str, mark: str, **others: str) -> None:
    """The edit is refused, and the line that holds `mark` is named."""
    answer = asked(fixer, text, **others)
    assert isinstance(answer, Advice), answer
    lines = {f"train.py:{line}" for line in lines_with(text, mark)}
    lines |= {f"{name}.py:{line}" for name, code in others.items() for line in lines_with(code, mark)}
    assert any(f"{line}." in answer.text or f"{line} " in answer.text for line in lines), (answer.text, lines)


NOISY = "return torch.load(self.paths[i]) * self.strength, i"
