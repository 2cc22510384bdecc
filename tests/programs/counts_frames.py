"""Trains, and warns from everywhere that torch calls it back; prints the line that each warning is shown at."""

import io
import warnings
from pathlib import Path

import light  # noqa: F401 - before torch
import torch
from torch import nn


def warn(place: str) -> None:
    for level in range(1, 9):
        warnings.warn(f"{place}, level {level}", stacklevel=level)


def show(message: object, _category: object, filename: str, line: int, *_others: object) -> None:
    print(message, Path(filename).name, line)


warnings.simplefilter("always")
warnings.showwarning = show


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        warn("block")
        return self.linear(batch)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        warn("model")
        for block in self.blocks:
            batch = block(batch)
        return batch


class Optimizer(torch.optim.SGD):
    def add_param_group(self, group: dict[str, object]) -> None:
        warn("constructor of an optimizer")
        super().add_param_group(group)

    def step(self, closure: object = None) -> None:
        warn("step of an optimizer")
        super().step(closure)


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, batch: torch.Tensor) -> torch.Tensor:
        return batch.clone()

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        warn("backward pass")
        return gradient


class Ones(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            warn("sample")
        return torch.ones(4)


class Loader(torch.utils.data.DataLoader[torch.Tensor]):
    def _get_iterator(self) -> object:
        warn("loader")
        return super()._get_iterator()


class Saved:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        warn("checkpoint")
        return Saved, ()


def main() -> None:
    model = Model()
    optimizer = Optimizer(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for batch in Loader(Ones(), batch_size=2):
        loss = Identity.apply(model(batch)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with torch.autograd.detect_anomaly():
        pass
    torch.save(Saved(), io.BytesIO())


main()
