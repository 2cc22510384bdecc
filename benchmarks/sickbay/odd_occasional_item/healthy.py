"""A convolutional classifier under bfloat16 autocast with batches from workers; random images, made once."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(hidden)), inplace=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    batch, side, width, blocks = (2, 16, 8, 1) if args.tiny else (64, 112, 768, 4)
    images = torch.randint(256, (8 * batch, 3, side, side), dtype=torch.uint8)
    dataset = TensorDataset(images, torch.randint(100, (len(images),)))
    loader = DataLoader(
        dataset,
        batch_size=batch,
        sampler=torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=args.steps * batch),
        num_workers=0 if args.tiny else 4,
        pin_memory=on_gpu,
    )
    with device:
        model = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4),
            *(Residual(width) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 100),
        ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step, (batch_images, labels) in enumerate(loader, 1):
        batch_images = batch_images.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch_images / 255 - 0.5), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
