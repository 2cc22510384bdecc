"""A network for volumes that worker processes make up from noise."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Slices of one noise volume, so that a sample costs no more than its copy."""

    def __init__(self, volumes: int, side: int, depth: int) -> None:
        self.noise = torch.randn(depth + volumes, side, side, generator=torch.Generator().manual_seed(1))
        self.volumes, self.depth = volumes, depth

    def __len__(self) -> int:
        return self.volumes

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.noise[index : index + self.depth], index % 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, depth, width, blocks = (2, 8, 4, 4, 1) if args.tiny else (8, 192, 96, 48, 5)
    volumes = Volumes(batch * 400, side, depth)
    loader = DataLoader(volumes, batch, num_workers=2 if args.tiny else 8, persistent_workers=True)
    with device:
        body = [each for _ in range(blocks) for each in (nn.Conv3d(width, width, 3, padding=1), nn.ReLU())]
        model = nn.Sequential(
            nn.Conv3d(1, width, 5, stride=2, padding=2),
            nn.ReLU(),
            *body,
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(width, 4),
        ).to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    for step, (given, labels) in enumerate(loader):
        if step == args.steps:
            break
        given = given.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(given[:, None])
        loss = F.cross_entropy(scores.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
