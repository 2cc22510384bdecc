"""Samples that are made once are those that would have been made each time; what cannot be kept is handed on."""

from __future__ import annotations

import copy
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Advice, Edits, Site, example_request, lines_with
from diagnose.plugins import load

FIXER = load().fixers["cache-decoded"]

_COUNTED = """made = 0


def one_more():
    global made
    made += 1
"""
"""A library that counts the samples, whose source the fixer does not see."""
_PICTURES = """
import counted
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, size, transform=None):
        self.data = (torch.arange(size * 12) * 7 % 251).to(torch.uint8).view(size, 12)
        self.classes = ["odd", "even"]
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        counted.one_more()
        picture = self.data[index].float() / 255
        return (self.transform(picture) if self.transform else picture), index % 2
"""
FLAT = (
    _PICTURES
    + """
torch.manual_seed(0)
pictures = Pictures(320)
loader = DataLoader(pictures, batch_size=8, shuffle=True)
model = nn.Linear(12, len(loader.dataset.classes))
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    print(loss.item(), x.dtype, y.dtype)
print(counted.made, "made of", len(loader.dataset))
"""
)
OPTIONS = (
    _PICTURES
    + """

def main():
    torch.manual_seed(0)
    kwargs = {'batch_size': 8, 'shuffle': True}
    loader = torch.utils.data.DataLoader(Pictures(320, transform=lambda picture: (picture - 0.5) / 0.25),
                                         **kwargs)
    model = nn.Linear(12, 2)
    for epoch in range(3):
        for batch_idx, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        print(loss.item())
    print(counted.made, "made of", len(loader.dataset))


if __name__ == '__main__':
    main()
"""
)
NAMED = (
    _PICTURES
    + """

class Named(Pictures):
    def __getitem__(self, index):
        picture, label = super().__getitem__(index)
        return {"x": picture, "y": label, "weight": 0.5}


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.loader = DataLoader(dataset=Named(320), batch_size=8, shuffle=True, drop_last=True)
        self.model = nn.Linear(12, 2)

    def fit(self):
        for epoch in range(3):
            for batch in self.loader:
                loss = nn.functional.cross_entropy(self.model(batch["x"]), batch["y"]) * batch["weight"].mean()
                loss.backward()
            print(loss.item(), batch["weight"].dtype)
        print(counted.made, "made of", len(self.loader.dataset))


Trainer().fit()
"""
)


_HELPER = """

def jittered(picture):
    return picture + random.gauss(0, 1)
"""
_EPOCHS = """

def epoch(pictures):
    for x, y in DataLoader(pictures, batch_size=8, shuffle=True):
        nn.functional.cross_entropy(model(x), y).backward()


for number in range(3):
    epoch(Pictures(320))
"""


def fixed(text: str) -> Edits:
    line = lines_with(text, "DataLoader(")[0]
    site = Site("DataLoader", "train.py", line, arguments={"shuffle": True, "collate_fn": "default_collate"})
    answer = FIXER.rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    return answer


