"""Everything that can be chosen is kept in a file beside this one; `key.key=value` on the command line wins."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def as_namespace(tree):
    if isinstance(tree, dict):
        return SimpleNamespace(**{key: as_namespace(value) for key, value in tree.items()})
    return tree


def configuration(words):
    tree = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text())
    for word in words:
        path, value = word.split("=", 1)
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[last] = yaml.safe_load(value)
    return as_namespace(tree)


def main():
    cfg = configuration(sys.argv[1:])
    torch.manual_seed(cfg.seed)
    device = torch.device(cfg.device)
    dataset = TensorDataset(torch.randn(512, cfg.model.inputs), torch.randint(10, (512,)))
    loader = DataLoader(
        dataset,
        batch_size=cfg.data.batch_size,
        num_workers=cfg.data.num_workers,
        pin_memory=cfg.data.pin_memory,
        shuffle=True,
    )
    model = nn.Sequential(nn.Linear(cfg.model.inputs, cfg.model.width), nn.ReLU(), nn.Linear(cfg.model.width, 10))
    model.to(device)
    if cfg.train.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.train.lr, fused=cfg.train.fused)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(cfg.train.epochs):
        running = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cfg.train.amp):
                loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(epoch, running / len(loader))


if __name__ == "__main__":
    main()
