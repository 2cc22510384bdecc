"""Programs after well-known recipes of training: pseudo-labels, folds, adversaries, environments."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "recipes"

PSEUDO_LABELS = """
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Relabelled(Dataset):
    def __init__(self, x, folder):
        self.x, self.folder = x, folder

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(Path(f"{self.folder}/{i}.txt").read_text())


def main():
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    Path("labels").mkdir()
    for i, row in enumerate(x):
        Path(f"labels/{i}.txt").write_text(str(int(row[0] > 0)))
    loader = DataLoader(Relabelled(x, "labels"), batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.6f}")
        with torch.no_grad():
            for i, label in enumerate(model(x).argmax(1).tolist()):
                if i % 5 == 0:
                    Path(f"labels/{i}.txt").write_text(str(label))


if __name__ == "__main__":
    main()
"""

CLASS_BALANCED = """
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ClassBalanced:
    def __init__(self, labels, classes, each):
        self.rows = {}
        for row, label in enumerate(labels):
            self.rows.setdefault(label, []).append(row)
        self.classes, self.each, self.count = classes, each, len(labels) // (classes * each)

    def __len__(self):
        return self.count

    def __iter__(self):
        <iter>


def main():
    random.seed(0)
    torch.manual_seed(0)
    x, y = torch.randn(120, 8), torch.arange(120) % 6
    loader = DataLoader(TensorDataset(x, y), batch_sampler=ClassBalanced(y.tolist(), 3, 4))
    model = nn.Linear(8, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        total = 0.0
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, f"{total / len(loader):.6f}")


if __name__ == "__main__":
    main()
"""

BATCHES = """
batches = []
for _ in range(self.count):
    chosen = random.sample(sorted(self.rows), self.classes)
    batches.append([row for label in chosen for row in random.sample(self.rows[label], self.each)])
"""

ON_DEVICE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_device(rows):
    return [part.to(device) for part in default_collate(rows)]


def main():
    torch.manual_seed(0)
    x, y = <data>
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True<collate>)
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        total = 0.0
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, f"{total / len(loader):.6f}")


if __name__ == "__main__":
    main()
"""

CHANGED_LATER = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
ids, targets = torch.randint(0, 20, (96,)), torch.randn(96)
<norm>
loader = DataLoader(TensorDataset(ids, targets), batch_size=8<collate>)
model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=<momentum>)
for epoch in range(4):
    <start>
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), y.to(model[1].weight.dtype))
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 3))
<end>
"""
NORM = """
norm = nn.BatchNorm1d(1, affine=False)


def collate(rows):
    x, y = zip(*rows)
    return torch.stack(x), norm(torch.stack(y)[:, None])[:, 0]
"""

OTHER_NAMES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NORM = {"mean": torch.zeros(4)}


class Rows(Dataset):
    def __init__(self):
        self.items = [torch.randn(4) for _ in range(40)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return <sample>


class Keep:
    def __init__(self, data):
        self.rows = data.items

    def __call__(self, x):
        self.rows.append(x[0].clone())


def main():
    torch.manual_seed(0)
    data = Rows()
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    <start>
    for epoch in range(3):
        for x in loader:
            loss = (model(x)[:, 0] - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            <after>
        print(epoch, len(data), f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
"""


def programs() -> Iterator[Program]:
    """All members of the family."""
    yield Program(
        "recipe_pseudo_labels",
        FAMILY,
        PSEUDO_LABELS.lstrip(),
        edited=frozenset({"loader-workers"}),
    )
    yield Program(
        "recipe_class_balanced_list",
        FAMILY,
        fill(CLASS_BALANCED, iter=f"{BATCHES}return iter(batches)"),
        edited=frozenset({"defer-item"}),
        left_alone={"loader-workers": "a loader with workers asks for the iterator twice, and it draws each time"},
    )
    yield Program(
        "recipe_class_balanced_generator",
        FAMILY,
        fill(CLASS_BALANCED, iter=f"{BATCHES}yield from batches"),
        edited=frozenset({"defer-item", "loader-workers"}),
    )
    host = "torch.randn(96, 8), torch.randint(0, 2, (96,))"
    there = "torch.randn(96, 8).to(device), torch.randint(0, 2, (96,)).to(device)"
    for name, data, collate in (("tensors", there, ""), ("batches", host, ", collate_fn=to_device")):
        yield Program(
            f"recipe_{name}_on_device",
            FAMILY,
            fill(ON_DEVICE, data=data, collate=collate),
            edited=frozenset({"defer-item"}),
            left_alone=dict.fromkeys(("loader-workers", "loader-pin"), "the loader hands out tensors of the device"),
        )
    for name, momentum, start in (
        ("number_format", "0.9", "if epoch == 2:\n    model.double()"),
        ("sparse_gradients", "0", "model[0].sparse = epoch > 1"),
    ):
        text = fill(CHANGED_LATER, norm="", collate="", momentum=momentum, start=start, end="")
        left = {"fused-optimizer": "its fused form fails in a late epoch"}
        yield Program(f"recipe_changed_later_{name}", FAMILY, text, left_alone=left)
    end = "print(norm.running_mean)"
    text = fill(CHANGED_LATER, norm=NORM, collate=", collate_fn=collate", momentum="0", start="", end=end)
    left = {"loader-workers": "the statistics of samples would stay in the workers"}
    yield Program("recipe_statistics_of_samples", FAMILY, text, left_alone=left)
    for name, parts, why in (
        ("kept_rows", {"sample": "self.items[i]", "start": "keep = Keep(data)", "after": "keep(x)"}, "dataset grows"),
        (
            "running_mean",
            {"sample": 'self.items[i] - NORM["mean"]', "start": 'mean = NORM["mean"]', "after": "mean += x.mean(0)"},
            "mean moves",
        ),
    ):
        yield Program(
            f"recipe_{name}_by_another_name",
            FAMILY,
            fill(OTHER_NAMES, **parts),
            left_alone={"loader-workers": f"the {why} while batches come, under another name"},
        )
    yield Program(
        "recipe_rows_that_stay",
        FAMILY,
        fill(OTHER_NAMES, sample="self.items[i]", start="", after=""),
        edited=frozenset({"loader-workers"}),
    )