def printed(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in {**files, "counted.py": _COUNTED}.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [*LIGHT_PYTHON, "train.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("text", [FLAT, OPTIONS, NAMED], ids=["flat", "options", "named"])
def test_the_program_computes_the_same_from_samples_made_once(text: str, tmp_path: Path) -> None:
    before = printed(tmp_path, {"train.py": text})
    after = printed(tmp_path, dict(fixed(text).files))
    assert after[:-1] == before[:-1]
    assert before[-1] == "960 made of 320"
    assert after[-1] == "448 made of 320"  # all once, and 64 twice to see that they stay the same


def test_it_is_not_wrapped_again() -> None:
    text = fixed(FLAT).files["train.py"]
    assert FIXER.rewrite(example_request("input-bound", text)) is None


@pytest.fixture
def shim() -> Callable[..., Any]:
    module = ModuleType("diagnose_fixes")
    exec(fixed(FLAT).files["diagnose_fixes.py"], module.__dict__)
    return module.__dict__["decoded"]  # type: ignore[no-any-return]


OWN_RANDOM = random.Random(0)


class Samples(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.mark.parametrize(
    "make",
    [
        lambda index: (torch.rand(2), index),
        lambda index: (torch.ones(2) * random.random(), index),
        lambda index: (torch.ones(index + 1), index),
        lambda index: ("a word", index),
        lambda index: {"nested": {"x": index}},
        lambda _index: object(),
        lambda index: (torch.ones(2), [index, index + 1]),
        lambda index: {"x": index, "y": 0} if index < 5 else {"y": 0, "x": index},
        lambda _index: torch.ones(2, device="meta"),
        lambda index: (torch.ones(2) * (random.random() if index == 99 else 1), index),
        lambda index: (torch.ones(2) * (numpy.random.rand() if index == 99 else 1), index),
        lambda index: torch.ones(2) if index < 99 else Path("not there").read_bytes(),
        lambda index: (torch.ones(2) * (OWN_RANDOM.random() < 0.5), index),
    ],
    ids=[
        "drawn by torch",
        "drawn by Python",
        "of several shapes",
        "words",
        "nested",
        "objects",
        "lists, which a loader turns",
        "names in another order",
        "on a device",
        "one drawn by Python",
        "one drawn by NumPy",
        "one that is not there",
        "drawn by a generator of its own",
    ],
)
def test_what_cannot_be_kept_is_handed_on_and_nothing_is_drawn(make: Callable[[int], Any], shim: Any) -> None:
    samples = Samples(make)
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state(legacy=True)
    assert shim(samples) is samples
    assert str(numpy.random.get_state(legacy=True)) == str(states[2])
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_samples_that_seed_torch_are_handed_on_and_no_generator_is_seeded(shim: Any) -> None:
    seeds: list[int] = []

    def drawn_by_index(index: int) -> torch.Tensor:
        state = torch.get_rng_state()
        torch.manual_seed(index)  # seeds the devices too, whose states nobody puts back
        seeds.append(index)
        sample = torch.rand(2)
        torch.set_rng_state(state)
        return sample

    samples, seed = Samples(drawn_by_index), torch.manual_seed
    assert shim(samples) is samples
    assert not seeds
    assert torch.manual_seed is seed


def test_what_takes_too_long_or_too_much_memory_is_handed_on(shim: Any) -> None:
    samples = Samples(lambda index: (torch.ones(4), index))
    assert shim(samples, seconds=0.0) is samples
    assert shim(samples, share=0.0) is samples
    assert shim(samples) is not samples


def test_batches_are_those_of_the_dataset(shim: Any) -> None:
    samples = Samples(lambda index: (torch.full((2,), index), index, float(index), index > 2))
    kept = [list(batch) for batch in DataLoader(shim(samples), batch_size=4)]
    made = [list(batch) for batch in DataLoader(samples, batch_size=4)]
    for left, right in zip(kept, made, strict=True):
        assert [(each.dtype, each.tolist()) for each in left] == [(each.dtype, each.tolist()) for each in right]


def test_kept_samples_are_shown_as_the_dataset_is(shim: Any) -> None:
    samples = Samples(lambda index: (torch.ones(2), index))
    kept = shim(samples)
    assert kept is not samples
    assert repr(kept) == repr(samples)


def test_a_dataset_whose_type_is_asked_for_is_left_alone() -> None:
    for asked in ("type(loader.dataset).__name__", "loader.dataset.__class__", "isinstance(loader.dataset, Images)"):
        request = example_request("input-bound", f"{FLAT}print({asked})\n")
        assert isinstance(FIXER.rewrite(request), Advice)


class OpensLate(Samples):
    file: object = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = object()
        return index, 1


def test_a_file_that_samples_open_late_is_not_open_when_workers_are_forked(shim: Any) -> None:
    opens = OpensLate(lambda index: index)
    part = Subset(opens, range(50))
    assert shim(part) is part
    assert opens.file is None


def test_what_is_no_sequence_or_has_no_fork_is_handed_on(shim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    class Endless(Samples):
        __len__ = None  # type: ignore[assignment]

    samples = Samples(lambda index: (torch.ones(4), index))
    stream, endless = Stream(), Endless(samples.make)
    assert shim(stream) is stream
    assert shim(endless) is endless
    monkeypatch.setattr(torch.multiprocessing, "get_start_method", lambda **_options: "spawn")
    assert shim(samples) is samples


def test_the_memory_is_that_of_all_processes_of_the_host(shim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(lambda index: (torch.ones(2**10), index))
    assert shim(samples) is not samples
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2**60))
    others = Samples(lambda index: (torch.ones(2**10), index))
    assert shim(others) is others


def test_a_sample_that_is_changed_is_whole_the_next_time(shim: Any) -> None:
    kept = shim(Samples(lambda index: {"x": torch.full((2,), float(index)), "y": index}))
    for batch in DataLoader(kept, batch_size=None):
        batch["x"].sub_(7)
    assert kept[3]["x"].tolist() == [3.0, 3.0]


def test_all_else_is_asked_of_the_dataset(shim: Any) -> None:
    samples = Samples(lambda index: (torch.ones(2), index))
    kept = shim(Subset(samples, range(10, 20)))
    assert kept.dataset is samples
    assert list(kept.indices) == list(range(10, 20))
    assert kept[numpy.int64(3)][1] == 13
    assert shim(samples)[-7][1] == -7  # as the dataset has it
    assert copy.copy(kept)[5][1] == 15


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FLAT.replace("Pictures(320)", "Pictures(320, transform=RandomHorizontalFlip())"), "`RandomHorizontalFlip(…`"),
        (FLAT.replace("[index].float()", "[index] + torch.rand(12)"), "`torch.rand(…`"),
        (FLAT.replace("shuffle=True", "shuffle=True, collate_fn=pad"), "collate function of its own"),
        (FLAT.replace("[index].float()", "[index].cuda()"), "on a device"),
        (
            FLAT.replace("picture = self.data[index]", "picture = jittered(self.data[index])") + _HELPER,
            "`random.gauss(…`",
        ),
        (NAMED.replace("[index].float()", "[index] + torch.rand(12)"), "`torch.rand(…`"),
        (FLAT.replace("for x, y in", "pictures.transform = later\n    for x, y in"), "changes between epochs"),
        (
            NAMED.replace(
                "self.loader =",
                "self.pictures = Named(320)\n        self.pictures.set_size(epoch)\n        self.loader =",
            ).replace("dataset=Named(320)", "dataset=self.pictures"),
            "changes between epochs",
        ),
        (
            FLAT.replace("    def __len__", "    def harder(self):\n        self.level += 1\n\n    def __len__"),
            "`self.level in harder`",
        ),
        (FLAT.replace("import torch\n", "import torch\ndecoded = None\n", 1), "called decoded"),
        (
            FLAT.replace(
                "for epoch in range(3):\n    for x, y in loader",
                "for epoch in range(3):\n    for x, y in DataLoader(pictures)",
            ).replace("loader = DataLoader(pictures, batch_size=8, shuffle=True)\n", ""),
            "again and again",
        ),
        (_PICTURES + _EPOCHS, "again and again"),
    ],
)
def test_what_is_not_certain_is_advice(text: str, why: str) -> None:
    answer = FIXER.rewrite(example_request("input-bound", text))
    assert isinstance(answer, Advice), answer
    assert why in answer.text


EITHER = """
from torch.utils.data import DataLoader
if args.dummy:
    pictures = FakeData(1000, transform=ToTensor())
else:
    pictures = ImageFolder("train", transform=RandomResizedCrop(224))
loader = DataLoader(pictures, batch_size=8, shuffle=True)
"""


@pytest.mark.parametrize(("made", "kind"), [("FakeData", Edits), ("ImageFolder", Advice), (None, Advice)])
def test_of_two_datasets_the_one_counts_that_the_run_had(made: str | None, kind: type) -> None:
    site = Site("DataLoader", "train.py", 7, arguments={"shuffle": True, "dataset": made})
    assert isinstance(FIXER.rewrite(example_request("input-bound", EITHER, sites=[site])), kind)


def test_loaders_that_share_a_dataset_share_its_samples(shim: Any) -> None:
    samples, others = Samples(lambda index: (index, 1)), Samples(lambda index: (index, 1))
    assert shim(samples) is shim(samples)
    assert shim(others) is not shim(samples)
