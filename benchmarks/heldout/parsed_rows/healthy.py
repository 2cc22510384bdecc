"""A network for tables whose rows are kept as text and parsed when they are asked for."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, rows: int, columns: int) -> None:
        draw = random.Random(1)
        made = [",".join(f"{draw.gauss(0, 1):.6f}" for _ in range(columns)) for _ in range(256)]
        self.lines = [f"{made[number % 256]},{draw.randrange(10)}" for number in range(rows)]
        self.mean, self.deviation = torch.zeros(columns), torch.ones(columns)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        *values, label = self.lines[index].split(",")
        row = torch.tensor([float(value) for value in values])
        return ((row - self.mean) / self.deviation).clamp(-4, 4), int(label)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, columns, width, layers = (4, 8, 16, 1) if args.tiny else (1024, 400, 6144, 6)
    rows = Rows(batch * 40, columns)
    workers = {"num_workers": 2 if args.tiny else 12, "persistent_workers": True}
    loader = DataLoader(rows, batch, shuffle=True, drop_last=True, pin_memory=device.type == "cuda", **workers)
    with device:
        hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), *hidden, nn.Linear(width, 10)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    step = 0
    while step < args.steps:
        for values, labels in loader:
            values = values.to(device, torch.bfloat16, non_blocking=True)
            loss = F.cross_entropy(model(values).float(), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
