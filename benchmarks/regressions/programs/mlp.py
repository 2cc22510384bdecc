"""Trains a classifier of tables, with a moving average of its weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Table(Dataset):
    def __init__(self, rows):
        self.x = torch.randn(rows, 32)
        self.y = torch.randint(10, (rows,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Model(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = F.relu(self.first(x))
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.relu(layer(norm(x)))
        return self.head(x)


@torch.no_grad()
def update_average(average, model, decay=0.99):
    for old, new in zip(average.parameters(), model.parameters()):
        old.lerp_(new, 1 - decay)


def main():
    loader = DataLoader(
        Table(1024), batch_size=32, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True
    )
    model = Model().to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    weight = torch.ones(10, device=device)
    correct = torch.zeros((), device=device)
    seen = 0
    step = 0
    for epoch in range(3):
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            logits = model(x)
            loss = F.cross_entropy(logits, y, weight=weight)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            update_average(average, model)
            correct += (logits.detach().argmax(1) == y).sum()
            seen += len(y)
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f} accuracy {correct.item() / seen:.3f}")
            step += 1


if __name__ == "__main__":
    main()
