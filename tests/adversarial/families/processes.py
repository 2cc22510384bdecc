"""Programs that train in processes which they start, and trainers that get their device from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "processes"

TRIAL = """
<imports>
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def feature(i):
    return [float(i % 7), float(i % 3), float((i * i) % 11), 1.0]


def train(rate, rows=None, results=None):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.tensor([feature(i) for i in range(64)] if rows is None else rows) / 8
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    total = 0.0
    for epoch in range(2):
        for a, b in loader:
            loss = nn.functional.mse_loss(net(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
    if results is not None:
        results.put(total / 16)
    return total / 16


def main():
    <body>


if __name__ == "__main__":
    main()
"""
PROCESS = """
results = mp.Queue()
process = mp.Process(target=train, args=(0.1, None, results)<daemon>)
<later>
process.start()
print(f"{results.get():.6f}")
process.join()
"""
POOL = "import multiprocessing as mp"
STARTED = {
    "pool": (POOL, 'with mp.Pool(2) as pool:\n    print(["%.6f" % loss for loss in pool.map(train, [0.01, 0.1])])'),
    "pool_of_partials": (
        "import functools\nfrom multiprocessing import Pool",
        'task = functools.partial(train, rows=None)\nwith Pool(2) as pool:\n    print(["%.6f" % loss for loss in pool.imap(task, [0.01, 0.1])])',
    ),
    "daemon": (POOL, fill(PROCESS, daemon=", daemon=True", later="")),
    "daemon_later": (POOL, fill(PROCESS, daemon="", later="process.daemon = True")),
}
"""Programs whose training runs in processes that may have no children."""
APART = {
    "process": (POOL, fill(PROCESS, daemon="", later="")),
    "pool_of_samples": (
        POOL,
        'with mp.Pool(2) as pool:\n    rows = pool.map(feature, range(64))\nprint(f"{train(0.1, rows):.6f}")',
    ),
}

TRAINER = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, device):
        self.model, self.optimizer, self.device = model.to(device), optimizer, device

    def step(self, x):
        x = x.to(self.device)
        loss = (self.model(x) - x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    device = <device>
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=1e-2), device)
    for step in range(12):
        print(step, f"{trainer.step(torch.randn(8, 6)):.4f}")


main()
"""
DEVICES = {
    "text": '"cuda" if torch.cuda.is_available() else "cpu"',
    "object": 'torch.device("cuda" if torch.cuda.is_available() else "cpu")',
}


def programs() -> Iterator[Program]:
    """All of the family."""
    for name, (imports, body) in STARTED.items():
        text = fill(TRIAL, imports=imports, body=body)
        left = {"loader-workers": "a daemonic process may have no children"}
        yield Program(f"process_{name}", FAMILY, text, left_alone=left)
    for name, (imports, body) in APART.items():
        text = fill(TRIAL, imports=imports, body=body)
        yield Program(f"process_{name}", FAMILY, text, edited=frozenset({"loader-workers"}))
    for name, device in DEVICES.items():
        text = fill(TRAINER, device=device)
        yield Program(f"device_of_main_{name}", FAMILY, text, edited=frozenset({"autocast-bf16"}))
