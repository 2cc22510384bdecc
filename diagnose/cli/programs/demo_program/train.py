"""A small image classifier, trained slowly on purpose: the program of `diagnose demo`.

Nothing here is wrong, and every line could stand in a real project: images are fetched one by one and decoded in the
training process, and a confusion matrix is kept up to date in Python. The network is real; images are random patterns.
The wait for object storage is simulated by `time.sleep`, which is how it looks from a process that waits for a network.
"""

import argparse
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 60
SIDE = 32
STORAGE_LATENCY_S = 0.001


class StoredImages(Dataset):
    """Compressed images behind a (simulated) object storage, fetched and decoded one at a time."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self.labels = random.integers(0, CLASSES, count)
        patterns = random.normal(size=(CLASSES, 3, SIDE, SIDE))
        images = patterns[self.labels] + random.normal(scale=2.0, size=(count, 3, SIDE, SIDE))
        self.objects = [zlib.compress(image.astype(np.float32).tobytes()) for image in images]

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(STORAGE_LATENCY_S)  # simulated: the round trip to object storage
        image = np.frombuffer(zlib.decompress(self.objects[index]), dtype=np.float32).reshape(3, SIDE, SIDE)
        image = (image - image.mean(axis=(1, 2), keepdims=True)) / image.std(axis=(1, 2), keepdims=True)
        return torch.from_numpy(image), int(self.labels[index])


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 32, 32, 32, 32]
        strides = [1, 2, 2, 1, 1]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
            for before, after, stride in zip(widths[:-1], widths[1:], strides, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.hidden = nn.Linear(32 * (SIDE // 4) ** 2, 160)
        self.head = nn.Linear(160, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.head(F.relu(self.hidden(x.flatten(1))))


class Confusion:
    """How often each class was taken for each other, with a moving average per pair."""

    def __init__(self) -> None:
        self.share = [[0.0] * CLASSES for _ in range(CLASSES)]

    def update(self, guesses: list[int], truths: list[int]) -> None:
        for guess, truth in zip(guesses, truths, strict=True):
            for row in range(CLASSES):
                for column in range(CLASSES):
                    hit = 1.0 if row == truth and column == guess else 0.0
                    self.share[row][column] += 0.001 * (hit - self.share[row][column])

    def accuracy(self) -> float:
        total = sum(map(sum, self.share))
        return sum(self.share[label][label] for label in range(CLASSES)) / total if total else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(StoredImages(2048), batch_size=args.batch, shuffle=True, drop_last=True)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    confusion = Confusion()

    step = 0
    while step < args.steps:
        for images, labels in loader:
            logits = network(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            confusion.update(logits.argmax(dim=1).tolist(), labels.tolist())
            step += 1
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}, accuracy {confusion.accuracy():.0%}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
