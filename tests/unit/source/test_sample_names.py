"""What names in code that makes samples stand for: a function of the same name elsewhere makes none of them."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

TRAINS = """import torch

def train(epoch, loader):
    model = torch.nn.Linear(1, 1).cuda()  # !
    return model(loader)
"""


def of_train(code: str, **others: str) -> str:
    """A program whose samples are made by `code`, beside a function `train` that puts things on a device."""
    return program(code, "self.train = True", top="from engine import train\n", end="train(1, loader)", **others)


@pytest.mark.parametrize(
    "code",
    [
        "return torch.load(self.paths[i if self.train else 0]), i",
        "return torch.load(self.paths[i]), bool(self.train)",
        "split = self.paths.data.train[i]\nreturn torch.load(split), i",
    ],
)
def test_a_stored_attribute_is_no_function_of_its_name(code: str) -> None:
    assert isinstance(asked("loader-workers", of_train(code), engine=TRAINS), Edits)


STORED = """
class Trainer:
    def train(self, x):
        return x.cuda()  # !

class {base}:
    def __init__(self, paths):
        self.{kept} = paths

class Loaders(Kept):
    def dataset(self):
        return Images(self.train)

    def loader(self):
        data = self.dataset()
        return DataLoader(data, batch_size=8)
"""


@pytest.mark.parametrize(
    ("base", "kept", "stored"), [("Kept", "train", True), ("Kept", "x", False), ("A", "train", False)]
)
def test_an_attribute_that_a_class_above_stores_is_no_method_of_its_name(base: str, kept: str, stored: bool) -> None:
    text = program(top=STORED.format(base=base, kept=kept))
    text = text.replace("loader = DataLoader(data, batch_size=8, shuffle=True)", "loader = Loaders(paths).loader()")
    assert text.count("DataLoader(") == 1
    assert isinstance(asked("loader-workers", text), Edits) is stored


@pytest.mark.parametrize("code", ["train(i, i)\nreturn torch.load(self.paths[i]), i", "return train(i, i), i"])
def test_a_function_that_samples_call_is_followed(code: str) -> None:
    refused("loader-workers", of_train(code), "# !", engine=TRAINS)


PADDED = """
class Padded:
    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def to(self, device):
        return Padded(self.tensors.to(device), self.mask.to(device))  # !

def pad(images) -> Padded:
    stacked = torch.stack(images)
    return Padded(stacked, torch.zeros(len(images)).to(torch.bool))

def collate(rows):
    return pad([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
"""


def test_a_tensors_method_is_none_of_the_class_that_a_batch_is_put_in() -> None:
    text = program(top=PADDED, options=", collate_fn=collate", step="x = x.to('cuda')")
    assert isinstance(asked("loader-workers", text), Edits)
    moved = PADDED.replace("return pad(", "return move(").replace(
        "def collate", "def move(x):\n    return pad(x).to('cuda')  # here\n\ndef collate"
    )
    refused("loader-workers", program(top=moved, options=", collate_fn=collate"), "# here")


MODEL = """
class Autoencoder(nn.Module):
    def __init__(self, size, channels):
        super().__init__()
        self.size, self.channels = size, channels

    def forward(self, x):
        return x.to("cuda")  # !

    @property
    def scale(self):
        return lambda x: self(x)

model_of_images = Autoencoder(8, 3)
"""


@pytest.mark.parametrize("read", ["model_of_images.size", "1 if model_of_images.scale else 0"])
def test_a_number_that_a_model_stores_makes_no_sample_by_the_model(read: str) -> None:
    assert isinstance(asked("loader-workers", program(top=MODEL, dataset=f"Images(paths, {read})")), Edits)


@pytest.mark.parametrize("read", ["model_of_images", "model_of_images.scale"])
def test_what_a_model_computes_is_followed(read: str) -> None:
    sample = "return self.transform(torch.load(self.paths[i])), i"
    refused("loader-workers", program(sample, top=MODEL, dataset=f"Images(paths, {read})"), "# !")


SCHEDULE = """
def schedule(steps):
    def f(step):
        return torch.full((1,), step / steps, device="cuda")  # !
    return f
"""


def test_a_function_within_another_is_named_there_alone() -> None:
    sample = "with open(self.paths[i]) as f:\n    return float(f.read()), i"
    assert isinstance(asked("loader-workers", program(sample, top=SCHEDULE, epoch="schedule(epoch)")), Edits)
    made = program("return self.transform(i), i", top=SCHEDULE, dataset="Images(paths, schedule(9))")
    refused("loader-workers", made, "# !")
